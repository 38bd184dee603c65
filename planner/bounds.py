"""Lower bounds on the step time and the memory of every mesh, in numpy: what they discard cannot win.

Two passes. :func:`quick_bounds` prices all meshes: total work spread over the pipeline by the closed form of
its schedule. :func:`stage_bounds` looks at the survivors' ranks: how many layers can rank ``i`` hold within
its memory (with its in-flight micro-batches) and within the time that a step of length ``M`` leaves it? A
fractional mix of recompute modes under two limits is a linear program with a closed form; if the ranks
together cannot hold the model, no plan of length ``M`` exists. Bisection on ``M`` gives the bound.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.pipeline import uniform_bound
from meshwright.costmodels.schedule import build, in_flight
from meshwright.costmodels.step import fixed_bytes
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.problem import Problem

SAFETY = 1 - 1e-9
"""Floating-point sums may err by a few ulps; bounds stay below the price."""


@dataclass(frozen=True)
class Demand:
    """What every plan of a problem must place: layers of each kind, and the modes each kind may take.

    Attributes
    ----------
    layers
        (K,).
    allowed
        (K, M).
    blocks
        (K,) whether a kind is a block.
    """

    layers: IntArray
    allowed: BoolArray
    blocks: BoolArray


def demand(problem: Problem) -> Demand:
    """Return what must be placed, with the recompute modes that target and job admit."""
    wanted = problem.job.choices.get("recompute", Choice())
    modes = np.array([m in problem.target.recompute and wanted.admits(m) for m in MODES])
    if not modes.any():
        have = ", ".join(m for m in MODES if m in problem.target.recompute)
        raise MeshwrightError(f"pins: recompute leaves no mode of {problem.target.title}; it has {have}")
    blocks = np.array([kind.role == "block" for kind in problem.model.kinds])
    none = np.array([m == "none" for m in MODES])
    return Demand(problem.model.kind_counts, np.where(blocks[:, None], modes, none), blocks)


def _least(values: FloatArray, allowed: BoolArray) -> FloatArray:
    """Return the least over allowed modes, (B, K)."""
    return np.asarray(np.where(allowed, values, np.inf).min(axis=-1))


def least_work(s: Strategies, tables: Tables, want: Demand) -> tuple[FloatArray, FloatArray]:
    """Return the least seconds of all chunks for a micro-batch, and the largest forward share, (B,)."""
    backward = _least(tables.backward_s, want.allowed)
    layers = ((tables.forward_s + backward) * want.layers).sum(axis=-1)
    ratios = tables.forward_s / np.maximum(tables.forward_s + backward, 1e-30)
    return layers + 2 * s.chunks * tables.pass_s, np.maximum(ratios.max(axis=-1), 0.5 * (tables.pass_s > 0))


def quick_bounds(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> FloatArray:
    """Return a lower bound on the step time of each mesh, (B,), whatever the stages and recomputation."""
    work, share = least_work(s, tables, want)
    pipeline = np.zeros(len(s))
    names = np.array(s.schedule)
    for name in sorted(set(s.schedule)):
        at = names == name
        pipeline[at] = uniform_bound(
            name, s.pp[at], s.vpp[at], s.num_microbatches[at], work[at], share[at], tables.transfer_s[at]
        )
    return (pipeline + _tail(setting, s, tables, want)) * SAFETY


def _tail(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> FloatArray:
    """Return what follows the pipeline at least: the mean rank's optimizer, and alone the late gradients."""
    slowest = np.where(want.allowed, tables.backward_s, 0.0).max(axis=-1)
    window = setting.profile.overlap_gradients * (slowest * want.layers).sum(axis=-1)
    late = exposed_time((tables.reduce_s * want.layers).sum(axis=-1), window, setting.profile.overlap_cost)
    update = (tables.optimizer_s * want.layers).sum(axis=-1) / s.pp
    return np.asarray(np.where(s.pp == 1, late, 0.0) + update + setting.profile.step_fixed_s)


