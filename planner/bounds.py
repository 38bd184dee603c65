"""Lower bounds on the step time and the memory of every mesh, in numpy: what they discard cannot win.

All meshes are priced: total work spread over the pipeline by the closed form of its schedule, and the mean
over ranks of what must be held. :mod:`meshwright.planner.stage_bounds` looks closer at the survivors.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.pipeline_bounds import uniform_bound
from meshwright.costmodels.recompute import MODES, has_experts
from meshwright.costmodels.step import fixed_bytes
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.modes import check_modes, host_linked
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
    first, last
        Kind of the first and of the last layer where it is no block (it stays on the pipeline's end), or -1.
    """

    layers: IntArray
    allowed: BoolArray
    blocks: BoolArray
    first: int = -1
    last: int = -1

    @property
    def movable(self) -> IntArray:
        """Layers of each kind that may lie on any rank, (K,)."""
        free = self.layers.copy()
        for end in (self.first, self.last):
            if end >= 0:
                free[end] -= 1
        return free

    def without(self, mode: str) -> "Demand":
        """Return the demand without a recompute mode."""
        return replace(self, allowed=self.allowed & (np.array(MODES) != mode))

    def possible(self) -> bool:
        """Return whether every kind has a mode."""
        return bool(self.allowed.any(axis=1).all())


def demand(problem: Problem) -> Demand:
    """Return what must be placed, with the recompute modes that target and job admit.

    ``moe`` is a mode of layers with experts; for others it means ``selective``. ``offload`` is none where
    devices have no way to a host, unless the job names it.

    Raises
    ------
    MeshwrightError
        If no mode is left, or device or model lack ``offload`` or the only one that is.
    """
    model = problem.model
    wanted = problem.job.choices.get("recompute", Choice())
    named = wanted.allowed or frozenset()
    admitted = {m for m in MODES if m in problem.target.recompute and wanted.admits(m)}
    modes = {m for m in admitted if m != "offload" or m in named or host_linked(problem)}
    if not modes:
        have = ", ".join(m for m in MODES if m in problem.target.recompute)
        raise MeshwrightError(f"pins: recompute leaves no mode of {problem.target.title}; it has {have}")
    check_modes(problem, modes if modes == {"moe"} else modes & {"offload"})
    allowed = np.array([[m in _own_modes(kind, modes, named) for m in MODES] for kind in model.kinds])
    blocks = np.array([kind.role == "block" for kind in model.kinds])
    ends = [-1 if blocks[k] else k for k in (model.layer_kinds[0], model.layer_kinds[-1])]
    return Demand(model.kind_counts, allowed, blocks, *ends)


def demand_several(problem: Problem, want: Demand) -> Demand:
    """Return the demand of meshes with several chunks a rank: they offload only where the job names it.

    With one chunk a rank the modes of a stage follow from its layers, and a fourth mode costs the proof
    little; with several CP-SAT deals layers to modes chunk by chunk, and proofs of large models do not end.
    """
    named = problem.job.choices.get("recompute", Choice()).allowed or frozenset()
    fewer = want.without("offload")
    return want if "offload" in named or not fewer.possible() else fewer


def _own_modes(kind: LayerKind, modes: set[str], named: frozenset[str]) -> set[str]:
    """Return the modes that a kind may take: only blocks are recomputed, and only experts apart."""
    if kind.role != "block":
        return {"none"}
    if has_experts(kind):
        return modes
    rest = modes - {"moe"}
    return rest | {"selective"} if "moe" in named or not rest else rest


def _least(values: FloatArray, allowed: BoolArray) -> FloatArray:
    """Return the least over allowed modes, (B, K)."""
    return np.asarray(np.where(allowed, values, np.inf).min(axis=-1))


@dataclass(frozen=True)
class Looks:
    """What a first look at meshes takes from their tables, each (B,); no schedule and no vpp matters here.

    Attributes
    ----------
    layers_s
        Least seconds of all layers for a micro-batch.
    forward_share
        Largest share of a forward pass in a chunk's time.
    pass_s, transfer_s, weight_s
        Lost in every pass of a chunk, between stages, and of the weight gradients.
    tail_s
        What follows the pipeline at least.
    floor_bytes, host_bytes
        What the fullest rank holds at least, on the device and of states off it.
    """

    layers_s: FloatArray
    forward_share: FloatArray
    pass_s: FloatArray
    transfer_s: FloatArray
    weight_s: FloatArray
    tail_s: FloatArray
    floor_bytes: FloatArray
    host_bytes: FloatArray

    def take(self, rows: IntArray) -> "Looks":
        """Return the looks at some rows."""
        return Looks(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def work_s(self, s: Strategies) -> FloatArray:
        """Return the least seconds of all chunks for a micro-batch, (B,)."""
        return self.layers_s + 2 * s.chunks * self.pass_s


def look(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> Looks:
    """Return the first look at a batch of meshes."""
    backward = _least(tables.backward_s, want.allowed)
    both = tables.forward_s + backward
    ratios = (tables.forward_s / np.maximum(both, 1e-30)).max(axis=-1)
    return Looks(
        layers_s=(both * want.layers).sum(axis=-1),
        forward_share=np.maximum(ratios, 0.5 * (tables.pass_s > 0)),
        pass_s=tables.pass_s,
        transfer_s=tables.transfer_s,
        weight_s=(tables.weight_s * want.layers).sum(axis=-1),
        tail_s=_tail(setting, s, tables, want),
        floor_bytes=_memory_floor(setting, s, tables, want),
        host_bytes=(tables.host_bytes * want.layers).sum(axis=-1) / s.pp,
    )


def quick_bounds(s: Strategies, seen: Looks) -> FloatArray:
    """Return a lower bound on the step time of each mesh, (B,), whatever the stages and recomputation."""
    work = seen.work_s(s)
    pipeline = np.zeros(len(s))
    names = np.array(s.schedule)
    for name in sorted(set(s.schedule)):
        at = names == name
        pipeline[at] = uniform_bound(
            name,
            s.pp[at],
            s.vpp[at],
            s.num_microbatches[at],
            work[at],
            seen.forward_share[at],
            seen.transfer_s[at],
            seen.weight_s[at],
        )
    return (pipeline + seen.tail_s) * SAFETY


def _tail(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> FloatArray:
    """Return what follows the pipeline at least: the mean rank's optimizer, and alone the late gradients."""
    slowest = np.where(want.allowed, tables.backward_s, 0.0).max(axis=-1)
    window = setting.profile.overlap_gradients * (slowest * want.layers).sum(axis=-1)
    late = exposed_time((tables.reduce_s * want.layers).sum(axis=-1), window, setting.profile.overlap_cost)
    update = (tables.optimizer_s * want.layers).sum(axis=-1) / s.pp
    return np.asarray(np.where(s.pp == 1, late, 0.0) + update + setting.profile.step_fixed_s)


def _memory_floor(setting: Setting, s: Strategies, tables: Tables, want: Demand) -> FloatArray:
    """Return bytes that the fullest rank of each mesh holds at least, (B,): the mean over ranks.

    Every layer's states lie somewhere, and every layer keeps one micro-batch's least activations at its peak.
    """
    kept = _least(tables.saved_bytes, want.allowed) * (1 + setting.profile.fragmentation)
    everywhere = ((tables.state_bytes + kept) * want.layers).sum(axis=-1) / s.pp
    return np.asarray((everywhere + np.sum(list(fixed_bytes(setting, s).values()), axis=0)) * SAFETY)
