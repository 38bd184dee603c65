"""Exchanges: their kernels' own time, and the device that waits for its host behind a dispatch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.exchange import exchange_s, stalled_s
from meshwright.costmodels.layer import price_layer
from meshwright.costmodels.moe import Exchange
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.roofline import device_rates
from meshwright.costmodels.work import Shape
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.span import group_span
from meshwright.planner.importers import load_model

CLUSTER = load_cluster("dgx-h100:1")
RATES = device_rates(CLUSTER.accelerator, find_precision("bf16"))
GENERIC = find_profile("generic")
SHAPE = Shape(1, 4096, 1, 0, ep=8)
PLAIN = Exchange("dispatch", "dispatch", 2048, 8)
ONCE = replace(PLAIN, deduplicated=True)
TIMES = st.floats(0.0, 1e-2)


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0.0, 1e-2))
def test_kernels_of_an_exchange_cost_a_start_and_a_time_for_each_token(sequences, tp, placing):
    shape = replace(SHAPE, sequences=sequences, tp=tp, sequence_parallel=1)
    plain, once = (exchange_s(op, placing, shape, GENERIC, backward=True) for op in (PLAIN, ONCE))
    tokens = sequences * 4096 / tp
    assert plain == pytest.approx(placing / GENERIC.permute_fraction)
    assert once - plain == pytest.approx(GENERIC.exchange_fixed_s + tokens * GENERIC.exchange_token_s)


def test_a_rank_that_holds_all_experts_runs_no_kernels_of_an_exchange():
    alone = replace(SHAPE, ep=np.array([1, 8]))
    own = exchange_s(ONCE, 0.0, alone, GENERIC, backward=True)
    assert own[0] == 0 < own[1]
    assert own[1] == exchange_s(ONCE, 0.0, SHAPE, GENERIC, backward=True)


def test_only_a_forward_dispatch_asks_the_device_for_its_counts():
    asked = {
        (op.direction, backward): exchange_s(op, 0.0, SHAPE, GENERIC, backward=backward) > 0
        for op in (PLAIN, replace(PLAIN, direction="combine"))
        for backward in (False, True)
    }
    assert [case for case, waits in asked.items() if waits] == [("dispatch", False)]


def mixture():
    return next(k for k in load_model("mixtral-8x7b").kinds if any(op.expert for op in k.operators))


@given(TIMES, st.integers(0, 500))
def test_behind_a_dispatch_the_slower_of_host_and_device_counts(busy, launches):
    kind = mixture()
    experts = [op.name for op in kind.operators if op.expert]
    each = {name: busy / len(experts) for name in experts}
    issued = {name: launches / len(experts) for name in experts}
    late = stalled_s(kind, each, issued, GENERIC)
    assert list(late) == ["dispatch"]
    host = launches * GENERIC.forward_host_s
    assert busy + late["dispatch"] == pytest.approx(max(busy, host))
    known = stalled_s(kind, each, issued, replace(GENERIC, dispatch_sync_s=0.0))
    assert known["dispatch"] == 0


@given(st.lists(TIMES, min_size=4, max_size=4))
def test_a_stall_completes_what_host_and_device_need_in_a_row(times):
    """The host issues the experts, then the rest; the device follows: two machines in a row."""
    h, d, rest_h, rest_d = times
    kind = mixture()
    experts = [op.name for op in kind.operators if op.expert]
    each = {name: d / len(experts) for name in experts}
    issued = {name: h / GENERIC.forward_host_s / len(experts) for name in experts}
    stalled = d + stalled_s(kind, each, issued, GENERIC)["dispatch"] + rest_d
    assert max(stalled, h + rest_h) == pytest.approx(max(h + rest_h, max(h, d) + rest_d))


def test_experts_issued_one_by_one_hold_up_a_synchronised_forward_pass_alone():
    kind, groups = mixture(), {"expert": group_span(CLUSTER, 8, 1)}
    slow = replace(GENERIC, forward_host_s=1e-2)
    free = replace(slow, dispatch_sync_s=0.0)
    waits, runs, usual = (price_layer(kind, SHAPE, RATES, groups, p) for p in (slow, free, GENERIC))
    kernels = sum(op.expert for op in kind.operators)  # one each: grouped products, and what is between
    assert waits.forward_s > kernels * slow.forward_host_s > 4 * runs.forward_s
    assert waits.backward_s == runs.backward_s == usual.backward_s
    assert usual.forward_s == pytest.approx(runs.forward_s + GENERIC.dispatch_sync_s, abs=1e-4)
