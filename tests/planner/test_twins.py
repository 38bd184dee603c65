"""Of meshes that lie on the topology alike one is kept, and it has the price of those that go."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from meshwright.costmodels.tables import Tables, build_tables
from meshwright.planner.meshes import Meshes
from meshwright.planner.pricing import setting
from meshwright.planner.problem import Problem
from meshwright.planner.rule import has_experts
from meshwright.planner.space import space
from meshwright.planner.twins import distinct
from tests.referees.problems import random_problem

NAMES = [f.name for f in fields(Meshes) if f.name != "placement"]


def _dropped(problem: Problem) -> tuple[Meshes, Meshes]:
    """Return meshes that are dropped, some of many, and the same meshes in every placement that is kept."""
    meshes, _ = space(problem)
    kept = distinct(problem.cluster, meshes, has_experts(problem))
    return meshes.take(~kept), meshes.take(kept)


def _key(meshes: Meshes, row: int) -> tuple[Any, ...]:
    return tuple(getattr(meshes, name)[row].item() for name in NAMES)


def _agree(problem: Problem, gone: Meshes, kept: Meshes) -> None:
    """Check that each mesh that is gone has the tables of one that is kept."""
    homes: dict[tuple[Any, ...], list[int]] = {}
    for row in range(len(kept)):
        homes.setdefault(_key(kept, row), []).append(row)
    common = setting(problem)
    theirs, ours = (build_tables(common, m.strategies()) for m in (gone, kept))
    for row in range(len(gone)):
        assert any(_same(theirs, row, ours, home) for home in homes[_key(gone, row)])


def _same(one: Tables, row: int, other: Tables, home: int) -> bool:
    names = [f.name for f in fields(Tables) if f.name != "states"]
    return all(np.array_equal(getattr(one, n)[row], getattr(other, n)[home]) for n in names)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_dropped_has_a_twin_that_is_kept(seed: int) -> None:
    problem = random_problem(seed, 5, 8)
    _agree(problem, *_dropped(problem))


@pytest.mark.parametrize(
    ("model", "machines"), [("llama-3.1-8b", "dgx-h100:4"), ("mixtral-8x7b", "dgx-a100:2")]
)
def test_most_orders_of_several_nodes_are_alike(model: str, machines: str) -> None:
    pins = {"micro_batch_size": 1, "schedule": "1f1b"}
    problem = Problem.load(model, machines, {"global_batch_size": 64, "sequence_length": 8192, "pins": pins})
    gone, kept = _dropped(problem)
    assert len(gone) > len(kept) / 10
    _agree(problem, gone, kept)


def test_on_one_node_no_order_is_better_than_another() -> None:
    problem = Problem.load("llama-3.1-8b", "dgx-h100", {"global_batch_size": 64, "sequence_length": 8192})
    _, kept = _dropped(problem)
    keys = [_key(kept, row) for row in range(len(kept))]
    assert len(keys) == len(set(keys))
