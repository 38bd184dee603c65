"""Schedules as they are priced: the same work in another order, and what it holds meanwhile."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.schedule import build, legal, names, splits_backward
from meshwright.costmodels.step import chunk_times, price
from meshwright.costmodels.tables import build_tables
from tests.costmodels.cases import SMALL, even_counts, make_setting, make_strategies
from tests.strategies import decoders

DEEP = replace(SMALL, layers=46, vocab=64)
"""48 layers with embedding and head: 4, 8 and 16 equal chunks."""


def chunks_a_rank(name, pp):
    return 1 if legal(name, pp, 1, 4 * pp) is None else 2


def priced(name, pp=4, m=16, **overrides):
    """Price equal chunks under a schedule."""
    vpp = chunks_a_rank(name, pp)
    strategies = make_strategies(schedule=name, pp=pp, vpp=vpp, num_microbatches=m)
    return price(make_setting(DEEP, **overrides), strategies, even_counts(DEEP, pp * vpp))


@given(decoders(), st.sampled_from((1, 2)), st.booleans())
def test_weight_gradients_are_part_of_every_backward(spec, tp, sequence_parallel):
    tables = build_tables(
        make_setting(spec), make_strategies(tp=tp, sequence_parallel=int(sequence_parallel))
    )
    assert (tables.weight_s >= 0).all()
    assert (tables.weight_s[..., None] <= tables.backward_s * (1 + 1e-12)).all()
    blocks = [i for i, kind in enumerate(make_setting(spec).kinds) if kind.role == "block"]
    assert (tables.weight_s[:, blocks] > 0).all()


@pytest.mark.parametrize("name", names())
def test_telling_weight_gradients_apart_loses_no_work(name):
    pp, vpp = 4, chunks_a_rank(name, 4)
    strategies = make_strategies(schedule=name, pp=pp, vpp=vpp, num_microbatches=16)
    tables, counts = build_tables(make_setting(DEEP), strategies), even_counts(DEEP, pp * vpp)
    forward, backward, weight = chunk_times(build(name, pp, vpp, 16), tables, np.array([0]), counts)
    own = (counts * tables.backward_s[:, None]).sum(axis=(2, 3)) + tables.pass_s
    assert backward + weight == pytest.approx(own)
    assert (weight > 0).any() == splits_backward(name)
    assert (forward > 0).all()
    assert (backward > 0).all()


@pytest.mark.parametrize("name", names())
def test_causes_add_up_under_every_schedule(name):
    """Without transfers a rank's time is its passes and the bubble."""
    got = priced(name)
    assert sum(got.breakdown.values()) == pytest.approx(got.step_time_s)
    assert got.breakdown["bubble"][0] > 0
    assert got.flops[0].sum() == pytest.approx(priced("1f1b").flops[0].sum())


def test_one_rank_takes_as_long_either_way():
    """Nothing waits for an input gradient on a single rank."""
    setting, counts = make_setting(DEEP), even_counts(DEEP, 1)
    plain, apart = (
        price(setting, make_strategies(schedule=name, num_microbatches=4), counts)
        for name in ("1f1b", "zb1p")
    )
    assert apart.step_time_s == pytest.approx(plain.step_time_s)


def test_weight_gradients_fill_bubbles():
    bubble = {name: priced(name).breakdown["bubble"][0] for name in ("1f1b", "zb1p", "zb2p", "zbv")}
    assert bubble["zb2p"] < bubble["zb1p"] < bubble["1f1b"]
    assert bubble["zbv"] < bubble["1f1b"]


def test_memory_is_what_the_order_holds():
    """V-min below V-half below ZB-V, ZB-V and ZB-H1 about as 1F1B's first rank, ZB-H2 nearly twice that."""
    kept = {n: priced(n, 8, 32).memory["activations"].max() for n in names() if n != "gpipe"}
    assert kept["v_min"] < kept["v_half"] < kept["zbv"]
    assert kept["zbv"] == pytest.approx(kept["1f1b"], rel=0.15)
    assert kept["zb1p"] == pytest.approx(kept["1f1b"], rel=0.15)
    assert 1.7 * kept["zb1p"] < kept["zb2p"] < 2 * kept["zb1p"]


def test_gradients_overlap_with_the_last_weight_pass_only():
    """A reduction starts when the last gradient of the rank is complete."""
    hidden = {}
    for name in ("1f1b", "zb1p"):
        strategies = make_strategies(schedule=name, pp=4, dp=2, num_microbatches=16)
        setting = make_setting(DEEP, overlap_gradients=1.0, overlap_cost=0.0)
        got = price(setting, strategies, even_counts(DEEP, 4))
        hidden[name] = got.hidden["gradient_reduction"][0]
    assert 0 < hidden["zb1p"] <= hidden["1f1b"]
