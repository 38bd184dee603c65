"""The search against the exhaustive referee: no better plan exists, none is overlooked, none is invented."""

from functools import lru_cache

import numpy as np
import pytest

from meshwright.planner.field import survey
from meshwright.planner.problem import Problem
from meshwright.planner.search import TOLERANCE, State, search
from tests.referees.exhaustive import Everything, everything
from tests.referees.problems import random_problem, with_memory, with_uneven_chunks

MOST_PLANS = 60_000
UNLIMITED = 1e15
FAST, SLOW = range(60), range(60, 400)


@lru_cache(maxsize=1)
def _everything(seed: int, blocks: int, devices: int) -> Everything | None:
    return everything(random_problem(seed, blocks, devices), MOST_PLANS)


def _check(seed: int, blocks: int, devices: int) -> int:
    """Compare one problem at several memory sizes; return how many were compared."""
    return _agree(random_problem(seed, blocks, devices), _everything(seed, blocks, devices), seed)


def _agree(problem: Problem, every: Everything | None, seed: int) -> int:
    if every is None:
        return 0
    sizes = [UNLIMITED]
    if len(every.row):
        sizes += every.capacities(np.random.default_rng(seed), 3)
    for usable in sizes:
        _compare(every, search(survey(with_memory(problem, usable)), lambda: False), usable)
    return len(sizes)


def _compare(every: Everything, state: State, usable: float, host: float = np.inf) -> None:
    best, found = every.optimum(usable, host), state.incumbent_s
    assert state.proven
    assert state.bound <= best * (1 + 1e-9), "the bound excludes a plan that exists"
    if np.isinf(best):
        assert state.best is None, "a plan that does not fit or does not exist"
        return
    assert state.best is not None, "a plan that fits was overlooked"
    assert state.best.candidate.peak_bytes <= usable
    assert state.best.candidate.host_bytes <= host
    assert best * (1 - 1e-9) <= found <= best / (1 - TOLERANCE) * (1 + 1e-9)


@pytest.mark.parametrize("seed", FAST)
def test_search_finds_the_optimum_of_every_small_problem(seed: int) -> None:
    _check(seed, blocks=3 + seed % 2, devices=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_search_finds_the_optimum_of_larger_small_problems(seed: int) -> None:
    _check(seed, blocks=2 + seed % 5, devices=8)


PIPELINED = {"pp": ">=2", "tp": 1, "zero_stage": [0, 1]}
SCHEDULES = {
    "zb1p": 3,
    "zb2p": 3,
    "interleaved_zb": 4,
    "zbv": 4,
    "v_half": 4,
    "v_min": 4,
    "dualpipev": 4,
}
"""Blocks at most; plans of several chunks a rank need at least two of them."""


def _with_weight_passes(seed: int, *known: str) -> Problem:
    return random_problem(seed, SCHEDULES[known[0]], 4, PIPELINED | {"schedule": list(known)})


SEEDS = (1000, 1001, 1002, 1006, 1011)
"""Problems of more than one device."""


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_search_finds_the_optimum_of_schedules_with_weight_passes(name: str, seed: int) -> None:
    """Alone, and for every other seed beside 1F1B."""
    problem = _with_weight_passes(seed, *([name, "1f1b"] if seed % 2 else [name]))
    _agree(problem, everything(problem, MOST_PLANS), seed)


@pytest.mark.parametrize("name", ["interleaved", "zbv", "v_half"])
@pytest.mark.parametrize("seed", SEEDS)
def test_search_finds_the_optimum_of_uneven_chunks(name: str, seed: int) -> None:
    problem = with_uneven_chunks(random_problem(seed, 5, 4, PIPELINED | {"schedule": name}))
    _agree(problem, everything(problem, MOST_PLANS), seed)


OFFLOADED = {
    "zero_stage": ">=1",
    "offload": ["none", "optimizer", "parameters"],
    "recompute": ["none", "offload", "full"],
}


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
@pytest.mark.parametrize("seed", (1001, 1002, 1006, 1011, 1014))
def test_search_finds_the_optimum_within_host_memory(name: str, seed: int) -> None:
    """Devices hold what some plans need, hosts a share of what the greediest plan puts there."""
    problem = random_problem(seed, 3, 4, OFFLOADED | {"schedule": name})
    every = everything(problem, MOST_PLANS)
    if every is None or not len(every.row):
        return
    hosts = np.unique(every.host_bytes)
    steps = np.flatnonzero(np.diff(hosts) > 2 * every.slack_bytes)
    sizes = every.capacities(np.random.default_rng(seed), 3)
    for usable, at in zip(sizes, steps[[0, len(steps) // 2, -1]] if len(steps) else (), strict=False):
        host = float(hosts[at]) + every.slack_bytes
        state = search(survey(with_memory(problem, usable, host)), lambda: False)
        _compare(every, state, usable, host)


@pytest.mark.parametrize("seed", [1052])
def test_five_blocks_on_four_chunks_gain_by_uneven_ones(seed: int) -> None:
    """Equal chunks of five blocks on two ranks do not exist."""
    problem = random_problem(seed, 5, 4, PIPELINED | {"schedule": ["interleaved", "1f1b"]})
    equal = everything(problem, MOST_PLANS)
    free = everything(with_uneven_chunks(problem), MOST_PLANS)
    assert equal is not None
    assert free is not None
    assert free.optimum(np.inf) < equal.optimum(np.inf)
    assert (free.meshes.schedule[free.row[free.step_s.argmin()]]) == "interleaved"


@pytest.mark.parametrize("name", SCHEDULES)
def test_these_schedules_have_plans_and_some_beat_1f1b(name: str) -> None:
    """DualPipe-V gains by kernels side by side, which are left out: it need not win."""
    wins = plans = 0
    for seed in SEEDS:
        every = everything(_with_weight_passes(seed, name, "1f1b"), MOST_PLANS)
        if every is not None and len(every.row):
            own = every.meshes.schedule[every.row] == name
            plans += int(own.sum())
            wins += int(every.step_s[own].min(initial=np.inf) < every.step_s[~own].min(initial=np.inf))
    assert plans > 0
    assert wins > 0 or name == "dualpipev"


def test_most_problems_are_small_enough_to_compare_and_memory_binds() -> None:
    compared = [_everything(seed, 3 + seed % 2, 4) for seed in range(12)]
    known = [every for every in compared if every is not None and len(every.row)]
    assert len(known) >= 9
    assert sum(every.peaks[-1] > 1.5 * every.peaks[0] for every in known) >= 6
