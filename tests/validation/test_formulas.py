"""Against published formulas and tables: bytes per parameter, FLOPs of a step, bubbles of a pipeline."""

import pytest

from benchmarks.published import gpt
from meshwright.costmodels.memory import state_bytes
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.precision import Precision, find_optimizer, find_precision
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import input_bytes
from meshwright.costmodels.schedule import build
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.pricing import model_flops
from meshwright.planner.problem import Problem
from tests.validation.published import LENGTH, VOCAB, name, price_run, runs

ADAM = find_optimizer("adamw")


def bytes_per_parameter(stage, dp, precision, profile, gradient):
    recipe = precision if isinstance(precision, Precision) else find_precision(precision)
    return float(state_bytes(stage, dp, recipe, ADAM, find_profile(profile), gradient).total)


# Bytes per parameter -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_figure_1(stage, gigabytes):
    """arXiv 1910.02054, figure 1: 7.5 billion parameters, 64 ranks, 16-bit gradients."""
    got = 7.5e9 * bytes_per_parameter(stage, 64, "fp16", "deepspeed", 2) / 1e9
    assert got == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("dp", "stage", "gigabytes"),
    [
        (1, 1, 120),
        (4, 1, 52.5),
        (16, 1, 35.6),
        (256, 1, 30.4),
        (4, 2, 41.3),
        (16, 2, 21.6),
        (256, 2, 15.4),
        (4, 3, 30),
        (16, 3, 7.5),
        (256, 3, 0.47),
    ],
)
def test_zero_table_1(dp, stage, gigabytes):
    """arXiv 1910.02054, table 1: 7.5 billion parameters (recalled; agrees with its own formulas)."""
    got = 7.5e9 * bytes_per_parameter(stage, dp, "fp16", "deepspeed", 2) / 1e9
    assert got == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize("dp", [2, 8, 64, 1024])
@pytest.mark.parametrize(
    ("precision", "gradient", "whole", "kept", "shared"),
    [("bf16", 4, 18, 6, 12), ("fp32", 4, 16, 8, 8)],
    ids=["bf16 parameters, fp32 gradients", "fp32"],
)
def test_distributed_optimizer_of_megatron(dp, precision, gradient, whole, kept, shared):
    """Megatron-LM docs/source/api-guide/dist_optimizer.md: 18 -> 6 + 12/d and 16 -> 8 + 8/d."""
    assert bytes_per_parameter(0, dp, precision, "megatron-core", gradient) == whole
    assert bytes_per_parameter(1, dp, precision, "megatron-core", gradient) == kept + shared / dp


@pytest.mark.parametrize(
    ("precision", "profile", "gradient", "expected"),
    [
        ("bf16", "deepspeed", 2, 16),  # arXiv 1910.02054: 2 + 2 + 12
        ("bf16", "generic", 4, 18),  # Megatron-LM: main gradients in fp32
        ("pure-bf16", "generic", 2, 8),  # weight, gradient and two moments of 2 bytes
        ("fp32", "generic", 4, 16),  # weight, gradient and two moments of 4 bytes
        ("bf16-8bit", "generic", 2, 10),  # arXiv 2110.02861: two moments of 1 byte
    ],
)
def test_recipes(precision, profile, gradient, expected):
    assert bytes_per_parameter(0, 64, precision, profile, gradient) == expected


@pytest.mark.parametrize("dp", [1, 2, 8, 64])
def test_fsdp2_shards_are_fp32(dp):
    """PyTorch fully_shard: fp32 weight, gradient and two moments are sharded; 16-bit copies are transient."""
    assert bytes_per_parameter(3, dp, "bf16", "fsdp2", 4) == 16 / dp
    # reshard_after_forward=False keeps the gathered 16-bit weights.
    assert bytes_per_parameter(2, dp, "bf16", "fsdp2", 4) == 2 + 16 / dp


# FLOPs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", runs()[::2], ids=name)
def test_model_flops(run):
    """arXiv 2205.05198, appendix: 72 B L s h^2 (1 + s / 6h + V / 12hL), here with causal attention halved."""
    b, layers, h = run["global_batch_size"], run["layers"], run["hidden"]
    graph = decoder_graph(gpt(h, layers, run["heads"]), run["model"])
    got = model_flops(Problem(graph, None, Job(b, LENGTH)))
    halved = (LENGTH + 1) / (12 * h)
    assert got == pytest.approx(72 * b * layers * LENGTH * h**2 * (1 + halved + VOCAB / (12 * h * layers)))
    printed = 72 * b * layers * LENGTH * h**2 * (1 + LENGTH / (6 * h) + VOCAB / (12 * h * layers))
    assert 0.97 < got / printed < 1


@pytest.mark.parametrize("run", [run for run in runs() if run["recompute"] == "full"], ids=name)
def test_executed_flops_with_full_recompute(run):
    """arXiv 2104.04473, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh): unfused kernels halve nothing."""
    b, layers, h = run["global_batch_size"], run["layers"], run["hidden"]
    executed = price_run(run).hardware_flops
    shares = 1 + LENGTH / (6 * h) + VOCAB / (16 * layers * h)
    assert executed == pytest.approx(96 * b * LENGTH * layers * h**2 * shares)


def test_six_flops_per_parameter_and_token():
    """arXiv 2001.08361: 6 N D, for N without the embedding, when attention is short."""
    graph = load_model("llama-3.1-70b")
    tokens = 4 * 512
    got = model_flops(Problem(graph, None, Job(4, 512)))
    embedding = graph.kinds[0].parameters()
    assert got == pytest.approx(6 * (graph.parameters - embedding) * tokens, rel=0.01)


# Activations ---------------------------------------------------------------------------------------------


def test_llama_3_8b_keeps_34_bytes_a_token_and_feature():
    """The Ultra-Scale Playbook's memory figure for this shape with flash attention: 34 b s h a layer."""
    (block,) = (kind for kind in load_model("llama-3.1-8b").kinds if kind.role == "block")
    shape = Shape(1, 16384, 1, 0)
    kept = float(input_bytes(block, shape)) + sum(float(op.saved_bytes(shape)) for op in block.operators)
    assert kept / (16384 * 4096) == pytest.approx(34, rel=0.01)


# Bubbles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 8), (8, 64), (8, 5)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_equal_stages(schedule, pp, m):
    """arXiv 1811.06965 and 2104.04473: (p - 1) / m of the ideal time."""
    times = simulate(build(schedule, pp, 1, m), 1.0, 2.0, 0.0)
    assert float(times.end_s.max(axis=-1)) / (3 * m) - 1 == pytest.approx((pp - 1) / m)


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 4), (4, 3, 8), (8, 2, 64)])
def test_bubble_of_interleaved_stages(pp, vpp, m):
    """arXiv 2104.04473, section 2.2.2: (p - 1) / (v m) of the ideal time."""
    times = simulate(build("interleaved", pp, vpp, m), 1.0, 2.0, 0.0)
    assert float(times.end_s.max(axis=-1)) / (3 * vpp * m) - 1 == pytest.approx((pp - 1) / (vpp * m))
