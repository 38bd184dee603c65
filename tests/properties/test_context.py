"""Context parallelism: work is shared out evenly, and what travels is what the papers count."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.tables import BACKWARD, FORWARD, build_tables
from meshwright.costmodels.work import Shape
from tests.costmodels.cases import make_setting, make_strategies

degrees = st.sampled_from([1, 2, 4, 8])


@st.composite
def parts(draw):
    """A core, and a sequence cut over ``cp`` ranks of which ``ulysses`` exchange heads."""
    kv = draw(st.sampled_from([1, 2, 4, 8]))
    window = draw(st.none() | st.integers(1, 4096))
    core = Attention("core", 8 * kv, kv, 64, draw(st.sampled_from([64, 128])), window=window)
    cp = draw(degrees)
    ulysses = draw(st.sampled_from([u for u in (1, 2, 4, 8) if u <= cp]))
    length = 64 * draw(st.integers(1, 64))
    return core, Shape(
        draw(st.integers(1, 3)), length, 1, 0, cp=cp, ulysses=ulysses, ring=draw(st.booleans())
    )


def alone(shape):
    return replace(shape, cp=1, ulysses=1)


def flops(works):
    return sum(float(w.flops) for w in works)


@given(parts())
def test_ranks_share_the_work_of_a_sequence_evenly(drawn):
    core, shape = drawn
    assert shape.cp * flops(core.forward(shape)) == pytest.approx(flops(core.forward(alone(shape))))
    assert shape.cp * core.saved_bytes(shape) == pytest.approx(core.saved_bytes(alone(shape)))


@given(parts())
def test_nothing_travels_without_context_parallelism(drawn):
    core, shape = drawn
    assert not any(np.any(t.bytes) for way in core.traffic(alone(shape)) for t in way)
    assert core.transient_bytes(alone(shape)) == 0


@given(parts())
def test_keys_and_values_reach_every_rank_that_does_not_exchange_heads(drawn):
    """A ring passes all parts but a rank's own; a gather's whole tensor is all parts (arXiv 2310.01889)."""
    core, shape = drawn
    rest = shape.cp // shape.ulysses
    own = max(core.kv_heads, shape.ulysses) * (core.head_dim + core.v_head_dim) * shape.tokens * 2
    forward, backward = core.traffic(shape)
    moved = {t.collective: float(t.bytes) for t in forward if t.group == "ring"}
    assert moved["send_recv"] == pytest.approx((rest - 1) * own * shape.ring)
    assert moved["all_gather"] == pytest.approx((rest > 1) * rest * own * (not shape.ring))
    back = {t.collective: float(t.bytes) for t in backward if t.group == "ring"}
    assert back["send_recv"] == pytest.approx(2 * moved["send_recv"])  # gradients travel as well
    assert back["reduce_scatter"] == moved["all_gather"]


@given(parts())
def test_exchanging_heads_moves_each_rank_s_own_tokens_once_each_way(drawn):
    """Bytes fall as 1 / cp: queries, keys, values in, output back (arXiv 2309.14509, section 3)."""
    core, shape = drawn
    sent = [float(t.bytes) for t in core.traffic(shape)[0] if t.group == "ulysses"]
    kv = max(core.kv_heads, shape.ulysses)
    width = core.heads * core.head_dim + kv * (core.head_dim + core.v_head_dim)
    expected = [shape.tokens * n * 2 * (shape.ulysses > 1) for n in (width, core.heads * core.v_head_dim)]
    assert sent == pytest.approx(expected)


SETTING = make_setting(cluster="dgx-h100:2", sequence_length=8192)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.booleans())
def test_context_ranks_share_tokens_states_and_time(cp, tp, ring):
    plain = make_strategies(tp=tp, sequence_parallel=int(tp > 1), dp=2, zero_stage=3)
    cut = make_strategies(tp=tp, sequence_parallel=int(tp > 1), dp=2, cp=cp, ring=int(ring), zero_stage=3)
    one, many = build_tables(SETTING, plain), build_tables(SETTING, cut)
    assert cp * many.state_bytes == pytest.approx(one.state_bytes)
    assert cp * many.saved_bytes == pytest.approx(one.saved_bytes)
    at = FORWARD.index("context_parallel")
    assert (many.forward_parts[..., at] > 0).any() == (cp > 1)
    # No rank does less than its share of the products.
    assert np.all(cp * many.forward_s * (1 + 1e-9) >= one.forward_parts[..., 0])


def test_a_ring_hides_behind_the_core_where_sequences_are_long():
    """The core grows with the square of the length, what travels with the length; here the core is fast."""
    at = BACKWARD.index("context_parallel")
    shares = []
    for length in (1024, 65536):
        setting = make_setting(
            cluster="dgx-h100:1", sequence_length=length, overlap_cost=0.0, attention_fraction=9.0
        )
        tables = build_tables(setting, make_strategies(cp=8, ring=1))
        shares.append(float(tables.backward_parts[0, 1, 0, at] / tables.backward_s[0, 1, 0]))
    assert shares[0] > shares[1]
    assert shares[1] == pytest.approx(0, abs=1e-3)
