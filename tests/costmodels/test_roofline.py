"""Roofline by hand: whole tiles, waves and legs on a device with round numbers."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.attention_kernels import find_attention_kernel
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.product import gemm_work
from meshwright.costmodels.profiles import sourced_profile
from meshwright.costmodels.roofline import (
    VECTOR_FRACTION,
    DeviceRates,
    device_rates,
    gemm_flops_time,
    total_time,
    work_time,
)
from meshwright.costmodels.tiles import CACHE_SPEED, LOOPS, PARTIAL_BYTES, PLAIN_LOOP
from meshwright.costmodels.work import Work
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.errors import MeshwrightError

PROFILE = sourced_profile("generic")
ROUND = DeviceRates(1e12, 1e10, 1.0, 1.0, 1e-6, 8)


def test_memory_work_is_a_launch_and_its_bytes():
    assert work_time(Work("memory", 0.0, 1e7, kernels=2), ROUND, PROFILE) == pytest.approx(2e-6 + 1e-3)


def test_no_bytes_are_no_launch():
    assert work_time(Work("memory", 0.0, 0.0), ROUND, PROFILE) == 0
    assert total_time((), ROUND, PROFILE) == 0


def test_one_wave_of_the_largest_tiles():
    """8 cores, one tile of 256 x 128 each: the product itself, and the fill of its pipeline."""
    work = gemm_work(4 * 256, 2 * 128, 1024, 2)
    assert gemm_flops_time(work, ROUND) == pytest.approx(
        work.flops / 1e12 * (1024 + PLAIN_LOOP.fill_k) / 1024
    )


def test_one_tile_more_than_a_wave_costs_up_to_a_wave():
    fits, spills = (float(gemm_flops_time(gemm_work(m, 256, 1024, 2), ROUND)) for m in (1024, 1025))
    assert fits < spills <= 2 * fits


def test_a_thin_product_waits_for_memory():
    work = gemm_work(1, 4096, 4096, 2)
    assert work_time(work, ROUND, PROFILE) == pytest.approx(1e-6 + work.bytes / 1e10)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_reaches_its_share_and_half_of_it_at_the_half_length(backward):
    rates = find_attention_kernel("flash-2").rates_on("ampere")
    share = rates.backward if backward else rates.forward
    device = replace(ROUND, architecture="ampere")
    long, half = (
        float(work_time(Work("attention", 1e9, 1.0, k=k, n=128, core="flash-2"), device, PROFILE, backward))
        - 1e-6
        for k in (10**9, rates.half_length)
    )
    assert long == pytest.approx(1e-3 / share, rel=1e-5)
    assert half == pytest.approx(2e-3 / share)


def test_a_group_of_products_starts_each_of_them():
    one = gemm_work(1024, 1024, 1024, 2)
    many = gemm_work(1024, 1024, 1024, 2, groups=8)
    plain = replace(PROFILE, grouped_fill=0)
    slower = float(gemm_flops_time(many, ROUND, PROFILE) / gemm_flops_time(many, ROUND, plain))
    assert slower == pytest.approx(1 + PROFILE.grouped_fill / 1024)
    assert gemm_flops_time(one, ROUND, PROFILE) == gemm_flops_time(one, ROUND, plain)


def test_low_precision_products_reach_their_own_share():
    rates = replace(ROUND, low_peak_flops_per_s=2e12, low_gemm_fraction=0.5)
    work = gemm_work(4096, 4096, 4096, 2, low_precision=True)
    half, whole = (float(gemm_flops_time(work, r)) for r in (rates, replace(rates, low_gemm_fraction=1.0)))
    assert half == pytest.approx(2 * whole)


def test_rates_are_those_of_the_accelerator():
    a100 = load_accelerator("a100-80gb-sxm")
    rates = device_rates(a100, find_precision("bf16"))
    assert rates.peak_flops_per_s == 312e12  # dense; NVIDIA A100 datasheet
    assert rates.num_cores == 108
    assert rates.memory_bytes_per_s == a100.memory_bandwidth_bytes_per_s
    # 19.5 TFLOP/s outside the tensor cores, 156 with tf32: a GEMM takes 8 times longer in fp32.
    single, tensor = (device_rates(a100, find_precision(p)).peak_flops_per_s for p in ("fp32", "tf32"))
    assert tensor / single == pytest.approx(8)


def test_a_dtype_that_the_accelerator_lacks_is_refused_by_name():
    with pytest.raises(MeshwrightError, match=r"'bf16' computes in bf16, which v100.* does not have; it has"):
        device_rates(load_accelerator("v100-32gb"), find_precision("bf16"))


def test_rates_broadcast():
    rates = DeviceRates(np.array([1e12, 2e12]), 1e10, 1.0, 1.0, 0.0, 8)
    one, two = gemm_flops_time(gemm_work(1024, 1024, 1024, 2), rates)
    assert one == 2 * two


def test_vector_work_runs_on_the_fp32_units_or_is_bound_by_memory_where_they_are_not_known():
    work = Work("vector", 1e12, 1e9)
    known = replace(ROUND, vector_flops_per_s=1e11, kernel_launch_s=0.0)
    assert work_time(work, known, PROFILE) == pytest.approx(1e12 / (VECTOR_FRACTION * 1e11))
    assert work_time(work, replace(known, vector_flops_per_s=None), PROFILE) == pytest.approx(1e9 / 1e10)


def test_what_was_measured_on_a_device_comes_before_what_its_architecture_has():
    shares = {"forward": 0.9, "backward": 0.8, "half_length": 0.0, "narrow": 1.0}
    plain = load_accelerator("h100-sxm")
    achieved = replace(plain.achieved, gemm_fill_k=0.0, attention_shares={"flash-2": shares})
    recipe = find_precision("bf16")
    before, after = (device_rates(a, recipe) for a in (plain, replace(plain, achieved=achieved)))
    assert (before.tiles, before.attention) == (PLAIN_LOOP, {})
    product, core = gemm_work(4096, 4096, 512, 2), Work("attention", 1e12, 1.0, k=4096, n=128, core="flash-2")
    assert gemm_flops_time(product, before) / gemm_flops_time(product, after) == pytest.approx(
        1 + PLAIN_LOOP.fill_k / 512
    )
    peak = after.peak_flops_per_s
    assert work_time(core, after, PROFILE) == pytest.approx(1e12 / (0.9 * peak) + after.kernel_launch_s)
    other = Work("attention", 1e12, 1.0, k=4096, n=128, core="flash-3")
    assert work_time(other, after, PROFILE) == work_time(other, before, PROFILE)


@pytest.mark.parametrize(("name", "loop"), [("a100-80gb-sxm", LOOPS["ampere"]), ("h100-sxm", PLAIN_LOOP)])
def test_a_device_runs_tiles_as_its_architecture_does(name, loop):
    assert device_rates(load_accelerator(name), find_precision("bf16")).tiles == loop


def test_partial_results_of_a_split_sum_pass_through_the_devices_memory():
    """Two tiles on 8 cores, of a sum so long that its operands are split all the same."""
    work = gemm_work(256, 256, 65_536, 2)
    slow, fast = (float(gemm_flops_time(work, replace(ROUND, memory_bytes_per_s=1e10 * n))) for n in (1, 1e6))
    passes = 4 * PARTIAL_BYTES * 256 * 256 / CACHE_SPEED
    assert slow - fast == pytest.approx(passes / 1e10, rel=1e-3)


@pytest.mark.parametrize(
    ("recipe", "measured_us"),
    [("bf16", 13_102), ("fp8-current", 6_812), ("mxfp8", 7_162), ("nvfp4-all", 3_764)],
)
def test_products_of_a_layer_take_on_b300_what_was_measured_there_and_a_little_more_under_load(
    recipe, measured_us
):
    """Transformer Engine's profile of four products, three passes, 15,872 rows, operands quantised before.

    Its loops are short: training sustains some 0.94 of their rate.
    """
    precision, rows = find_precision(recipe), 15_872
    rates = device_rates(load_accelerator("b300-sxm"), precision, fitted=False)
    seconds = 0.0
    for n, k in [(12_288, 4_096), (4_096, 4_096), (16_384, 4_096), (4_096, 16_384)]:
        for m, outputs, inner in [(rows, n, k), (rows, k, n), (n, k, rows)]:
            work = gemm_work(
                m, outputs, inner, 2, operand_bytes=precision.product_bytes, low_precision=recipe != "bf16"
            )
            seconds += float(work_time(work, rates, PROFILE))
    assert 1.0 <= 1e6 * seconds / measured_us <= 1.10
