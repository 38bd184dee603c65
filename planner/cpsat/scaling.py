"""From seconds and bytes to the integers that CP-SAT works on, with the error bounded.

Times that lengthen a step round down and windows that shorten it round up, so the integer objective is a
lower bound on the price; memory rounds up, so what CP-SAT accepts fits. One unit of time is a
:data:`RESOLUTION`-th of the smallest block's pass, one unit of memory a KiB: the relative error is below
``1 / RESOLUTION`` and a KiB a layer. The floating-point price alone judges a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.schedule import splits_backward
from meshwright.costmodels.step import fixed_bytes
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import Demand

RESOLUTION = 200_000
MEMORY_UNIT_BYTES = 1024.0


@dataclass(frozen=True)
class Limits:
    """Bytes that a plan may fill for each device: on it, in host memory, and on drives."""

    usable: float
    host: float = np.inf
    nvme: float = np.inf

    @property
    def all(self) -> tuple[float, float, float]:
        """The limits, in that order."""
        return self.usable, self.host, self.nvme


@dataclass(frozen=True)
class Away:
    """What lies in a place off the device, in memory units rounded up, and a device's share of the place.

    Attributes
    ----------
    states, saved
        States of a layer (K,), and what one micro-batch keeps of it (K, M).
    """

    states: IntArray
    saved: IntArray
    room: int


@dataclass(frozen=True)
class Scaled:
    """One mesh in integers: K kinds, M modes.

    Attributes
    ----------
    unit_s
        Seconds of a unit of time.
    forward, backward, weight
        (K,), (K, M) and (K,), rounded down. Where the schedule has weight passes the backward is without
        them; elsewhere ``weight`` is zero.
    reduce, reduce_floor, window
        Gradient reduction (K,); its part that no overlap hides (K,); the window of a rank's last pass, a
        backward or a weight pass, (K, M), rounded up.
    hidden
        The share of any such window that hides, between 0 and 1.
    gather, gather_floor, gather_window
        The same as the first three for gathering parameters: (K,), (K,), (K,).
    gather_apart
        What of gathering for later chunks precedes the first pass of a rank, (K,).
    optimizer
        (K,).
    transfer, each_pass, fixed
        Scalars; ``each_pass`` lengthens every pass of a chunk.
    pass_window, pass_gather_window
        What that adds to the two windows, rounded up.
    states, saved, working
        Bytes in memory units, rounded up: (K,), (K, M), (K, M).
    room
        Memory units on each device.
    away
        Places off the device that limit a plan: host memory, drives.
    """

    unit_s: float
    forward: IntArray
    backward: IntArray
    weight: IntArray
    reduce: IntArray
    reduce_floor: IntArray
    window: IntArray
    hidden: float
    gather: IntArray
    gather_floor: IntArray
    gather_window: IntArray
    gather_apart: IntArray
    optimizer: IntArray
    transfer: int
    each_pass: int
    fixed: int
    pass_window: int
    pass_gather_window: int
    states: IntArray
    saved: IntArray
    working: IntArray
    room: int
    away: tuple[Away, ...] = ()

    @cached_property
    def saved_away(self) -> IntArray:
        """What one micro-batch of a layer keeps off the device where that has a limit, (K, M)."""
        place = self._activations_away
        return np.zeros_like(self.saved) if place is None else place.saved

    def room_away(self, layers: Sequence[int]) -> int:
        """Return the memory units that are left for it beside the states of so many layers of each kind."""
        place = self._activations_away
        return int(np.iinfo(np.int64).max if place is None else place.room - place.states @ np.array(layers))

    def longest(self, layers: IntArray, chunks: int, num_microbatches: int) -> int:
        """Return the units of a step of layers (K,) in their slowest modes, nothing beside anything."""
        passes = self.forward + self.backward.max(axis=1) + self.weight
        once = self.gather + self.reduce + self.optimizer
        each = int(passes @ layers) + 2 * chunks * (self.each_pass + self.transfer)
        return num_microbatches * each + int(once @ layers) + self.fixed

    @property
    def _activations_away(self) -> Away | None:
        return next((place for place in self.away if place.saved.any()), None)

    def floor_time(self, seconds: float) -> int:
        """Return whole units in a duration."""
        return int(np.floor(seconds / self.unit_s))


def _down(values: FloatArray, unit: float) -> IntArray:
    return np.floor(values / unit).astype(np.int64)


def _up(values: FloatArray, unit: float) -> IntArray:
    return np.ceil(values / unit).astype(np.int64)


def scale(setting: Setting, s: Strategies, tables: Tables, want: Demand, limits: Limits) -> Scaled:
    """Return one mesh (the first of the batch) in integers, with what a plan may fill."""
    profile = setting.profile
    lost, growth = profile.overlap_cost, 1 + profile.fragmentation
    blocks = np.flatnonzero(want.blocks)
    unit = float(tables.forward_s[0, blocks].min()) / RESOLUTION
    byte = MEMORY_UNIT_BYTES
    backward, split = tables.backward_s[0], splits_backward(s.schedule[0])
    weight = np.minimum(tables.weight_s[0], backward.min(axis=-1)) * split
    hidden = (1 - lost) * profile.overlap_gradients
    last_pass = np.broadcast_to(weight[:, None], backward.shape) if split else backward
    return Scaled(
        unit_s=unit,
        forward=_down(tables.forward_s[0], unit),
        backward=_down(backward - weight[:, None], unit),
        weight=_down(weight, unit),
        reduce=_down(tables.reduce_s[0], unit),
        reduce_floor=_down(lost * tables.reduce_s[0], unit),
        window=_up(hidden * last_pass, unit),
        hidden=float(hidden),
        gather=_down(tables.gather_s[0], unit),
        gather_floor=_down(lost * tables.gather_s[0], unit),
        gather_apart=_down((1 - (1 - lost) * profile.overlap_parameters) * tables.gather_s[0], unit),
        gather_window=_up((1 - lost) * profile.overlap_parameters * tables.forward_s[0], unit),
        optimizer=_down(tables.optimizer_s[0], unit),
        transfer=int(tables.transfer_s[0] / unit),
        each_pass=int(tables.pass_s[0] / unit),
        fixed=int(profile.step_fixed_s / unit),
        pass_window=0 if split else int(np.ceil(hidden * tables.pass_s[0] / unit)),
        pass_gather_window=int(np.ceil((1 - lost) * profile.overlap_parameters * tables.pass_s[0] / unit)),
        states=_up(tables.state_bytes[0], byte),
        saved=_up(growth * tables.saved_bytes[0], byte),
        working=_up(growth * tables.working_bytes[0], byte),
        room=int((limits.usable - sum(float(v[0]) for v in fixed_bytes(setting, s).values())) / byte),
        away=_away(s, tables, want, limits),
    )


def _away(s: Strategies, tables: Tables, want: Demand, limits: Limits) -> tuple[Away, ...]:
    """Return the places off the device in which something lies and which have a limit."""
    states, drives = _up(tables.host_bytes[0], MEMORY_UNIT_BYTES), bool(s.on_nvme[0])
    saved = _up(tables.offloaded_bytes[0] * want.allowed, MEMORY_UNIT_BYTES)
    places = (
        (limits.host, states * (not drives), saved),
        (limits.nvme, states * drives, np.zeros_like(saved)),
    )
    return tuple(
        Away(held, kept, int(share / MEMORY_UNIT_BYTES))
        for share, held, kept in places
        if np.isfinite(share) and (held.any() or kept.any())
    )
