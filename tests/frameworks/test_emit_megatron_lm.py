"""Megatron-LM's own parser and checks accept the emitted arguments and understand what the plan says."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.planner.emit.registry import emit
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import cluster
from tests.planner.emit.megatron_flags import FLAGS
from tests.planner.emit.test_megatron import words

pytest.importorskip("torch", reason="torch is not installed")
FOLDER = Path(sys.prefix) / "megatron-lm"
"""Where the gate unpacks megatron-core 0.19.2."""
if not (FOLDER / "megatron" / "training" / "arguments.py").is_file():
    pytest.skip(f"Megatron-LM's parser is not in {FOLDER}", allow_module_level=True)


def planned(model: str, job: dict | None = None, **strategy) -> tuple[Problem, Plan]:
    work = {"global_batch_size": 64, "sequence_length": 2048, "target": "megatron", **(job or {})}
    graph = load_model(model, mtp=bool(work.get("mtp")))
    problem = Problem(graph, cluster("dgx-h100:2"), Job(**work))
    return problem, make_plan(problem, **strategy)


CASES = {
    "dense": planned("llama-3.1-8b", tp=4, pp=2, vpp=2, recompute="full"),
    "uneven": planned("llama-2-7b", tp=2, pp=4, layers_per_stage=[7, 9, 9, 7], zero_stage=0),
    "inside": planned("llama-3.2-1b", tp=2, pp=2, placement="tp,cp,pp,dp"),
    "ring": planned("qwen2.5-7b", tp=2, cp=4),
    "heads": planned("qwen3-8b", cp=4, ulysses=4),
    "both": planned("mistral-7b", tp=2, cp=4, ulysses=2),
    "copies": planned("llama-3.1-8b", tp=2, dp_replicate=2),
    "learned": planned("gpt3-175b", tp=8, pp=2, recompute="full"),
    "experts": planned("mixtral-8x7b", tp=2, ep=8, recompute="selective"),
    "experts-full": planned("qwen3-30b-a3b", ep=8, recompute="full"),
    "latent": planned("deepseek-v2-lite", ep=8, pp=2),
    "predicting": planned("deepseek-v3", {"mtp": True}, ep=8, pp=2, recompute="full"),
    "predicting-apart": planned(
        "deepseek-v3", {"mtp": True}, ep=4, pp=4, layers_per_stage=[20, 20, 21, 1], recompute="full"
    ),
    "modules": planned(
        "deepseek-v3",
        {"recompute_modules": "layernorm,mla_up_proj,moe_act"},
        ep=8,
        pp=2,
        recompute="selective",
    ),
    "core": planned(
        "llama-3.1-8b", {"recompute_modules": "core_attn,layernorm"}, tp=2, recompute="selective"
    ),
    "fp8": planned("llama-3.1-8b", {"precision": "fp8"}, tp=2),
    "fp8-block": planned("llama-3.1-8b", {"precision": "fp8-block"}, tp=2),
    "mxfp8-weights": planned("llama-3.1-8b", {"precision": "mxfp8-weights"}, tp=2),
    "bf16-moments": planned("llama-3.1-8b", {"optimizer": "adamw-bf16"}, tp=2),
    "fp16-momentum": planned("llama-3.1-8b", {"precision": "fp16", "optimizer": "momentum"}),
}
SHORT = ["--train-iters", "20", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size"]


@pytest.fixture(scope="module")
def answer() -> dict:
    """Return what the parser makes of every case, and of some that are wrong."""
    asked = {}
    for name, (problem, plan) in CASES.items():
        last = str(problem.model.vocab_size - 1)
        asked[name] = {"world": plan.num_devices, "words": [*words(problem, plan), *SHORT, last]}
    dense = asked["dense"]
    asked["too few ranks"] = {**dense, "world": 12}
    asked["a layer too few"] = {
        **dense,
        "words": ["Et*8|t*8|t*8|t*7L" if w == "Et*8|t*8|t*8|t*8L" else w for w in dense["words"]],
    }
    asked["unknown"] = {**dense, "words": [*dense["words"], "--no-such-flag"]}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("megatron_lm.py")), str(FOLDER)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_megatron_understands_the_plan(name: str, answer: dict) -> None:
    _, plan = CASES[name]
    found = answer["cases"][name]
    assert "refused" not in found, found["refused"]
    args, config = found["args"], found["config"]
    assert args["data_parallel_size"] == plan.dp
    degrees = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    assert [args[d] for d in degrees] == [plan.tp, plan.pp, plan.cp]
    experts = args["expert_model_parallel_size"], args["expert_tensor_parallel_size"]
    assert args["num_experts"] is None or experts == (plan.ep, plan.etp)
    assert args["sequence_parallel"] is plan.sequence_parallel
    assert args["use_distributed_optimizer"] is (plan.zero_stage == 1)
    assert (args["micro_batch_size"], args["global_batch_size"]) == (
        plan.micro_batch_size,
        plan.global_batch_size,
    )
    assert (args["bf16"], args["fp16"]) == (plan.precision != "fp16", plan.precision == "fp16")
    assert (config["recompute_granularity"] == "full") == ("full" in plan.recompute)
    if plan.recompute_modules:
        assert set(config["recompute_modules"]) == set(plan.recompute_modules)
    assert args["num_distributed_optimizer_instances"] == plan.dp_replicate


@pytest.mark.parametrize("name", CASES)
def test_megatron_builds_the_planned_model(name: str, answer: dict) -> None:
    problem, _ = CASES[name]
    config, spec = answer["cases"][name]["config"], problem.base.spec
    assert spec is not None
    assert (config["num_layers"], config["hidden_size"]) == (spec.layers, spec.hidden)
    assert config["ffn_hidden_size"] == spec.ffn
    assert config["add_bias_linear"] is spec.o_bias
    assert config["add_qkv_bias"] is spec.qkv_bias
    assert config["gated_linear_unit"] is spec.gated
    assert config["normalization"] == ("LayerNorm" if spec.norm_bias else "RMSNorm")
    assert (config["attention_dropout"], config["hidden_dropout"]) == (
        spec.attention_dropout,
        spec.hidden_dropout,
    )
    if "norm_epsilon" in problem.base.attributes:
        assert config["layernorm_epsilon"] == problem.base.attributes["norm_epsilon"]
    if "rotary_base" in problem.base.attributes:
        assert answer["cases"][name]["args"]["rotary_base"] == problem.base.attributes["rotary_base"]


def test_megatron_builds_deepseek_s_router_and_attention(answer: dict) -> None:
    config = answer["cases"]["predicting"]["config"]
    assert config["moe_router_score_function"] == "sigmoid"
    assert config["moe_router_topk_scaling_factor"] == 2.5
    assert (config["moe_router_num_groups"], config["moe_router_group_topk"]) == (8, 4)
    assert config["moe_router_enable_expert_bias"] is True
    assert (config["q_lora_rank"], config["kv_lora_rank"]) == (1536, 512)
    assert (config["rope_type"], config["rotary_scaling_factor"], config["mscale"]) == ("yarn", 40, 1.0)
    assert config["mtp_num_layers"] == 1
    assert config["moe_layer_freq"] == [0] * 3 + [1] * 58


def test_llama_s_positions_are_stretched(answer: dict) -> None:
    args = answer["cases"]["dense"]["args"]
    assert args["use_rope_scaling"] is True and args["rope_scaling_factor"] == 8.0
    assert answer["cases"]["uneven"]["args"]["use_rope_scaling"] is False


@pytest.mark.parametrize("wrong", ["too few ranks", "a layer too few", "unknown"])
def test_megatron_itself_refuses_what_is_wrong(wrong: str, answer: dict) -> None:
    assert "refused" in answer["cases"][wrong]


def test_every_flag_is_an_option_of_its_parser(answer: dict) -> None:
    assert set(answer["options"]) >= FLAGS


def test_predicting_layers_that_are_parted_are_refused() -> None:
    from meshwright.planner.emit.registry import inexpressible

    problem, plan = CASES["predicting"]
    spec = replace(problem.base.spec, mtp_layers=2)
    two = replace(problem, base=replace(problem.base, spec=spec))
    chunks = (replace(plan.chunks[0], stop=62), replace(plan.chunks[1], start=62))
    found = inexpressible(two, replace(plan, chunks=chunks))
    assert "chunks: layers for multi-token prediction only in one chunk" in found
    assert "m" in emit(problem, plan)["megatron_args.sh"]
