"""The fastest recompute mix of a stage with given layers, decided before CP-SAT starts.

With one chunk a rank, memory is a limit on each stage alone, and a step never gets shorter when a backward
pass gets longer: recomputing in the first place only serves to fit. So among all mixes of modes of a stage's
layers that fit, one with the shortest backward pass is never worse, and where the pipeline is cut is the
only decision left. (What a longer backward pass hides of the gradient reduction is less than it costs.)

A stage's memory is a sum over its layers and the largest working set among their modes. For each limit on
the working set the mixes of one kind reduce to their Pareto front of backward time and kept bytes; fronts of
several layers and kinds are summed. What offloaded layers keep off the device has a limit of its own, which
seldom binds: where the fastest mix exceeds it, a model of that stage alone decides
(:mod:`meshwright.planner.cpsat.ration`).
"""

from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import StaticSchedule, in_flight
from meshwright.planner.bounds import Demand
from meshwright.planner.cpsat.ration import rationed
from meshwright.planner.cpsat.scaling import Scaled


@dataclass(frozen=True)
class Front:
    """Mixes that no other mix beats in backward time and kept bytes, by rising time.

    Attributes
    ----------
    cost
        Backward units of time, (F,).
    kept
        Memory units that one micro-batch keeps, (F,).
    mixes
        Layers of each kind in each mode, (F, K, M).
    """

    cost: IntArray
    kept: IntArray
    mixes: IntArray

    def __add__(self, other: "Front") -> "Front":
        """Return the front of stages that hold the layers of both."""
        cost = np.add.outer(self.cost, other.cost).ravel()
        kept = np.add.outer(self.kept, other.kept).ravel()
        best = unbeaten(cost, kept)
        mine, its = np.divmod(best, len(other.cost))
        return Front(cost[best], kept[best], self.mixes[mine] + other.mixes[its])


def unbeaten(cost: IntArray, kept: IntArray) -> IntArray:
    """Return the places of those that none beats in both, by rising cost; the first of equal ones."""
    order = np.lexsort((kept, cost))
    falling = np.minimum.accumulate(kept[order])
    best: IntArray = order[np.concatenate([[True], falling[1:] < falling[:-1]])]
    return best


@dataclass(frozen=True)
class Room:
    """What a stage has for activations: memory units on the device, off it, and micro-batches in flight."""

    here: int
    away: int
    live: int


