"""Which of several equally fast plans is recommended: recomputation, peak, evenness, tp, in this order."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshwright.planner import ties
from meshwright.planner.cpsat.mesh_solver import Candidate
from meshwright.planner.field import Field, survey
from meshwright.planner.heuristic import Found, even_plans
from meshwright.planner.problem import Problem
from meshwright.planner.search import State

STEP_S, PEAK_BYTES = 2.0, 1e10


@pytest.fixture(scope="module")
def field() -> Field:
    job = {"global_batch_size": 8, "sequence_length": 512, "pins": {"pp": 2, "vpp": 1, "micro_batch_size": 1}}
    return survey(Problem.load("llama-3.2-1b", "dgx-h100", job))


@pytest.fixture(autouse=True)
def _no_polish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "_polished", lambda f, found, ceiling: found)


def plain(f: Field, tp: int) -> Found:
    """Return an even plan without recomputation on a mesh of this tp, its step and peak set."""
    row = int(f.order[f.meshes.tp[f.order] == tp][0])
    found = even_plans(f, np.array([row]))[0]
    assert not found.candidate.counts[..., 1:].any()
    return Found(row, replace(found.candidate, step_s=STEP_S, peak_bytes=PEAK_BYTES))


def recomputed(c: Candidate) -> Candidate:
    counts = c.counts.copy()
    counts[0, 1, 0] -= 1
    counts[0, 1, 2] += 1
    return replace(c, counts=counts)


def uneven(c: Candidate) -> Candidate:
    counts = c.counts.copy()
    counts[0, 1, 0] -= 2
    counts[1, 1, 0] += 2
    return replace(c, counts=counts)


def chosen(f: Field, *plans: Found) -> Found | None:
    fastest = min(plans, key=lambda found: found.candidate.step_s)
    return ties.break_ties(f, State(best=fastest, finds={found.row: found for found in plans}))


@pytest.mark.parametrize(
    "spoil",
    [recomputed, lambda c: replace(c, peak_bytes=2 * c.peak_bytes), uneven],
    ids=["less recomputation", "lower peak", "more even stages"],
)
def test_each_rule_outweighs_the_smaller_tp(field: Field, spoil: Callable[[Candidate], Candidate]) -> None:
    small, large = plain(field, 1), plain(field, 2)
    assert chosen(field, Found(small.row, spoil(small.candidate)), large) == large


def test_the_smaller_tp_decides_last(field: Field) -> None:
    small, large = plain(field, 1), plain(field, 2)
    assert chosen(field, large, small) == small


def test_recomputation_outweighs_the_peak_and_the_peak_outweighs_evenness(field: Field) -> None:
    one, two = plain(field, 1), plain(field, 2)
    heavy = Found(two.row, replace(two.candidate, peak_bytes=3 * PEAK_BYTES))
    assert chosen(field, Found(one.row, recomputed(one.candidate)), heavy) == heavy
    light = Found(two.row, uneven(replace(two.candidate, peak_bytes=PEAK_BYTES / 2)))
    assert chosen(field, one, light) == light


def test_a_plan_outside_the_window_never_wins(field: Field) -> None:
    small, large = plain(field, 1), plain(field, 2)
    for slower, wins in ((1 + 0.5 * ties.WINDOW, small), (1 + 2 * ties.WINDOW, large)):
        late = Found(small.row, replace(small.candidate, step_s=STEP_S * slower))
        picked = chosen(field, late, large)
        assert picked is not None
        assert picked.row == wins.row


def test_without_a_plan_or_after_the_clock_nothing_is_compared(field: Field) -> None:
    assert ties.break_ties(field, State()) is None
    small, large = plain(field, 1), plain(field, 2)
    state = State(best=large, finds={small.row: small, large.row: large}, expired=True)
    assert ties.break_ties(field, state) == large
