"""Products in tiles: what a measured one tells of waves, and what any of them obeys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.tiles import LOOPS, PLAIN_LOOP, TileLoop, loop_on, product_time

sizes = st.integers(1, 16_384)
loops = st.builds(TileLoop, st.floats(0, 512), st.floats(0, 128))
cores = st.integers(1, 304)

MEASURED_TFLOPS = {
    (1024, 1024, 1024): 120.1,
    (2048, 1024, 4096): 191.5,
    (1024, 4096, 1024): 144.9,
    (1024, 4096, 2048): 159.3,
    (1024, 4096, 4096): 168.5,
    (2048, 2048, 8192): 213.3,
    (4096, 1024, 16_384): 255.8,
    (8192, 1024, 4096): 213.3,
    (4096, 4096, 1024): 224.7,
    (4096, 4096, 4096): 254.8,
    (8192, 4096, 1024): 238.1,
    (4096, 12_288, 4096): 271.8,
    (8192, 8192, 8192): 293.7,
}
"""Of PyTorch on A100, bf16 (github:ai-dynamo/aiconfigurator@095f58a5, a100_sxm/gemm/vllm)."""


def seconds(m, n, k, loop, *, groups=1, cores=108, rate=300e12, memory=1.7e12):
    """Return the time on an A100, or on what the keywords say."""
    return product_time(
        (m, n, k), groups=groups, cores=cores, loop=loop, flops_per_s=rate, memory_bytes_per_s=memory
    )


def scatter(loop):
    """Return the mean error of the measured products, one level taken off."""
    m, n, k = np.array(list(MEASURED_TFLOPS), dtype=np.float64).T
    ratio = np.log(seconds(m, n, k, loop) * np.array(list(MEASURED_TFLOPS.values())) * 1e12 / (2 * m * n * k))
    return float(np.abs(ratio - np.median(ratio)).mean())


def test_what_products_of_every_shape_reach_on_a100_is_told_by_its_tiles():
    assert scatter(LOOPS["ampere"]) < 0.07
    assert scatter(PLAIN_LOOP) > 2 * scatter(LOOPS["ampere"])


def test_tiles_that_need_a_second_wave_cost_one_unless_the_sum_is_long_enough_to_split():
    """128 tiles of 256 x 128 on 108 cores: measured 0.57, 0.73 and 0.88 of what large products reach.

    The library leaves out smaller tiles that would do better; here they count.
    """
    loop = LOOPS["ampere"]
    plateau = 8192**3 / seconds(8192, 8192, 8192, loop)
    shares = [2048 * 2048 * k / seconds(2048, 2048, k, loop) / plateau for k in (4096, 8192, 16_384)]
    assert shares == sorted(shares)
    assert shares == pytest.approx([0.57, 0.73, 0.88], abs=0.16)


@given(m=sizes, n=sizes, k=sizes, loop=loops, cores=cores, groups=st.integers(1, 64))
def test_no_product_beats_the_sustained_rate(m, n, k, loop, cores, groups):
    least = groups * 2.0 * m * n * k / 300e12
    assert seconds(m, n, k, loop, cores=cores, groups=groups) >= least * (1 - 1e-12)


@given(m=sizes, n=sizes, k=sizes, loop=loops, more=st.integers(1, 4096))
def test_more_work_takes_no_less_time(m, n, k, loop, more):
    least = seconds(m, n, k, loop)
    for larger in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert seconds(*larger, loop) >= least
    assert seconds(m, n, k, loop, groups=2) >= least


@given(m=sizes, n=sizes, k=sizes, loop=loops)
def test_rows_and_columns_may_change_places(m, n, k, loop):
    assert seconds(m, n, k, loop) == pytest.approx(seconds(n, m, k, loop))


@given(m=sizes, n=sizes, k=sizes, loop=loops)
def test_a_sum_is_split_only_where_partial_results_are_cheap(m, n, k, loop):
    """With a memory that never delivers no product is split; a faster one can only help."""
    unsplit, usual, free = (seconds(m, n, k, loop, memory=rate) for rate in (1e-3, 1.7e12, 1e30))
    assert unsplit >= usual >= free
    if k <= loop.fill_k:
        assert free >= unsplit / 2  # what a split saves of k it spends on filling


@given(k=sizes, loop=loops)
def test_one_tile_a_core_is_never_split_into_more_than_a_wave(k, loop):
    """108 tiles on 108 cores: a split only adds tiles to fill."""
    assert seconds(108 * 256, 128, k, loop, memory=1e30) == pytest.approx(
        108 * 2.0 * 256 * 128 * (k + loop.fill_k) / 300e12
    )


@given(k=sizes, loop=loops, groups=st.integers(1, 64), rows=st.integers(1, 64))
def test_products_of_a_group_share_no_tile(k, loop, groups, rows):
    """A few rows each (experts with few tokens) fill as many tiles as whole ones."""
    few, whole = (seconds(m, 64, k, loop, groups=groups, memory=1e30) for m in (rows, 64))
    assert few == pytest.approx(whole)


@given(k=sizes, loop=loops)
def test_a_lone_small_tile_is_split_over_eight_cores_at_most(k, loop):
    """One of 64 x 64: the operands that it loads for each FLOP are 8/3 of those of the largest."""
    slower = (1 + loop.reuse / 32) / (1 + loop.reuse * 3 / 256)
    assert seconds(64, 64, k, loop, memory=1e30) == pytest.approx(
        108 * 2.0 * 64 * 64 * slower * (k / 8 + loop.fill_k) / 300e12
    )


@given(shapes=st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=5), loop=loops)
def test_arrays_are_their_elements(shapes, loop):
    m, n, k = np.array(shapes).T
    each = [float(seconds(*shape, loop)) for shape in shapes]
    assert seconds(m, n, k, loop) == pytest.approx(each)


def test_a_device_has_its_architectures_loop_and_its_own_fill():
    ampere = LOOPS["ampere"]
    assert loop_on("ampere") == loop_on("ampere-refined") == ampere
    assert loop_on("ampere-refined", 40.0) == TileLoop(40.0, ampere.reuse)
    assert loop_on("") == loop_on("nobody's") == PLAIN_LOOP
