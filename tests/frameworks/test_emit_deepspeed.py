"""The emitted DeepSpeed files before DeepSpeed's own parsers and engine (on CPU, two gloo processes)."""

import json
import re
from pathlib import Path

import pytest

from meshwright.planner.emit.registry import emit
from meshwright.planner.emit.write import write_plan
from tests.frameworks.runs import start
from tests.planner.emit.cases import FULL_ZERO3, case

deepspeed = pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")

CASES = {
    "offload": ({}, {"zero_stage": 3, "offload": "parameters"}),
    "offload-2": ({}, {"zero_stage": 2, "offload": "optimizer"}),
    "secondary": ({}, {"zero_stage": 3, "hpz": 8}),
    **{f"zero-{stage}": ({}, {"zero_stage": stage}) for stage in range(4)},
    "full": ({}, FULL_ZERO3),
    "fp16": ({"precision": "fp16"}, {"micro_batch_size": 4}),
    "fp32-sgd": ({"precision": "fp32", "optimizer": "sgd"}, {"zero_stage": 2}),
    "pure-bf16-momentum": ({"precision": "pure-bf16", "optimizer": "momentum"}, {"zero_stage": 3}),
    "tf32-adam": ({"precision": "tf32", "optimizer": "adam"}, {"zero_stage": 1}),
    "tensor": ({}, {"tp": 4, "zero_stage": 3}),
    "pipeline": ({}, {"pp": 2, "layers_per_stage": [15, 17], "recompute": "0-3:full"}),
    "listed": ({}, {"zero_stage": 3, "recompute": "every-2:full"}),
}


class World:
    """What DeepSpeed asks for the data-parallel degree where no processes run."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_data_parallel_world_size(self) -> int:
        return self.size


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch):
    from deepspeed.runtime.config import DeepSpeedConfig

    # Without a process group DeepSpeed would take the degree for one.
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda: 0)
    return lambda config, dp: DeepSpeedConfig(config, mpu=World(dp))


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_reads_the_plan_s_decisions(name: str, parse) -> None:
    job, strategy = CASES[name]
    problem, plan = case("deepspeed", job=job, **strategy)
    parsed = parse(json.loads(emit(problem, plan)["ds_config.json"]), plan.dp)
    # Under AutoTP DeepSpeed multiplies by the data ranks it was told of, here the true ones.
    assert parsed.train_batch_size == plan.global_batch_size
    assert parsed.tensor_parallel_config.autotp_size == (plan.tp if plan.tp > 1 else 0)
    assert parsed.train_micro_batch_size_per_gpu == plan.micro_batch_size
    assert parsed.gradient_accumulation_steps == plan.num_microbatches
    assert parsed.zero_optimization_stage == plan.zero_stage
    zero = parsed.zero_config
    assert zero.zero_hpz_partition_size == plan.hpz
    assert (zero.offload_optimizer is not None) is (plan.offload != "none")
    assert (zero.offload_param is not None) is (plan.offload == "parameters")
    assert parsed.bfloat16_config.enabled == (plan.precision in ("bf16", "pure-bf16"))
    assert parsed.float16_config.enabled == (plan.precision == "fp16")
    checkpoints = parsed.activation_checkpointing_config.number_checkpoints
    assert checkpoints == (32 if plan.recompute[1:-1] == ("full",) * 32 else None)


def test_deepspeed_itself_refuses_another_product(parse) -> None:
    problem, plan = case("deepspeed")
    with pytest.raises(AssertionError, match="batch"):
        parse(json.loads(emit(problem, plan)["ds_config.json"]), plan.dp + 1)


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_one_that_deepspeed_reads(name: str) -> None:
    # Unknown keys at the top level and in an optimizer's parameters are accepted in silence.
    from deepspeed.runtime import constants
    from deepspeed.runtime.activation_checkpointing import config as checkpointing
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    def words(module) -> set[str]:
        return {v for v in vars(module).values() if isinstance(v, str)}

    def names(model) -> set[str]:
        fields = model.model_fields
        return set(fields) | {f.alias for f in fields.values() if f.alias}

    job, strategy = CASES[name]
    config = json.loads(emit(*case("deepspeed", job=job, **strategy))["ds_config.json"])
    blocks = {"zero_optimization", "bf16", "fp16", "activation_checkpointing", "tensor_parallel"}
    assert set(config) <= words(constants) | blocks
    assert set(config.get("tensor_parallel", {})) <= names(TPTrainingConfig)
    assert set(config["zero_optimization"]) <= names(DeepSpeedZeroConfig)
    assert set(config.get("bf16", {})) <= names(DeepSpeedBF16Config)
    assert set(config.get("fp16", {})) <= names(DeepSpeedFP16Config)
    assert set(config.get("activation_checkpointing", {})) <= words(checkpointing)


def test_hostfile_is_read_back(tmp_path: Path) -> None:
    from deepspeed.launcher.runner import fetch_hostfile

    problem, plan = case("deepspeed", "dgx-h100:4", job={"allow_idle": True, "global_batch_size": 30}, dp=30)
    write_plan(problem, plan, tmp_path / "out")
    pool = fetch_hostfile(str(tmp_path / "out" / "hostfile"))
    assert list(pool.items()) == [("node0", 8), ("node1", 8), ("node2", 8), ("node3", 6)]


@pytest.mark.parametrize("machines", ["dgx-h100:1", "dgx-h100:2"])
def test_deepspeed_s_launcher_knows_the_options(machines: str) -> None:
    from deepspeed.launcher.runner import parse_args

    text = emit(*case("deepspeed", machines))["launch.sh"]
    options = re.findall(r" (--[a-z_]+)[ =]", text.split("exec deepspeed")[1].split('"$TRAIN_SCRIPT"')[0])
    assert len(options) == 3
    values = {"--num_gpus": "8", "--master_port": "29500"}
    parsed = parse_args(
        [*(x for o in options for x in (o, values.get(o, "x"))), "train.py", "--deepspeed_config"]
    )
    assert parsed.user_script == "train.py"
    assert parsed.user_args == ["--deepspeed_config"]


def test_the_trainer_s_arguments_agree_with_the_json() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    problem, plan = case("deepspeed", recompute="full")
    files = emit(problem, plan)
    values = json.loads(files["training_args.json"])
    arguments = transformers.TrainingArguments(output_dir="unused", use_cpu=True, **values)
    assert arguments.gradient_checkpointing is True
    arguments.__dict__["_n_gpu"] = 1
    config = HfTrainerDeepSpeedConfig(json.loads(files["ds_config.json"]))
    one_process = {**config.config, "train_batch_size": plan.global_batch_size // plan.dp}
    config.config = one_process
    config.trainer_config_process(arguments)
    assert config.mismatches == []


TRAIN = """
import argparse, json, torch, deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled for minutes
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
config = json.load(open(args.deepspeed_config))
if config["optimizer"]["type"] == "AdamW":
    config["optimizer"]["params"]["torch_adam"] = True  # the fused kernel needs a GPU
