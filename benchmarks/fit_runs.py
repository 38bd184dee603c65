"""Measured runs that can be priced again with other constants: each row is expressed once."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from benchmarks.accuracy_groups import kind_of
from benchmarks.fit_constants import EVERYWHERE, TABLES, Constant, Shifts
from benchmarks.fit_observable import STEP_TIME, Observable
from benchmarks.measured_prices import Expressed, Priced, priced_run
from benchmarks.rows import counter_of
from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.calibration import RATES, rate_factor
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import find_profile, profile_parts, sourced_profiles
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.spec import Accelerator, Cluster
from meshwright.planner.batch import Case, price_cases
from meshwright.planner.problem import Problem

ROOT: Final = "generic"
"""The profile that all others inherit from."""


def depth(constant: Constant) -> int:
    """Return how far a constant's place is from its root."""
    if constant.kind == "profiles":
        return len(lineage(constant.place))
    return int(constant.kind == "accelerators")


def lineage(profile: str) -> tuple[str, ...]:
    """Return a profile and its ancestors, the root first."""
    table, found = sourced_profiles(), [profile]
    while "inherits" in table[found[-1]]:
        found.append(str(table[found[-1]]["inherits"]))
    return tuple(reversed(found))


def profile_value(profile: str, name: str, shifts: Shifts) -> float:
    """Return a profile's constant: each ancestor may set its sourced value, and shift it."""
    table, value = sourced_profiles(), 0.0
    for place in (*lineage(profile), EVERYWHERE):
        value = float(table.get(place, {}).get(name, value))
        constant = Constant("profiles", place, name)
        if constant in shifts:
            value = constant.bounds.moved(value, shifts[constant])
    return value


def rate_value(accelerator: Accelerator, rate: str, shifts: Shifts) -> float:
    """Return an accelerator's factor on an achieved rate: its architecture's, shifted by its own."""
    value = 1.0
    own = ("accelerators", accelerator.name)
    for kind, place in (("architectures", accelerator.architecture), own, ("accelerators", EVERYWHERE)):
        constant = Constant(kind, place, rate)
        if constant in shifts:
            value = constant.bounds.moved(value, shifts[constant])
    return value


def _reaches(constant: Constant, run: Expressed) -> bool:
    accelerator = run.problem.cluster.accelerator
    if constant.kind == "architectures":
        return constant.place == accelerator.architecture
    if constant.kind == "accelerators":
        return constant.place in (accelerator.name, EVERYWHERE)
    base, switches = profile_parts(run.problem.profile.name)
    way, table = (*lineage(base), EVERYWHERE), sourced_profiles()
    if constant.field in switches or constant.place not in way:
        return False
    below = way[way.index(constant.place) + 1 : -1]
    return not any(constant.field in table[place] for place in below)


def value_of(constant: Constant, shifts: Shifts) -> float:
    """Return a constant's value at its own place."""
    if constant.kind == "profiles":
        return profile_value(constant.place, constant.field, shifts)
    if constant.kind == "accelerators":
        return rate_value(load_accelerator(constant.place), constant.field, shifts)
    return constant.bounds.moved(1.0, shifts.get(constant, 0.0))


def moved(constants: Sequence[Constant], shifts: Shifts, change: FloatArray) -> dict[Constant, float]:
    """Return shifts after a change, each value kept in its bounds, ancestors first."""
    found: dict[Constant, float] = {}
    order = sorted(range(len(constants)), key=lambda at: depth(constants[at]))
    for at in order:
        constant = constants[at]
        found[constant] = 0.0
        start, bounds = value_of(constant, found), constant.bounds
        shift = shifts.get(constant, 0.0) + float(change[at])
        value = min(max(bounds.moved(start, shift), bounds.low), bounds.high)
        found[constant] = bounds.shift(start, value)
    return found


def _experts(run: Expressed) -> bool:
    return run.row.moe is not None


def _low(run: Expressed) -> bool:
    return run.problem.precision.low_compute is not None


def _reduces(run: Expressed) -> bool:
    """Return whether gradients travel: those of replicas, or of a weight that two stages hold."""
    plan = run.plan
    return plan.num_devices > plan.tp * plan.pp or (plan.pp > 1 and any(run.problem.model.tied))


ABOUT: Final[Mapping[str, Callable[[Expressed], bool]]] = {
    "grouped_fill": _experts,
    "permute_fraction": _experts,
    "dispatch_sync_s": _experts,
    "overlap_experts": lambda run: _experts(run) and run.plan.num_devices > 1,
    "low_gemm_fraction": _low,
    "low_gemm": _low,
    "overlap_tensor": lambda run: run.plan.tp > 1,
    "layer_rate": lambda run: run.plan.tp * run.plan.cp * run.plan.ep > 1,
    "jitter": lambda run: run.plan.num_devices > 1,
    "overlap_cost": lambda run: run.plan.num_devices > 1,
    "data_rate": lambda run: run.plan.num_devices > run.plan.tp * run.plan.pp,
    "overlap_gradients": _reduces,
    "overlap_parameters": lambda run: run.plan.num_devices > run.plan.tp * run.plan.pp,
    "fragmentation": lambda run: counter_of(run.row) in ("reserved", "nvidia-smi"),
    "communicator_bytes": lambda run: counter_of(run.row) == "nvidia-smi",
}
"""Runs that a field may say something about; of fields that are not named here all."""


