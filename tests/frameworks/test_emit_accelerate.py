"""The emitted Accelerate files before its own classes, and real FSDP2 steps on two gloo processes."""

import json
from pathlib import Path

import pytest

from meshwright.planner.emit.registry import emit
from meshwright.planner.emit.write import write_plan
from tests.frameworks.runs import start
from tests.planner.emit.cases import FULL_ZERO3, case

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

CASES = {
    "zero-2": ({}, {"zero_stage": 2}),
    "full": ({}, FULL_ZERO3),
    "hybrid": ({}, {"zero_stage": 3, "dp_replicate": 2}),
    "context": ({}, {"cp": 2, "kv_exchange": "all_gather", "zero_stage": 3}),
    "context-copies": ({}, {"cp": 4, "kv_exchange": "ring", "dp_replicate": 2, "zero_stage": 2}),
    "offload": ({}, {"zero_stage": 3, "offload": "parameters"}),
    "fp16": ({"precision": "fp16"}, {"micro_batch_size": 4}),
    "fp32-sgd": ({"precision": "fp32", "optimizer": "sgd"}, {}),
    "first-2": ({"target": "fsdp1"}, {"zero_stage": 2}),
    "first-3": ({"target": "fsdp1"}, FULL_ZERO3),
    "listed": ({}, {"zero_stage": 3, "recompute": "every-2:full"}),
}


@pytest.mark.parametrize("name", CASES)
def test_accelerate_reads_the_plan_s_decisions(name: str, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DistributedType

    job, strategy = CASES[name]
    problem, plan = case("fsdp", job=job, **strategy)
    write_plan(problem, plan, tmp_path / "out")
    parsed = load_config_from_file(str(tmp_path / "out" / "accelerate.yaml"))
    assert parsed.distributed_type == DistributedType.FSDP
    assert (parsed.num_processes, parsed.num_machines) == (plan.num_devices, 2)
    assert parsed.mixed_precision == {"fp32": "no"}.get(plan.precision, plan.precision)


@pytest.mark.parametrize("name", CASES)
def test_every_fsdp_key_is_an_option_of_accelerate(name: str) -> None:
    # Unknown keys in fsdp_config are accepted in silence.
    import yaml
    from accelerate.commands.launch import launch_command_parser

    job, strategy = CASES[name]
    config = yaml.safe_load(emit(*case("fsdp", job=job, **strategy))["accelerate.yaml"])
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config["fsdp_config"]) <= known
    assert len(config["fsdp_config"]) >= 6
    assert set(config.get("parallelism_config", {})) <= known


