"""The exhaustive referee on the wide decisions: experts, context, copies of shards, offloading."""

from functools import lru_cache

import numpy as np
import pytest

from meshwright.costmodels.tables import build_tables
from meshwright.planner.bounds import look, quick_bounds
from meshwright.planner.field import survey
from meshwright.planner.rule import has_experts
from meshwright.planner.search import TOLERANCE, search
from meshwright.planner.space import space
from meshwright.planner.stage_bounds import stage_bounds
from tests.planner.test_space import equal_chunks, mesh_key
from tests.referees.exhaustive import Everything, every_mesh, everything
from tests.referees.problems import with_memory
from tests.referees.wide import wide_problem

SEEDS = range(20)
SLOW = range(20, 80)
MOST_PLANS = 12_000


@lru_cache(maxsize=len(SEEDS))
def _known(seed: int) -> tuple[Everything | None, tuple[float, ...]]:
    """Return all plans of a problem and memory sizes that bind."""
    every = everything(wide_problem(seed), MOST_PLANS)
    if every is None or not len(every.row):
        return None, ()
    return every, (1e15, *every.capacities(np.random.default_rng(seed), 2))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_wide_space_is_every_legal_mesh_once(seed: int) -> None:
    problem = wide_problem(seed)
    own, every = space(problem)[0], every_mesh(problem)
    stack, experts = problem.profile, has_experts(problem)
    found = [mesh_key(own, row, stack, experts) for row in range(len(own))]
    assert len(found) == len(set(found))
    rows = [row for row in range(len(every)) if equal_chunks(problem, every, row)]
    assert set(found) == {mesh_key(every, row, stack, experts) for row in rows}


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_of_wide_meshes_are_below_every_price(seed: int) -> None:
    every, sizes = _known(seed)
    if every is None:
        pytest.skip("too many plans to price them all")
    problem = wide_problem(seed)
    f = survey(problem)
    s = every.meshes.strategies()
    tables = build_tables(f.setting, s)
    seen = look(f.setting, s, tables, f.want)
    quick = quick_bounds(s, seen)
    assert (quick <= every.least_step(np.inf)).all()
    assert (seen.floor_bytes <= every.least_peak()).all()
    plain = np.flatnonzero(every.meshes.vpp == 1)
    for usable in sizes:
        few = every.meshes.take(plain).strategies()
        strong = stage_bounds(f.setting, few, tables.take(plain), f.want, usable, quick[plain], np.inf)
        assert (strong >= quick[plain]).all()
        assert (strong <= every.least_step(usable)[plain]).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_search_finds_the_optimum_of_more_wide_problems(seed: int) -> None:
    test_search_finds_the_optimum_of_wide_problems(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_search_finds_the_optimum_of_wide_problems(seed: int) -> None:
    every, sizes = _known(seed)
    for usable in sizes:
        assert every is not None
        state = search(survey(with_memory(wide_problem(seed), usable)), lambda: False)
        best = every.optimum(usable)
        assert state.proven
        assert state.bound <= best * (1 + 1e-9)
        if np.isinf(best):
            assert state.best is None
        else:
            assert best * (1 - 1e-9) <= state.incumbent_s <= best / (1 - TOLERANCE) * (1 + 1e-9)


def test_most_wide_problems_are_compared_and_use_what_they_are_about() -> None:
    """The referee is worth its time only if context and experts win somewhere."""
    used = dict.fromkeys(("cp", "ep"), 0)
    compared = 0
    for seed in SEEDS:
        every, _ = _known(seed)
        compared += every is not None
        if every is not None:
            best = every.meshes.decisions(int(every.row[every.step_s.argmin()]))
            used = {name: n + (best[name] > 1) for name, n in used.items()}
    assert compared >= 14
    assert all(used.values()), used