@dataclass
class Mixes:
    """The fastest mixes of one mesh; fronts are remembered."""

    scaled: Scaled
    want: Demand
    fronts: dict[tuple[tuple[int, ...], int], Front | None] = field(default_factory=dict)
    stacks: dict[tuple[int, int], list[Front | None]] = field(default_factory=dict)
    """Fronts of 1, 2, ... layers of a kind, by kind and limit on the working set."""

    def __post_init__(self) -> None:
        s, allowed = self.scaled, self.want.allowed
        self.limits = np.unique(s.working[allowed])
        largest = np.iinfo(np.int64).max
        order = np.lexsort((s.saved, s.saved_away, np.where(allowed, s.backward, largest)), axis=-1)
        self.quickest = order[:, 0]
        self.least_saved = np.where(allowed, s.saved, largest).min(axis=1)
        self.least_working = np.where(allowed, s.working, largest).min(axis=1)

    def fastest(self, layers: tuple[int, ...], live: int) -> IntArray | None:
        """Return layers by kind and mode, (K, M), of the fastest mix that fits, or None if none fits.

        Parameters
        ----------
        layers
            Layers of each kind in the stage.
        live
            Micro-batches in flight at the stage's fullest moment.
        """
        s, present = self.scaled, [k for k, n in enumerate(layers) if n]
        states = sum(layers[k] * int(s.states[k]) for k in present)
        room = Room(s.room - states, s.room_away(layers), live)
        alone = self._alone(layers, room)
        if alone is not None:
            return alone
        kept = live * sum(layers[k] * int(self.least_saved[k]) for k in present)
        if kept + max(int(self.least_working[k]) for k in present) > room.here:
            return None
        found = self._best(layers, room)
        if found is None or live * int((found * s.saved_away).sum()) <= room.away:
            return found
        return rationed(s, self.want, layers, room.here, room.away, live)

    def _best(self, layers: tuple[int, ...], room: Room) -> IntArray | None:
        """Return the fastest mix for the room on the device."""
        best: tuple[int, int] | None = None
        found: IntArray | None = None
        for limit in self.limits.tolist():
            front = self._front(layers, limit)
            if front is None:
                continue
            fits = np.flatnonzero(room.live * front.kept + limit <= room.here)
            if not len(fits):
                continue
            at = int(fits[0])  # by rising time: the first that fits is the fastest
            rank = (int(front.cost[at]), room.live * int(front.kept[at]) + limit)
            if best is None or rank < best:
                best, found = rank, front.mixes[at]
        return found

    def _alone(self, layers: tuple[int, ...], room: Room) -> IntArray | None:
        """Return the mix of every kind in its quickest mode, where that fits: nothing is faster."""
        s, present = self.scaled, [k for k, n in enumerate(layers) if n]
        modes = [int(self.quickest[k]) for k in present]
        kept, away = (
            room.live * sum(layers[k] * int(table[k, m]) for k, m in zip(present, modes, strict=True))
            for table in (s.saved, s.saved_away)
        )
        if kept + int(s.working[present, modes].max()) > room.here or away > room.away:
            return None
        mix = np.zeros_like(s.saved)
        mix[present, modes] = np.array(layers)[present]
        return mix

    def _front(self, layers: tuple[int, ...], limit: int) -> Front | None:
        """Return the front of a stage whose working set stays within a limit, None if no mode does."""
        key = (layers, limit)
        if key not in self.fronts:
            self.fronts[key] = self._summed(layers, limit)
        return self.fronts[key]

    def _summed(self, layers: tuple[int, ...], limit: int) -> Front | None:
        total: Front | None = None
        for kind, n in enumerate(layers):
            if not n:
                continue
            own = self._kind_front(kind, n, limit)
            if own is None:
                return None
            total = own if total is None else total + own
        return total

    def _kind_front(self, kind: int, n: int, limit: int) -> Front | None:
        """Return the front of ``n`` layers of a kind: that of one fewer, with one more."""
        if (kind, limit) not in self.stacks:
            self.stacks[kind, limit] = [self._one_layer(kind, limit)]
        stack = self.stacks[kind, limit]
        one = stack[0]
        if one is None:
            return None
        while len(stack) < n:
            shorter = stack[-1]
            assert shorter is not None
            stack.append(shorter + one)
        return stack[n - 1]

    def _one_layer(self, kind: int, limit: int) -> Front | None:
        s = self.scaled
        modes = np.flatnonzero(self.want.allowed[kind] & (s.working[kind] <= limit))
        if not len(modes):
            return None
        chosen = modes[unbeaten(s.backward[kind, modes], s.saved[kind, modes])]
        mixes = np.zeros((len(chosen), *s.saved.shape), dtype=np.int64)
        mixes[np.arange(len(chosen)), kind, chosen] = 1
        return Front(s.backward[kind, chosen], s.saved[kind, chosen], mixes)


@dataclass
class StageMixes:
    """The fastest mixes of the stages of one mesh that could be part of a step below a cutoff.

    Attributes
    ----------
    live
        Micro-batches in flight at each rank's fullest moment.
    least
        Units of time of a layer of each kind at least, (K,).
    most
        Units of time that a stage may take for one micro-batch.
    """

    known: Mixes
    live: list[int]
    least: IntArray
    most: int
    found: dict[tuple[int, tuple[int, ...]], IntArray | None] = field(default_factory=dict)

    @classmethod
    def below(cls, cutoff_s: float, scaled: Scaled, want: Demand, schedule: StaticSchedule) -> "StageMixes":
        """Return the mixes of stages that a step below ``cutoff_s`` may hold."""
        live = [int(rows.max()) for rows in in_flight(schedule)]
        backward = np.where(want.allowed, scaled.backward, np.iinfo(np.int64).max).min(axis=1)
        least = scaled.forward + backward + scaled.weight
        most = scaled.floor_time(cutoff_s) // schedule.num_microbatches
        return cls(Mixes(scaled, want), live, least, most)

    def least_units(self, layers: IntArray) -> IntArray:
        """Return the units of time that so many layers of each kind take at least, (...) from (..., K)."""
        return np.asarray(layers @ self.least)

    def fastest(self, rank: int, layers: tuple[int, ...]) -> IntArray | None:
        """Return the fastest modes, (K, M), of a stage with these layers; None where it cannot be."""
        key = self.live[rank], layers
        if key not in self.found:
            possible = self._within(layers)
            self.found[key] = self.known.fastest(layers, self.live[rank]) if possible else None
        return self.found[key]

    def _within(self, layers: tuple[int, ...]) -> bool:
        """Whether time, and the room off the device, allow a stage with these layers."""
        away = self.known.scaled.away
        room = all(int(np.dot(place.states, layers)) <= place.room for place in away)
        return room and int(self.least_units(np.array(layers))) <= self.most
