"""Many plans of many problems priced in few calls, with the functions that price one.

Problems whose models differ in sizes alone, on one fabric under one stack and recipe, share one call that
builds tables (:mod:`meshwright.costmodels.stacking`); plans with equally many chunks and layer kinds share
the simulation of their schedules, whatever their models and fabrics are.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.stacking import stack, structure
from meshwright.costmodels.step import Price, price
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables, build_tables
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.meshes import Meshes, mesh_of
from meshwright.planner.plan import Plan
from meshwright.planner.pricing import counts, loss_name, setting
from meshwright.planner.problem import Problem
from meshwright.planner.table_store import joined_tables

_WRAPS = ("ring", "torus", "line")
"""Tiers whose rate depends on how many devices they join."""


@dataclass(frozen=True)
class Case:
    """A plan of a problem."""

    problem: Problem
    plan: Plan


@dataclass(frozen=True)
class CasePrice:
    """One row of a batch's price.

    Attributes
    ----------
    batch
        Prices of the cases that were simulated together.
    row
        The case's own.
    """

    batch: Price
    row: int


@dataclass(frozen=True)
class _Tabled:
    """Cases with the tables of each, in one order."""

    places: IntArray
    setting: Setting
    tables: Tables


def price_cases(cases: Sequence[Case], detail: bool = False) -> list[CasePrice | MeshwrightError]:
    """Return the price of each plan, in their order, or why it has none.

    Parameters
    ----------
    detail
        Whether waiting for transfers is told apart from the pipeline's bubble (twice the time).
    """
    answers: list[CasePrice | MeshwrightError | None] = [None] * len(cases)
    alike = _Structures()
    meshes = [mesh_of(case.plan) for case in cases]
    simulated: dict[Hashable, list[_Tabled]] = defaultdict(list)
    for places in _grouped(_shared(case, alike) for case in cases):
        for part in _tabled(cases, meshes, places, answers):
            for key, rows in _by_size(cases, part):
                simulated[key].append(rows)
    for parts in simulated.values():
        _simulate(cases, meshes, parts, detail, answers)
    assert None not in answers
    return answers  # type: ignore[return-value]


class _Structures:
    """Numbers for the structures of models; models are told apart by identity, which is quick."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[tuple[LayerKind, ...], int]] = {}

    def number(self, kinds: tuple[LayerKind, ...]) -> int:
        """Return a number that kinds share which differ in sizes alone."""
        if id(kinds) not in self._known:
            number = self._numbers.setdefault(structure(kinds), len(self._numbers))
            self._known[id(kinds)] = kinds, number  # kept, so that no other object takes the identity
        return self._known[id(kinds)][1]


def _grouped(keys: Iterable[Hashable]) -> list[IntArray]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        groups[key].append(at)
    return [np.array(places, dtype=np.int64) for places in groups.values()]


def _shared(case: Case, alike: _Structures) -> Hashable:
    """Return what makes cases share their tables' call: all but sizes and the blocks of the outermost tier.

    A group's time follows from the blocks that it joins, not from those of the whole cluster, so the largest
    cluster of a call prices the others exactly; rings and tori, which wrap around, are excepted.
    """
    job, cluster, model = case.problem.job, case.problem.cluster, case.problem.model
    fabric: Hashable = id(cluster)
    if cluster.tiers[-1].kind not in _WRAPS:
        outermost = replace(cluster.tiers[-1], fan_out=1)
        fabric = (id(cluster.accelerator), cluster.tiers[:-1], outermost, cluster.devices_per_host)
        fabric = (*fabric, cluster.nvme_bytes_per_s)
    lengths = model.streams and (model.streams, job.sequence_length, job.target_length, job.image_tokens)
    stack_ = (job.precision, job.optimizer, job.target, case.problem.profile.name, loss_name(case.problem))
    return alike.number(model.kinds), job.recompute_modules, fabric, stack_, lengths, model.context


def _tabled(
    cases: Sequence[Case],
    meshes: Sequence[Meshes],
    places: IntArray,
    answers: list[CasePrice | MeshwrightError | None],
) -> list[_Tabled]:
    """Return the tables of cases that share a call; one that fails is tried case by case."""
    try:
        own = _stacked([cases[at].problem for at in places])
        return [_Tabled(places, own, build_tables(own, _strategies(meshes, places)))]
    except MeshwrightError as error:
        if len(places) > 1:
            return [part for at in places for part in _tabled(cases, meshes, np.array([at]), answers)]
        answers[int(places[0])] = error
        return []


def _strategies(meshes: Sequence[Meshes], places: IntArray) -> Strategies:
    return joined([meshes[at] for at in places]).strategies()


def joined(meshes: Sequence[Meshes]) -> Meshes:
    """Return several batches of meshes as one."""
    return Meshes(**{f.name: np.concatenate([getattr(m, f.name) for m in meshes]) for f in fields(Meshes)})


def _stacked(problems: Sequence[Problem]) -> Setting:
    """Return the stacked setting of problems, on the largest of their clusters."""
    keys = [(id(p.model), p.job.sequence_length, p.job.expert_load) for p in problems]
    first: dict[Hashable, int] = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    order = {key: number for number, key in enumerate(first)}
    member = np.array([order[key] for key in keys], dtype=np.int64)
    widest = max((p.cluster for p in problems), key=lambda cluster: cluster.num_devices)
    return replace(stack([setting(problems[at]) for at in first.values()], member), cluster=widest)


def _by_size(cases: Sequence[Case], part: _Tabled) -> list[tuple[Hashable, _Tabled]]:
    """Return the parts with equally many chunks, and what each must share with others to be simulated."""
    found: list[tuple[Hashable, _Tabled]] = []
    chunks = [len(cases[at].plan.chunks) for at in part.places]
    shared = part.setting.profile.name, id(part.setting.cluster.accelerator), len(part.setting.kinds)
    for rows in _grouped(chunks):
        own = _Tabled(part.places[rows], part.setting, part.tables.take(rows))
        found.append(((chunks[rows[0]], *shared), own))
    return found


def _simulate(
    cases: Sequence[Case],
    meshes: Sequence[Meshes],
    parts: Sequence[_Tabled],
    detail: bool,
    answers: list[CasePrice | MeshwrightError | None],
) -> None:
    """Price cases of one stack and device whose tables have one size; one that fails alone has no price."""
    places = np.concatenate([part.places for part in parts])
    layers = np.concatenate([counts(cases[at].problem, cases[at].plan) for at in places])
    tables = joined_tables([part.tables for part in parts])
    try:
        got = price(parts[0].setting, _strategies(meshes, places), layers, tables, detail)
    except MeshwrightError as error:
        if len(places) == 1:
            answers[int(places[0])] = error
            return
        for row, at in enumerate(places):
            alone = _Tabled(np.array([at]), parts[0].setting, tables.take(np.array([row])))
            _simulate(cases, meshes, [alone], detail, answers)
        return
    for row, at in enumerate(places):
        answers[int(at)] = CasePrice(got, row)
