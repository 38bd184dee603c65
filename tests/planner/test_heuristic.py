"""First plans: even splits with the least recomputation, on the device and within the host."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.planner.choice import choice
from meshwright.planner.field import survey
from meshwright.planner.heuristic import Found, any_fits, even_plans, price_splits, weigh_splits
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


@pytest.mark.parametrize("pins", [{}, {"schedule": ["gpipe", "zb1p", "interleaved"], "pp": {"min": 2}}])
def test_what_plans_hold_does_not_hang_on_how_long_their_steps_are(pins: dict[str, object]) -> None:
    """Memory is the same whether 2,048 micro-batches are simulated or the few that fill the pipeline."""
    asked = Problem.load(
        "gpt2", "dgx-h100", JOB | {"tuning": "full", "global_batch_size": 2048, "pins": pins}
    )
    f = survey(asked)
    rows = np.argsort(-f.meshes.num_microbatches, kind="stable")[:: max(1, len(f.meshes) // 40)]
    laid = [(s.row, s.filled.counts, s.cuts) for row in rows for s in f.even_splits(int(row))]
    whole, held = price_splits(f, laid), weigh_splits(f, laid)
    assert max(f.meshes.num_microbatches[rows]) > 1000
    for a, b in zip(whole, held, strict=True):
        assert (a.row, a.candidate.peak_bytes, a.candidate.host_bytes) == (
            b.row,
            b.candidate.peak_bytes,
            b.candidate.host_bytes,
        )
        assert b.candidate.step_s <= a.candidate.step_s


@pytest.mark.parametrize("headroom", [0.0, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("model", ["gpt2-xl", "llama-3.1-8b"])
def test_something_fits_exactly_where_a_first_plan_does(model: str, headroom: float) -> None:
    for target in ("any", "megatron", "deepspeed"):
        asked = {"global_batch_size": 16, "sequence_length": 4096, "headroom": headroom, "target": target}
        f = survey(Problem.load(model, "rtx-4090-8", asked))
        rows = np.flatnonzero(np.isfinite(f.bounds))
        assert any_fits(f, rows) == bool(even_plans(f, rows))
