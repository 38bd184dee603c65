"""Scans: linear in the tokens, conserved over ranks, the same for arrays and one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.convolution import CausalConvolution
from meshwright.costmodels.delta import DeltaRule
from meshwright.costmodels.part import Part
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recurrence import GatedRecurrence
from meshwright.costmodels.roofline import device_rates, total_time
from meshwright.costmodels.scan import ChunkedScan, SelectiveScan
from meshwright.costmodels.work import Shape
from meshwright.hardware.catalogue import load_accelerator

H100 = device_rates(load_accelerator("h100-sxm"), find_precision("bf16"))
PROFILE = find_profile("generic")
TENSOR = 4
LONGEST_BLOCK = 2048
heads = st.sampled_from((4, 8, 16))
widths = st.sampled_from((16, 32, 64, 128))


@st.composite
def scans(draw):
    """Any scan; heads, groups and channels divide by ``TENSOR``."""
    count, width, state = draw(heads), draw(widths), draw(widths)
    part = Part(count * width, count, "heads")
    return draw(
        st.sampled_from(
            (
                CausalConvolution("op", (part,), 4, draw(st.booleans()), saves_output=draw(st.booleans())),
                SelectiveScan("op", count * width, state),
                ChunkedScan("op", count, width, 4, state, draw(st.sampled_from((64, 256)))),
                DeltaRule("op", count, 4, width, state),
                GatedRecurrence("op", count * width, count),
            )
        )
    )


@st.composite
def shapes(draw):
    """A micro-batch whose sequences are whole chunks of any scan."""
    return Shape(draw(st.integers(1, 8)), LONGEST_BLOCK * draw(st.integers(1, 16)), 1, 0)


def works(op, shape):
    return (*op.forward(shape), *op.backward(shape))


def flops(op, shape):
    return sum(float(w.flops) for w in works(op, shape))


def moved(op, shape):
    return sum(float(w.bytes) for w in works(op, shape))


@given(scans(), shapes(), st.integers(2, 64), st.sampled_from(("sequences", "sequence_length")))
def test_flops_and_saved_bytes_are_linear_in_the_tokens(op, shape, times, field):
    more = replace(shape, **{field: getattr(shape, field) * times})
    assert flops(op, more) == pytest.approx(times * flops(op, shape))
    assert op.saved_bytes(more) == pytest.approx(times * op.saved_bytes(shape))


@given(scans(), shapes(), st.sampled_from((2, TENSOR)))
def test_flops_weights_and_saved_bytes_over_tensor_ranks_sum_to_the_whole(op, shape, tp):
    split = replace(shape, tp=tp)
    assert tp * flops(op, split) == pytest.approx(flops(op, shape))
    assert tp * op.local_parameters(split) == pytest.approx(op.parameters())
    assert tp * op.saved_bytes(split) == pytest.approx(op.saved_bytes(shape))


@given(scans(), shapes(), st.sampled_from((2, TENSOR)))
def test_ranks_together_move_no_fewer_bytes_than_one(op, shape, tp):
    assert tp * moved(op, replace(shape, tp=tp)) >= moved(op, shape) * (1 - 1e-12)


@given(scans(), shapes(), st.integers(1, 4))
def test_work_and_time_grow_with_sequences_and_length(op, shape, more):
    for field in ("sequences", "sequence_length"):
        larger = replace(shape, **{field: getattr(shape, field) * (1 + more)})
        assert flops(op, larger) > flops(op, shape)
        assert moved(op, larger) > moved(op, shape)
        small, large = (total_time(works(op, s), H100, PROFILE) for s in (shape, larger))
        assert large >= small


@given(scans(), shapes())
def test_backward_works_at_least_as_much_as_forward(op, shape):
    there, back = (sum(float(w.flops) for w in p) for p in (op.forward(shape), op.backward(shape)))
    assert back >= there > 0


@given(scans(), st.lists(shapes(), min_size=1, max_size=4))
def test_scans_are_priced_as_arrays_or_one_by_one(op, drawn):
    together = Shape(
        np.array([s.sequences for s in drawn]), np.array([s.sequence_length for s in drawn]), 1, 0
    )
    for many, *single in zip(works(op, together), *[works(op, s) for s in drawn], strict=True):
        for name in ("flops", "bytes"):
            values = np.broadcast_to(getattr(many, name), len(drawn))
            assert values.tolist() == pytest.approx([float(getattr(w, name)) for w in single])
    saved = np.broadcast_to(op.saved_bytes(together), len(drawn))
    assert saved.tolist() == pytest.approx([float(op.saved_bytes(s)) for s in drawn])


@given(shapes(), heads, widths)
def test_a_scan_over_a_long_sequence_costs_less_than_attention_over_all_of_it(shape, count, width):
    from meshwright.costmodels.attention import Attention

    shape = replace(shape, sequence_length=64 * LONGEST_BLOCK)
    core = Attention("core", count, count, width, width)
    dense = sum(float(w.flops) for w in core.forward(shape))
    for op in (ChunkedScan("op", count, width, count, width), DeltaRule("op", count, count, width, width)):
        assert sum(float(w.flops) for w in op.forward(shape)) < dense


@given(shapes(), st.sampled_from((32, 64, 128)))
def test_shorter_chunks_do_fewer_flops_below_the_diagonal_and_hand_on_more_states(shape, chunk):
    short, long = (ChunkedScan("op", 8, 64, 2, 128, c) for c in (chunk, 2 * chunk))
    assert flops(short, shape) < flops(long, shape)
    handed_on = [op.forward(shape)[2].bytes for op in (short, long)]
    assert handed_on[0] == 2 * handed_on[1]
