"""Kernels without vector loads: bound by instructions where memory is fast, and who runs them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.fusion import GROUPS, bias_chain, unfused
from meshwright.costmodels.moe import ExpertActivation, ExpertGemm
from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.profiles import find_profile, sourced_profile
from meshwright.costmodels.roofline import device_rates, total_time, work_time
from meshwright.costmodels.work import Shape, Work
from meshwright.hardware.catalogue import accelerator_names, load_accelerator
from meshwright.planner.targets import find_target

PROFILE = sourced_profile("generic")
FUSED, EAGER = dict.fromkeys(GROUPS, "fused"), dict.fromkeys(GROUPS, "eager")


def rates_of(name, **changes):
    return replace(device_rates(load_accelerator(name), find_precision("bf16"), fitted=False), **changes)


H100 = rates_of("h100-sxm")
sizes = st.floats(1e3, 1e10)


def rotation(width: int, scaled: bool = False) -> Pointwise:
    return Pointwise(
        "rotary", "tensor", width, width, units=8, backward_ratio=1.0, group="rotary", scaled=scaled
    )


@given(sizes, sizes, st.floats(0.0, 1.0))
def test_strided_kernels_take_the_longer_of_their_bytes_and_elements(moved, elements, part):
    plain = float(work_time(Work("memory", 0.0, moved), H100, PROFILE))
    strided = Work("memory", 0.0, moved, strided_bytes=part * moved, strided_elements=elements)
    got = float(work_time(strided, H100, PROFILE))
    rest = (1 - part) * moved / (H100.memory_bytes_per_s * H100.memory_fraction)
    alone = H100.kernel_launch_s + rest + elements / H100.strided_elements_per_s
    assert got == pytest.approx(max(plain, alone))
    assert float(work_time(strided, replace(H100, strided_elements_per_s=np.inf), PROFILE)) == plain


@given(st.lists(sizes, min_size=1, max_size=5))
def test_arrays_cost_what_each_of_them_costs(elements):
    def time(made):
        return work_time(Work("memory", 0.0, 1e6, strided_elements=made), H100, PROFILE)

    assert time(np.array(elements)) == pytest.approx([float(time(e)) for e in elements])


@pytest.mark.parametrize(
    ("accelerator", "tokens", "width", "forward_ms", "backward_ms"),
    [("a100-80gb-sxm", 16384, 10240, 3.817, 4.557), ("b200-sxm", 8192, 5120, 0.587, 0.599)],
)
def test_eager_rotations_take_what_was_measured(accelerator, tokens, width, forward_ms, backward_ms):
    """Transformers' ``apply_rotary_pos_emb`` (github:linkedin/Liger-Kernel, all_benchmark_data.csv)."""
    rates, shape, op = rates_of(accelerator), Shape(1, tokens, 1, 0), unfused(rotation(width), EAGER)
    forward, backward = (1e3 * total_time(run(shape), rates, PROFILE) for run in (op.forward, op.backward))
    assert forward == pytest.approx(forward_ms, rel=0.25)
    assert backward == pytest.approx(backward_ms, rel=0.25)
    assert forward > 1.3 * 20 * tokens * width / (rates.memory_bytes_per_s * rates.memory_fraction) * 1e3


def chains() -> list[Operator]:
    wide = Part(64, 64, "x")
    down = ExpertGemm("down", 8, 2, wide, (wide,), "row", bias=True)
    clamped = ExpertActivation("act", 1, 128, 64, 64, 64, gate="clamped_offset")
    ways = [("complex", "fused"), ("eager", "fused"), ("fused", "eager")]
    turned = [
        unfused(rotation(64, scaled=True), FUSED | {"rotary": rotary, "scaled_rotary": scaled})
        for rotary, scaled in ways
    ]
    return [
        *turned,
        unfused(clamped, FUSED | {"clamp": "eager"}),
        replace(down, bias_chain=bias_chain(down, "weighted")),
    ]


def test_only_cores_of_gpus_are_bound_by_instructions():
    shape, op = Shape(1, 4096, 1, 0), unfused(rotation(4096), EAGER)
    chips = [load_accelerator(name) for name in accelerator_names()]
    for chip in chips:
        rates = device_rates(chip, find_precision("bf16" if "bf16" in chip.peak_flops_per_s else "fp16"))
        free = replace(rates, strided_elements_per_s=np.inf)
        late = total_time(op.forward(shape), rates, PROFILE) > total_time(op.forward(shape), free, PROFILE)
        assert chip.kind == "gpu" or not late, chip.name
    assert {chip.kind for chip in chips} > {"gpu"}


@pytest.mark.parametrize("op", chains()[:4], ids=lambda op: op.name)
def test_wide_elements_move_more_and_are_as_many(op):
    narrow, wide = (op.forward(Shape(1, 128, 1, 0, element_bytes=b))[0] for b in (2, 4))
    assert wide.strided_bytes == 2 * narrow.strided_bytes
    assert wide.strided_elements == narrow.strided_elements


@pytest.mark.parametrize("op", chains(), ids=lambda op: op.name)
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_strided_bytes_are_a_part_of_a_chains(op, element_bytes):
    shape = Shape(1, 128, 1, 0, element_bytes=element_bytes)
    for work in (*op.forward(shape), *op.backward(shape)):
        assert work.strided_bytes <= work.bytes
        assert (work.strided_bytes > 0) == (work.strided_elements > 0)
    assert any(work.strided_elements > 0 for work in op.forward(shape))


def test_a_scaled_rotation_leaves_the_fused_kernel_where_a_stacks_kernel_cannot_scale():
    shape = Shape(1, 128, 1, 0)
    for name, apart in [("megatron-core", True), ("megatron-bridge", True), ("generic", False)]:
        turned, scaled = (unfused(rotation(64, s), find_profile(name).fusions) for s in (False, True))
        assert turned.forward(shape)[0].kernels == 1
        assert (scaled.forward(shape)[0].bytes > 4 * turned.forward(shape)[0].bytes) == apart


@pytest.mark.parametrize("name", ["fsdp", "fsdp1", "deepspeed", "native"])
def test_targets_that_train_models_of_transformers_turn_halves(name):
    assert find_profile(find_target(name).profile).rotary == "eager"


def test_complex_rotations_move_as_much_and_make_fewer_elements_apart():
    shape = Shape(1, 128, 1, 0)
    (halves,), (pairs,) = (
        unfused(rotation(64), FUSED | {"rotary": how}).forward(shape) for how in ("eager", "complex")
    )
    assert pairs.bytes == halves.bytes
    assert pairs.strided_elements < halves.strided_elements / 4
    assert pairs.kernels < halves.kernels
