"""CP-SAT against exact dynamic programming, at full size: 126 layers on 16 stages, and alternating kinds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planner.field import Field, survey
from meshwright.planner.problem import Problem
from meshwright.planner.search import TOLERANCE, State, search
from meshwright.planner.table_store import TableStore
from tests.referees.dynamic import dynamic
from tests.referees.problems import with_memory

GIB = 2**30


def _field(model: str, machines: str, batch: int, gib: float | None, **pins: Any) -> Field:
    job = {"global_batch_size": batch, "sequence_length": 8192, "pins": {"schedule": "1f1b", **pins}}
    problem = Problem.load(model, machines, job)
    return survey(problem if gib is None else with_memory(problem, gib * GIB))


def _instant(f: Field) -> Field:
    """Return the field as if transfers between stages took no time, with bounds that know nothing."""
    store = TableStore(f.setting, f.meshes)
    tables = f.tables.take(store.first)
    store.keep(
        np.arange(len(store.first)),
        replace(tables, transfer_s=0 * tables.transfer_s, pass_s=0 * tables.pass_s),
    )
    return replace(f, tables=store, bounds=np.where(np.isfinite(f.bounds), 0.0, np.inf))


def _solved(f: Field) -> State:
    state = search(f, lambda: False)
    assert state.proven
    assert state.best is not None
    return state


FULL_SIZE = [
    ("llama-3.1-70b", "dgx-h100:4", 4, 8, None),
    pytest.param("llama-3.1-70b", "dgx-h100:4", 4, 8, 60, marks=pytest.mark.slow),
    ("llama-3.1-70b", "dgx-h100:4", 4, 8, 52),
    pytest.param("llama-3.1-405b", "dgx-h100:16", 8, 16, None, marks=pytest.mark.slow),
    ("llama-3.1-405b", "dgx-h100:16", 8, 16, 76),
    pytest.param("gemma-2-9b", "dgx-h100:1", 2, 4, 60, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "machines", "tp", "pp", "gib"), FULL_SIZE)
def test_both_agree_to_a_thousandth(model: str, machines: str, tp: int, pp: int, gib: float | None) -> None:
    f = _instant(_field(model, machines, 2048, gib, tp=tp, pp=pp, micro_batch_size=1, zero_stage=0))
    state = _solved(f)
    assert state.best is not None
    step = state.incumbent_s
    both = dynamic(f.task(state.best.row), step * (1 + TOLERANCE + 1e-4), rounds=4)
    assert both is not None
    assert both.peak_bytes <= f.usable
    assert both.lower_s <= step * (1 + 1e-9)
    assert step <= both.upper_s / (1 - TOLERANCE)
    assert both.lower_s >= step * (1 - 1e-3)


WIDE: list[tuple[str, str, float, dict[str, Any]]] = [
    ("mixtral-8x7b", "dgx-h100:4", 120, {"tp": 2, "pp": 4, "ep": 4, "etp": 1, "zero_stage": 1}),
    ("llama-3.1-70b", "dgx-h100:8", 56, {"tp": 2, "cp": 4, "pp": 8, "kv_exchange": "ring", "zero_stage": 1}),
    ("llama-3.1-70b", "dgx-h100:8", 40, {"tp": 4, "pp": 8, "offload": "optimizer", "zero_stage": 1}),
]


@pytest.mark.parametrize(("model", "machines", "gib", "pins"), WIDE, ids=["experts", "context", "offload"])
def test_both_agree_where_experts_context_or_the_host_take_part(
    model: str, machines: str, gib: float, pins: dict[str, Any]
) -> None:
    f = _instant(_field(model, machines, 512, gib, micro_batch_size=1, **pins))
    state = _solved(f)
    assert state.best is not None
    both = dynamic(f.task(state.best.row), state.incumbent_s * (1 + TOLERANCE + 1e-4), rounds=2)
    assert both is not None
    assert both.peak_bytes <= f.usable
    assert state.incumbent_s * (1 - 2e-3) <= both.lower_s <= state.incumbent_s * (1 + 1e-9)
    assert state.incumbent_s <= both.upper_s / (1 - TOLERANCE)


@pytest.mark.parametrize("gib", [None, 52])
def test_transfers_widen_the_closed_form_but_not_past_the_solver(gib: float | None) -> None:
    f = _field("llama-3.1-70b", "dgx-h100:8", 512, gib, tp=4, pp=8, micro_batch_size=1, zero_stage=1)
    state = _solved(f)
    assert state.best is not None
    both = dynamic(f.task(state.best.row), state.incumbent_s * (1 + TOLERANCE + 1e-4), rounds=1)
    assert both is not None
    assert 0.98 * state.incumbent_s <= both.lower_s <= state.incumbent_s * (1 + 1e-9)
    assert state.incumbent_s <= both.upper_s / (1 - TOLERANCE)


def test_memory_binds_where_it_is_meant_to() -> None:
    steps = []
    for gib in (None, 60, 52):
        f = _field("llama-3.1-70b", "dgx-h100:4", 2048, gib, tp=4, pp=8, micro_batch_size=1, zero_stage=0)
        state = _solved(_instant(f))
        assert state.best is not None
        steps.append(state.incumbent_s)
        if gib is not None:
            assert state.best.candidate.counts[:, :, 1:].sum() > 0
    assert steps == sorted(steps)