@dataclass(frozen=True)
class Runs:
    """Expressed runs with what is needed to price them under other constants."""

    runs: tuple[Expressed, ...]
    observable: Observable = STEP_TIME
    _accelerators: dict[Any, Accelerator] = field(default_factory=dict, repr=False)
    _clusters: dict[Any, Cluster] = field(default_factory=dict, repr=False)

    @cached_property
    def measured(self) -> FloatArray:
        """What was measured, (N,); not a number where nothing was."""
        return np.array([self.observable.measured(r.row) or np.nan for r in self.runs], dtype=np.float64)

    @cached_property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """Family and kind of each run: each pair has one vote."""
        return tuple((r.row.family, kind_of(r.row)) for r in self.runs)

    @cached_property
    def places(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Places on the way to some run, and the leaves (profiles, accelerators) below each."""
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for run in self.runs:
            accelerator = run.problem.cluster.accelerator
            if accelerator.architecture:
                found["architectures", accelerator.architecture].add(accelerator.name)
            found["accelerators", accelerator.name].add(accelerator.name)
            base = profile_parts(run.problem.profile.name)[0]
            for place in lineage(base):
                found["profiles", place].add(base)
        return {place: frozenset(leaves) for place, leaves in found.items()}

    def reached(self, constant: Constant) -> BoolArray:
        """Return which runs a constant reaches, (N,): those below its place that inherit it."""
        return np.array([_reaches(constant, run) for run in self.runs], dtype=np.bool_)

    def concerned(self, constant: Constant) -> BoolArray:
        """Return the runs, (N,), that have at all what a field is about: experts, low precision, splits."""
        about = ABOUT.get(constant.field, lambda run: True)
        return np.array([about(run) for run in self.runs], dtype=np.bool_)

    def weights(self, most: float = 1.0) -> FloatArray:
        """Return the weight of each run, (N,): ``most`` for a family and kind, however many runs it has.

        A family with fewer than five runs weighs as if each were one of five.
        """
        count: dict[tuple[str, str], int] = defaultdict(int)
        for group in self.groups:
            count[group] += 1
        return np.array([most / max(count[group], 5) for group in self.groups])

    def prices(self, shifts: Shifts, rows: Sequence[int] | IntArray | None = None) -> list[Priced]:
        """Return prices of some runs (all) under shifted constants."""
        wanted = range(len(self.runs)) if rows is None else rows
        profiles: dict[str, Profile] = {}
        cases = [
            Case(self._problem(self.runs[at].problem, shifts, profiles), self.runs[at].plan) for at in wanted
        ]
        return [priced_run(self.runs[at], got) for at, got in zip(wanted, price_cases(cases), strict=True)]

    def log_ratio(self, shifts: Shifts, rows: Sequence[int] | IntArray | None = None) -> FloatArray:
        """Return the logarithm of predicted over measured of some runs (all)."""
        wanted = np.arange(len(self.runs)) if rows is None else np.asarray(rows)
        told = [self.observable.predicted(got) or np.nan for got in self.prices(shifts, wanted)]
        return np.asarray(np.log(np.array(told, dtype=np.float64) / self.measured[wanted]))

    def take(self, rows: Iterable[int]) -> "Runs":
        """Return some of the runs."""
        some = tuple(self.runs[at] for at in rows)
        return Runs(some, self.observable, self._accelerators, self._clusters)

    def _problem(self, problem: Problem, shifts: Shifts, profiles: dict[str, Profile]) -> Problem:
        """Return a problem with other constants; its model, which is the same, is shared."""
        changed = replace(problem, cluster=self._cluster(problem.cluster, shifts))
        name = problem.profile.name
        if name not in profiles:
            profiles[name] = shifted_profile(name, shifts)
        vars(changed).update(profile=profiles[name], model=problem.model, precision=problem.precision)
        return changed

    def _cluster(self, cluster: Cluster, shifts: Shifts) -> Cluster:
        accelerator = cluster.accelerator
        factors = tuple(
            rate_value(accelerator, rate, shifts) / rate_factor(accelerator, rate) for rate in RATES
        )
        if all(f == 1.0 for f in factors):
            return cluster
        key = (id(accelerator), factors)
        if key not in self._accelerators:
            self._accelerators[key] = _scaled(accelerator, factors)
        whole = (id(cluster), factors)
        if whole not in self._clusters:
            self._clusters[whole] = replace(cluster, accelerator=self._accelerators[key])
        return self._clusters[whole]


def _scaled(accelerator: Accelerator, factors: tuple[float, ...]) -> Accelerator:
    gemm, low, memory = factors
    own = accelerator.achieved
    changed = replace(
        own,
        gemm_fraction=own.gemm_fraction * gemm,
        memory_fraction=own.memory_fraction * memory,
        low_gemm_fractions={dtype: f * low for dtype, f in own.low_gemm_fractions.items()},
    )
    return replace(accelerator, achieved=changed)


def shifted_profile(name: str, shifts: Shifts) -> Profile:
    """Return a profile under shifted constants; switches in its name stay as they are said."""
    base, switches = profile_parts(name)
    values = {f: profile_value(base, f, shifts) for f in TABLES["profiles"] if f not in switches}
    return replace(find_profile(name), **values)
