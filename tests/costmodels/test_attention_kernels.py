"""Attention kernels: rates by architecture, and what goes through memory."""

from dataclasses import replace

import pytest

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.attention_kernels import attention_kernels, find_attention_kernel
from meshwright.costmodels.work import Shape
from meshwright.hardware.errors import UnknownNameError

ONE = Shape(2, 64, 1, 0)
CORE = Attention("core", 4, 4, 8, 8)


@pytest.mark.parametrize("kernel", attention_kernels().values(), ids=attention_kernels())
def test_every_kernel_is_plausible(kernel):
    assert kernel.title and kernel.source
    for rates in kernel.rates.values():
        assert 0 < rates.backward <= rates.forward < 1
        assert 0 < rates.half_length < 4096
    assert (kernel.saved_bytes > 0) == (kernel.forward_bytes > 0) == (not kernel.flash)
    assert (kernel.working_bytes > 0) == (not kernel.flash)
    assert kernel.working_bytes <= kernel.backward_bytes  # what is alive was written


@pytest.mark.parametrize(
    ("kernel", "architecture", "length", "backward", "tflops", "peak"),
    [
        # causal, head dimension 128; sources in data/attention.toml
        ("flash-2", "hopper", 512, False, 191, 989),
        ("flash-2", "hopper", 16384, False, 335, 989),
        ("flash-3", "hopper", 2048, False, 521, 989),
        ("flash-3", "hopper", 16384, False, 616, 989),
        ("cudnn", "hopper", 16384, True, 579, 989),
        ("cudnn", "blackwell", 2048, False, 1097, 2500),
        ("cudnn", "blackwell", 16384, True, 1328, 2500),
        ("cudnn", "blackwell-ultra", 16384, False, 1915, 2500),
    ],
)
def test_rates_are_those_measured(kernel, architecture, length, backward, tflops, peak):
    rates = find_attention_kernel(kernel).rates_on(architecture)
    assert float(rates.share(length, 128, backward=backward)) * peak == pytest.approx(tflops, rel=0.08)


def test_flash_attention_2_on_a100():
    """Forward and backward together, causal, of 312 TFLOP/s: 99 at 512 tokens, 155 at 2k, 189 at 16k."""
    rates = find_attention_kernel("flash-2").rates_on("ampere")
    for length, tflops in ((512, 99), (2048, 155), (16384, 189)):
        ways = [float(rates.share(length, 128, backward=b)) for b in (False, True)]
        assert 3.5 / (1 / ways[0] + 2.5 / ways[1]) * 312 == pytest.approx(tflops, rel=0.05)


def test_an_architecture_without_figures_has_those_of_its_parent_or_of_others():
    kernel = find_attention_kernel("flash-2")
    assert kernel.rates_on("blackwell-ultra") == kernel.rates["blackwell"]
    assert kernel.rates_on("") == kernel.rates_on("tpu") == kernel.rates["other"]


def test_narrow_heads_are_slower():
    rates = find_attention_kernel("cudnn").rates_on("hopper")
    shares = [float(rates.share(4096, d, backward=False)) for d in (32, 64, 96, 128, 192)]
    assert shares[0] == shares[1] < shares[2] < shares[3] == shares[4]


@pytest.mark.parametrize(
    ("window", "architecture", "measured"),
    [(128, "blackwell", (165 / 2500, 182 / 2500)), (1024, "hopper", (355 / 989, 300 / 989))],
)
def test_a_window_is_the_length_that_counts(window, architecture, measured):
    """Both passes together, 2.5 times the FLOPs in the second (cuDNN frontend's tables, gpt-oss's heads)."""
    core = Attention("core", 64, 8, 64, 64, window=window, core="cudnn")
    rates = find_attention_kernel("cudnn").rates_on(architecture)

    def time(shares):
        return 1 / shares[0] + 2.5 / shares[1]

    ((forward,), (backward,)) = (run(Shape(1, 16384, 1, 0)) for run in (core.forward, core.backward))
    got = [float(rates.share(w.k, w.n, backward=b)) for w, b in ((forward, False), (backward, True))]
    full = [float(rates.share(16384, 64, backward=b)) for b in (False, True)]
    assert time(got) == pytest.approx(time(measured), rel=0.15)
    assert time(got) > 1.2 * time(full)


def test_a_causal_window_runs_like_the_causal_sequence_in_which_queries_see_as_many_keys():
    def reach(window, length, causal=True):
        core = Attention("core", 8, 8, 64, 64, causal=causal, window=window)
        return core.reach(Shape(1, length, 1, 0))

    assert reach(512, 8192) == reach(None, 1024)
    assert reach(512, 8192, causal=False) == 512
    assert reach(8192, 1024) == reach(None, 1024)


def test_unfused_kernels_compute_the_whole_square_and_move_it():
    flash, fused, plain = (
        replace(CORE, flash=find_attention_kernel(name).flash, core=name)
        for name in ("flash-2", "megatron-softmax", "torch")
    )
    assert fused.forward(ONE)[0].flops == pytest.approx(flash.forward(ONE)[0].flops * 64 / 32.5)
    scores = 2 * 4 * 64 * 64
    moved = [sum(float(w.bytes) for w in op.forward(ONE)) for op in (flash, fused, plain)]
    assert moved[1] - moved[0] == scores * (2 * 2 + 4)
    assert moved[2] - moved[1] == scores * (24 - 4)
    kept = [float(op.core_bytes(ONE)) for op in (fused, plain)]
    assert kept == [2 * scores, 6 * scores]


def test_an_unknown_kernel_is_refused_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"attention kernel.*'flash-9'.*flash-2"):
        find_attention_kernel("flash-9")