def memory_floor(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> FloatArray:
    """Return bytes that the fullest rank of each mesh holds at least, (B,): the mean over ranks.

    Every layer's states lie somewhere, and every layer keeps one micro-batch's least activations at its peak.
    """
    kept = _least(tables.saved_bytes, want.allowed) * (1 + setting.profile.fragmentation)
    everywhere = ((tables.state_bytes + kept) * want.layers).sum(axis=-1) / s.pp
    return np.asarray((everywhere + np.sum(list(fixed_bytes(setting, s).values()), axis=0)) * SAFETY)


def in_flight_floor(s: Strategies) -> FloatArray:
    """Return micro-batches that each rank holds at least in every one of its chunks at its peak, (B, R)."""
    floor = np.zeros((len(s), int(s.pp.max())))
    keys: dict[tuple[str, int, int, int], list[int]] = {}
    for row, name in enumerate(s.schedule):
        key = (name, int(s.pp[row]), int(s.vpp[row]), int(s.num_microbatches[row]))
        keys.setdefault(key, []).append(row)
    for (name, pp, vpp, m), rows in keys.items():
        if name == "1f1b":
            floor[rows, :pp] = np.minimum(m, pp - np.arange(pp))
        else:
            live = in_flight(build(name, pp, vpp, m))
            floor[rows, :pp] = [table.min(axis=1).max() for table in live]
    return floor


@dataclass(frozen=True)
class _Ranks:
    """What the ranks of each mesh offer, fields (B, R) or (B, 1, M)."""

    room_bytes: FloatArray
    taken_s: FloatArray
    layer_s: FloatArray
    layer_bytes: FloatArray
    exists: BoolArray


def _ranks(setting: Setting, s: Strategies, tables: Tables, want: Demand, usable: float) -> _Ranks:
    """Return room for blocks on each rank, after embedding and head took theirs."""
    index = np.arange(int(s.pp.max()))
    exists = index < s.pp[:, None]
    live = np.maximum(in_flight_floor(s), 1.0)
    growth = 1 + setting.profile.fragmentation
    room = np.broadcast_to(
        usable - np.sum(list(fixed_bytes(setting, s).values()), axis=0)[:, None], exists.shape
    ).copy()
    taken = np.zeros(exists.shape)
    for k in np.flatnonzero(~want.blocks):
        first = setting.kinds[k].role == "embedding"
        here = (index == 0) if first else (index == s.pp[:, None] - 1)
        saved = growth * tables.saved_bytes[:, k, 0, None] * live
        room -= np.where(here, tables.state_bytes[:, k, None] + saved, 0.0)
        taken += np.where(here, (tables.forward_s[:, k] + tables.backward_s[:, k, 0])[:, None], 0.0)
    b = np.flatnonzero(want.blocks)
    allowed = want.allowed[b]
    seconds = np.where(allowed, tables.forward_s[:, b, None] + tables.backward_s[:, b], np.inf).min(axis=1)
    saved = np.where(allowed, tables.saved_bytes[:, b], np.inf).min(axis=1)
    states = tables.state_bytes[:, b].min(axis=1)
    weight = states[:, None, None] + growth * saved[:, None] * live[..., None]
    return _Ranks(room, taken, seconds[:, None], weight, exists)


def _capacity(ranks: _Ranks, limit_s: FloatArray) -> FloatArray:
    """Return the blocks that each rank holds at most within its room and a time per micro-batch, (B, R).

    The best fractional mix of modes under two limits lies at a corner: one mode, or two with both limits met.
    """
    time = np.maximum(limit_s - ranks.taken_s, 0.0)
    room = np.maximum(ranks.room_bytes, 0.0)
    usable = np.isfinite(ranks.layer_s[0, 0]) & np.isfinite(ranks.layer_bytes[0, 0])
    modes = np.flatnonzero(usable)
    t = [np.broadcast_to(ranks.layer_s[..., m], time.shape) for m in range(len(MODES))]
    w = [ranks.layer_bytes[..., m] for m in range(len(MODES))]
    best = np.zeros(time.shape)
    for m in modes:
        best = np.maximum(best, np.minimum(time / t[m], room / w[m]))
    for i, j in combinations(modes, 2):
        det = t[i] * w[j] - t[j] * w[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y = (time * w[j] - t[j] * room) / det, (t[i] * room - time * w[i]) / det
        best = np.maximum(best, np.where((x >= 0) & (y >= 0) & (det != 0), x + y, 0.0))
    return np.where(ranks.exists, best, 0.0)


def stage_bounds(
    setting: Setting,
    s: Strategies,
    tables: Tables,
    want: Demand,
    usable: float,
    floor: FloatArray,
    ceiling: float,
    rounds: int = 20,
) -> FloatArray:
    """Return a stronger lower bound, (B,), at least ``floor``; infinite where no plan up to ``ceiling`` fits.

    Parameters
    ----------
    usable
        Bytes that a plan may fill on each device.
    floor
        (B,), from :func:`quick_bounds`.
    ceiling
        Seconds of interest: the best known step, or infinity for a test of memory alone.
    """
    ranks = _ranks(setting, s, tables, want, usable)
    blocks = float(want.layers[want.blocks].sum())
    tail = _tail(setting, s, tables, want)
    work, share = least_work(s, tables, want)
    m = s.num_microbatches[:, None].astype(np.float64)
    ahead = np.minimum(m, s.pp[:, None] - np.arange(ranks.exists.shape[1]))
    through = np.maximum((m - 1) - np.maximum(ahead - 1, 0) * share[:, None], 0.0)
    plain = np.array([name == "1f1b" for name in s.schedule])[:, None]

    def holds(step: FloatArray) -> BoolArray:
        length = np.maximum(step - tail, 0.0)[:, None]
        spare = np.maximum(length - work[:, None], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_path = np.where(plain & (through > 0), spare / through, np.inf)
        held = _capacity(ranks, np.minimum(length / m, by_path)).sum(axis=1)
        return np.asarray(held * (1 + 1e-9) >= blocks)

    low, high = floor.copy(), np.full(len(s), min(ceiling, 1e9))
    possible = holds(high) & (low <= high)
    for _ in range(rounds):
        middle = (low + high) / 2
        enough = holds(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(possible, np.where(holds(floor), floor, low), np.inf)