@pytest.mark.parametrize("name", CASES)
def test_the_plugin_gets_the_plan_s_sharding(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    job, strategy = CASES[name]
    problem, plan = case("fsdp", job=job, **strategy)
    write_plan(problem, plan, tmp_path / "out")
    given = ["--config_file", str(tmp_path / "out" / "accelerate.yaml"), "--machine_rank", "1"]
    given += ["--main_process_ip", "head", "--main_process_port", "29511", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(given))
    for key, value in prepare_multi_gpu_env(args).items():
        monkeypatch.setenv(key, value)
    assert (args.nproc_per_node, args.nnodes, args.node_rank) == ("8", "2", 1)
    # The first version asks which GPU it is to broadcast from.
    monkeypatch.setattr("accelerate.utils.dataclasses.is_cuda_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == (1 if plan.target == "fsdp1" else 2)
    if plan.target == "fsdp":
        assert plugin.reshard_after_forward is (plan.zero_stage == 3)
    else:
        names = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
        assert plugin.sharding_strategy.name == names[plan.zero_stage]
    assert plugin.activation_checkpointing is (set(plan.recompute[1:-1]) == {"full"})
    assert plugin.transformer_cls_names_to_wrap == ["LlamaDecoderLayer"]
    offloaded = {"none": "OffloadPolicy", "parameters": "CPUOffloadPolicy"}
    first = {"none": "CPUOffload"}
    offloaded = first if plan.target == "fsdp1" else offloaded
    assert type(plugin.cpu_offload).__name__ == offloaded[plan.offload]
    assert args.use_parallelism_config is (plan.dp_replicate > 1 or plan.cp > 1)
    if args.use_parallelism_config:
        degrees = ParallelismConfig()
        shard = plan.dp // plan.dp_replicate
        assert (degrees.dp_replicate_size, degrees.dp_shard_size) == (plan.dp_replicate, shard)
        assert (degrees.cp_size, degrees.tp_size, degrees.total_size) == (plan.cp, 1, plan.num_devices)
        names, sizes = degrees._get_mesh()
        inner = dict(zip(names, sizes, strict=True))
        # Neighbours share a sequence: context ranks lie innermost, as in the plan's placement.
        assert plan.cp == 1 or list(inner)[-1] == "cp"
    if plan.cp > 1:
        words = {"all_gather": "allgather", "ring": "alltoall"}
        assert degrees.cp_handler.cp_comm_strategy == words[plan.kv_exchange]


def test_accelerate_prepares_tensor_ranks_with_what_transformers_lacks() -> None:
    """Why the target has no tensor degree: where this fails, it can have one."""
    import inspect

    parallel = pytest.importorskip(
        "transformers.integrations.tensor_parallel", reason="transformers is not installed"
    )
    assert "import ReplicateParallel" in inspect.getsource(accelerate.Accelerator._prepare_tp)
    assert not hasattr(parallel, "ReplicateParallel")


@pytest.mark.parametrize("stage", [1, 3])
def test_accelerate_hands_the_json_to_deepspeed(
    stage: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    problem, plan = case("deepspeed", "dgx-h100:1", zero_stage=stage)
    write_plan(problem, plan, tmp_path / "out", launchers=["accelerate"])
    given = ["--config_file", str(tmp_path / "out" / "accelerate.yaml"), "--machine_rank", "0"]
    given += ["--deepspeed_config_file", str(tmp_path / "out" / "ds_config.json"), "train.py"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(given))
    assert args.use_deepspeed and args.num_processes == 8
    # As `launch_command` does before it starts the processes.
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    for key, value in prepare_deepspeed_cmd_env(args)[1].items():
        monkeypatch.setenv(key, value)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == stage and plugin.zero3_init_flag is (stage == 3)
    assert plugin.deepspeed_config["train_batch_size"] == plan.global_batch_size


def test_the_trainer_takes_the_arguments() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    problem, plan = case("fsdp", micro_batch_size=2)
    values = json.loads(emit(problem, plan)["training_args.json"])
    arguments = transformers.TrainingArguments(output_dir="unused", use_cpu=True, **values)
    per_step = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    assert per_step * plan.dp == plan.global_batch_size
    assert arguments.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}


def test_the_decoder_class_is_in_the_framework() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.planner.emit.cases import model

    assert model().block_class in transformers.LlamaForCausalLM._no_split_modules


TRAIN = """
import json, os, sys
import torch, accelerate.state as state
from accelerate.utils import DistributedType
# Stock Accelerate starts CPU processes that do not shard, and says nothing: make gloo count as GPUs.
state.PartialState._prepare_backend = lambda self, *a, **k: ("gloo", DistributedType.MULTI_GPU)
def on_cpu(self): self.device = torch.device("cpu")
state.PartialState.set_device = on_cpu
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from transformers import LlamaConfig, LlamaForCausalLM
given = json.load(open(sys.argv[1]))
passes = given["gradient_accumulation_steps"]
kwargs = given["accelerator_config"]["gradient_accumulation_kwargs"]
accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=passes, **kwargs))
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=128, use_cache=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
torch.manual_seed(accelerator.process_index)
x = torch.randint(0, 128, (given["per_device_train_batch_size"], 32))
losses, whole = [], 0
for _ in range(6 * passes):
    with accelerator.accumulate(model):
        loss = model(input_ids=x, labels=x).loss
        accelerator.backward(loss)
        whole += sum(p.grad is None or type(p.grad).__name__ != "DTensor" for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
if accelerator.is_main_process:
    names = [type(m).__name__ for m in model.modules()]
    seen = {"type": str(accelerator.distributed_type), "losses": losses, "whole_gradients": whole,
            "parameters": sorted({type(p).__name__ for p in model.parameters()}),
            "dtypes": sorted({str(p.dtype) for p in model.parameters()}),
            "sharded_blocks": names.count("FSDPLlamaDecoderLayer"),
            "checkpointed": names.count("FSDPCheckpointWrapper"),
            "processes": accelerator.num_processes}
    open("seen.json", "w").write(json.dumps(seen))
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "recompute"), [(2, "none"), (3, "full")])
def test_a_model_trains_sharded_from_the_emitted_folder(stage: int, recompute: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    job = {"global_batch_size": 8, "allow_idle": True}
    strategy = {"dp": 2, "micro_batch_size": 2, "zero_stage": stage, "recompute": recompute}
    write_plan(*case("fsdp", "dgx-h100:1", job=job, **strategy), tmp_path / "out", script="train.py")
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["bash", "out/launch.sh", "out/training_args.json"]
    start(command, tmp_path, HOME=str(tmp_path), MASTER_PORT=str(29610 + stage))
    seen = json.loads((tmp_path / "seen.json").read_text())
    # An exit code of zero proves nothing: the parameters must be shards, each block its own group.
    assert seen["type"].endswith("FSDP") and seen["processes"] == 2
    assert seen["parameters"] == ["DTensor"] and seen["dtypes"] == ["torch.float32"]
    assert seen["sharded_blocks"] == 2
    assert seen["checkpointed"] == (2 if recompute == "full" else 0)
    assert seen["whole_gradients"] == 0
    assert seen["losses"][-1] < seen["losses"][0]
