"""First plans: even splits with the least recomputation, on the device and within the host."""

from dataclasses import replace

import numpy as np

from meshwright.planner.choice import choice
from meshwright.planner.field import survey
from meshwright.planner.heuristic import Found, even_plans
from meshwright.planner.problem import Problem

JOB = {"global_batch_size": 64, "sequence_length": 4096, "tuning": "lora:r=16"}


def plans(problem: Problem) -> dict[str, Found]:
    """Return the first plan of each mesh by what it is called."""
    f = survey(problem)
    return {f.meshes.describe(found.row): found for found in even_plans(f, np.arange(len(f.meshes)))}


def test_where_the_host_holds_nothing_first_plans_are_those_that_offload_nothing() -> None:
    """Offloading is the first thought of some meshes; without room for it they think again."""
    asked = Problem.load("llama-3.1-8b", "a10g:4", JOB)
    small = replace(asked, cluster=replace(asked.cluster, host_memory_bytes=1e3))
    roomy, none = plans(asked), plans(small)
    assert any(found.candidate.host_bytes > 0 for found in roomy.values())
    assert not any(found.candidate.host_bytes > 0 for found in none.values())
    forbidden = plans(asked.choosing(recompute=choice("!offload")))
    assert {name: found.candidate.step_s for name, found in none.items()} == {
        name: found.candidate.step_s for name, found in forbidden.items()
    }
    assert none.keys() <= roomy.keys()
