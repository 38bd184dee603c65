"""The closed form for a pipeline is a bound, and how near it comes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.pipeline_bounds import uniform_bound
from meshwright.costmodels.schedule import build
from meshwright.hardware.errors import UnknownNameError
from tests.costmodels.cases import ROUNDING
from tests.strategies import seconds, timed_schedules


@given(timed_schedules())
def test_no_split_of_the_work_beats_the_closed_form(case):
    schedule, forward_s, backward_s, transfer_s, weight_s = case
    work = forward_s + backward_s + weight_s
    fraction = max((f / w for f, w in zip(forward_s, work, strict=True) if w), default=0.0)
    sizes = schedule.name, schedule.pp, schedule.vpp, schedule.num_microbatches
    makespan_s = simulate(*case).end_s.max(axis=-1)
    for weight in (weight_s.sum(), 2 * weight_s.sum(), np.inf):
        bound_s = uniform_bound(*sizes, work.sum(), fraction, transfer_s, weight)
        assert bound_s <= makespan_s * ROUNDING


def cheapest_makespan_s(schedule, fraction, rounds=60, candidates=200):
    """The least makespan that a random search over splits of one second of work finds."""
    random = np.random.default_rng(5)
    best, step, makespan_s = np.ones(schedule.num_chunks), 0.5, np.inf
    for _ in range(rounds):
        work = best * np.exp(step * random.standard_normal((candidates, schedule.num_chunks)))
        work[0] = best
        work /= work.sum(axis=1, keepdims=True)
        makespans_s = simulate(schedule, fraction * work, (1 - fraction) * work, 0).end_s.max(axis=-1)
        winner = makespans_s.argmin()
        step *= 0.9 if winner == 0 else 1
        best, makespan_s = work[winner], makespans_s[winner]
    return makespan_s


@pytest.mark.parametrize(
    "sizes", [("1f1b", 4, 1, 4), ("1f1b", 8, 1, 8), ("interleaved", 4, 2, 4), ("interleaved", 2, 4, 5)]
)
def test_a_search_for_the_cheapest_split_beats_the_textbook_but_not_the_closed_form(sizes):
    """With few micro-batches unequal stages are faster than equal ones: (m + (p - 1) / v) / p is no bound."""
    name, pp, vpp, m = sizes
    cheapest_s = cheapest_makespan_s(build(*sizes), 1 / 3)
    assert uniform_bound(name, pp, vpp, m, 1.0, 1 / 3) <= cheapest_s < (m + (pp - 1) / vpp) / pp


@given(st.integers(1, 8), st.integers(1, 24), seconds(max_s=0.5))
def test_the_closed_form_is_exact_for_gpipe(pp, m, transfer_s):
    """No split beats equal stages under GPipe, and the bound says by how much they take longer than ideal."""
    bound_s = uniform_bound("gpipe", pp, 1, m, 3.0 * pp, 1.0, transfer_s)
    assert bound_s == pytest.approx(simulate(build("gpipe", pp, 1, m), 1, 2, transfer_s).end_s.max(axis=-1))


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 4)])
def test_the_closed_form_counts_part_of_the_bubble(name, vpp):
    pp, m = 8, 32
    ideal_s = m * 3.0
    bound_s = uniform_bound(name, pp, vpp, m, 3.0 * pp, 1 / 3)
    simulated_s = simulate(build(name, pp, vpp, m), 1 / vpp, 2 / vpp, 0).end_s.max(axis=-1)
    assert bound_s - ideal_s >= 0.3 * (simulated_s - ideal_s) > 0


def test_the_closed_form_prices_meshes_in_one_call():
    random = np.random.default_rng(3)
    pp = 2 ** random.integers(1, 6, 10_000)
    vpp, m = random.integers(2, 5, pp.size), pp * random.integers(1, 9, pp.size)
    batch = uniform_bound("interleaved", pp, vpp, m, 2.0, 1 / 3)
    for i in random.integers(0, pp.size, 20):
        assert batch[i] == uniform_bound("interleaved", pp[i], vpp[i], m[i], 2.0, 1 / 3)


def test_the_closed_form_knows_its_schedules():
    with pytest.raises(UnknownNameError, match="1f1b"):
        uniform_bound("1f1", 2, 1, 4, 1.0, 0.5)


def test_the_closed_form_counts_part_of_a_zero_bubble_schedule():
    pp, m = 8, 32
    ideal_s = m * 3.0
    bound_s = uniform_bound("zb1p", pp, 1, m, 3.0 * pp, 1 / 3, weight_s=pp)
    simulated_s = simulate(build("zb1p", pp, 1, m), 1, 1, 0, 1).end_s.max(axis=-1)
    assert bound_s - ideal_s >= 0.25 * (simulated_s - ideal_s) > 0
