"""Small problems with every plan of their own meshes priced, shared by the tests of the bounds."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from meshwright.planner.field import Field, survey
from tests.referees.exhaustive import Everything, everything
from tests.referees.problems import random_problem, with_memory

SEEDS = tuple(range(500, 530))


@lru_cache(maxsize=len(SEEDS))
def known(seed: int) -> tuple[Everything | None, tuple[float, ...]]:
    """Return all plans of a problem's meshes and memory sizes that bind."""
    problem = random_problem(seed, 4, 4)
    every = everything(problem, 20_000, survey(problem).meshes)
    if every is None or not len(every.row):
        return None, ()
    return every, (1e15, *every.capacities(np.random.default_rng(seed), 2))


def fields(seed: int) -> Iterator[tuple[Field, Everything, float]]:
    """Yield the field of a problem at each memory size, with all its plans."""
    every, sizes = known(seed)
    for usable in sizes:
        if every is not None:
            yield survey(with_memory(random_problem(seed, 4, 4), usable)), every, usable