config["optimizer"]["params"]["lr"] = 1e-2  # steps that bf16 can hold
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
dtype = next(engine.module.parameters()).dtype
torch.manual_seed(torch.distributed.get_rank())
x = torch.randn(config["train_micro_batch_size_per_gpu"], 32, dtype=dtype)
losses = []
for _ in range(6 * config["gradient_accumulation_steps"]):
    loss = engine(x).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if torch.distributed.get_rank() == 0:
    seen = {"losses": losses, "stage": engine.zero_optimization_stage(), "steps": engine.global_steps,
            "batch": engine.train_batch_size(), "dtype": str(dtype)}
    open("seen.json", "w").write(json.dumps(seen))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "precision", "optimizer"),
    [(1, "bf16", "adamw"), (2, "pure-bf16", "momentum"), (3, "pure-bf16", "adamw"), (3, "bf16", "adamw")],
)
def test_a_model_trains_from_the_emitted_folder(
    stage: int, precision: str, optimizer: str, tmp_path: Path
) -> None:
    # Launcher and JSON of the folder; only the fused Adam kernel and the learning rate are others.
    job = {"global_batch_size": 8, "allow_idle": True, "precision": precision, "optimizer": optimizer}
    problem, plan = case("deepspeed", "dgx-h100:1", job=job, dp=2, micro_batch_size=2, zero_stage=stage)
    write_plan(problem, plan, tmp_path / "out", script="train.py")
    (tmp_path / "train.py").write_text(TRAIN)
    start(["bash", "out/launch_torchrun.sh"], tmp_path, HOME=str(tmp_path), MASTER_PORT=str(29600 + stage))
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["stage"], seen["batch"], seen["steps"]) == (stage, 8, 6)
    assert seen["dtype"] == "torch.bfloat16"
    assert seen["losses"][-1] < seen["losses"][0]
