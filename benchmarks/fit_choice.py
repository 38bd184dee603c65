"""Which constants are free: those that runs enough tell about, and tell from what they inherit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.fit import Linearised
from benchmarks.fit_constants import MOST, ROWS_EACH, Constant, Shifts, tree
from benchmarks.fit_runs import ROOT, Runs, moved, value_of
from meshwright.costmodels.arrays import FloatArray, IntArray

FELT: Final = 0.002
"""Change of a run's logarithm by one width of a constant from which the run tells about it."""
SURE: Final = 2.0
"""Standard errors by which a constant must differ from what it inherits."""

Slopes = Mapping[tuple[str, str], FloatArray]
"""Derivatives of the residuals, (N,), by the kind of place and the field, wherever the field is set."""


def columns(runs: Runs, by_field: Slopes, constants: Sequence[Constant]) -> FloatArray:
    """Return the slopes of constants, (N, P)."""
    picked = [by_field[tree(c.kind), c.field] * runs.reached(c) for c in constants]
    return np.stack(picked, axis=-1) if picked else np.zeros((len(runs.runs), 0))


def free_constants(runs: Runs, by_field: Slopes) -> tuple[Constant, ...]:
    """Return the constants that may be fitted.

    Each makes a difference to at least :data:`ROWS_EACH` runs. A place has at most one for every so many
    of its runs, those that matter most to them. A place with a single leaf below it leaves the constant to
    the leaf.
    """
    found: list[Constant] = []
    for (kind, place), leaves in sorted(runs.places.items()):
        if tree(kind) not in runs.observable.fields:
            continue
        if len(leaves) == 1 and place not in leaves and kind == "profiles":
            continue
        if kind == "accelerators" and _tells_its_architecture(runs, place):
            continue
        found += _own(runs, by_field, kind, place)
    return tuple(found)


def _tells_its_architecture(runs: Runs, accelerator: str) -> bool:
    """Return whether too few runs are on other accelerators of its architecture to tell the two apart.

    The constant is the architecture's then, and boards of its generation that nothing was fitted to inherit
    it, rather than rates of benchmarks that the measured board does not sustain.
    """
    kinds = [r.problem.cluster.accelerator for r in runs.runs]
    own = {a.architecture for a in kinds if a.name == accelerator} - {None, ""}
    return bool(own) and sum(a.architecture in own and a.name != accelerator for a in kinds) < ROWS_EACH


def _own(runs: Runs, by_field: Slopes, kind: str, place: str) -> list[Constant]:
    every = [Constant(kind, place, field) for field in runs.observable.fields[tree(kind)]]
    slopes = columns(runs, by_field, every) * np.array([c.bounds.width for c in every])
    told = (np.abs(slopes) > FELT).sum(axis=0)
    matter = (runs.weights()[:, None] * slopes**2).sum(axis=0)
    rows = max(int(runs.reached(c).sum()) for c in every)
    most = rows // ROWS_EACH
    if place != ROOT:
        most = min(most, MOST)
    enough = [at for at in np.argsort(-matter, kind="stable") if told[at] >= ROWS_EACH]
    return [every[at] for at in enough[:most]]


def pruned(constants: tuple[Constant, ...], at: Linearised) -> tuple[tuple[Constant, ...], Linearised]:
    """Return the constants, and their problem, that a solution tells from what they inherit.

    Those that it moves by less than :data:`SURE` standard errors leave, a quarter of them at a time, the
    least sure first: what one constant explained another may take over.
    """
    while True:
        change = at.solved()
        sure = np.abs(at.shift + change) / np.sqrt(np.diag(np.linalg.inv(at.curvature(change))))
        unsure = np.flatnonzero(sure < SURE)
        if not unsure.size:
            return constants, at
        worst = unsure[np.argsort(sure[unsure])][: max(1, unsure.size // 4)]
        kept = np.setdiff1d(np.arange(len(constants)), worst)
        constants = tuple(constants[k] for k in kept)
        at = of_constants(at, kept)


def inside(
    constants: tuple[Constant, ...], at: Linearised, shifts: Shifts
) -> tuple[tuple[Constant, ...], Linearised, list[Constant]]:
    """Return the constants that runs do not push onto a bound, their problem, and those that they do.

    What would sit on its bound goes back to what it inherits, the one that is furthest from there first: runs
    ask it for what it does not stand for.
    """
    out: list[Constant] = []
    while True:
        there = moved(constants, shifts, at.solved())
        stuck = [k for k, c in enumerate(constants) if c.bounds.near(value_of(c, there))]
        if not stuck:
            return constants, at, out
        worst = max(stuck, key=lambda k: abs(there[constants[k]]) / at.width[k])
        out.append(constants[worst])
        kept = np.setdiff1d(np.arange(len(constants)), [worst])
        constants, at = tuple(constants[k] for k in kept), of_constants(at, kept)


def of_constants(at: Linearised, kept: IntArray) -> Linearised:
    """Return the problem of some of the constants; the others go back to what they inherit."""
    gone = np.setdiff1d(np.arange(len(at.shift)), kept)
    residual = at.residual - at.slopes[:, gone] @ at.shift[gone]
    columns_ = {name: getattr(at, name)[kept] for name in ("shift", "width", "low", "high")}
    return replace(at, residual=residual, slopes=at.slopes[:, kept], **columns_)
