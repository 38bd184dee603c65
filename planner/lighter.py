"""Which changes of a plan that does not fit would make it fit, each tried and priced."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import RECOMPUTE_MODES, Plan
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate
from meshwright.planner.strategy import make_plan

_KEPT = (
    *("tp", "cp", "pp", "dp_replicate", "ep", "etp", "hpz", "vpp", "micro_batch_size", "zero_stage"),
    *("sequence_parallel", "kv_exchange", "ulysses", "offload", "schedule", "placement"),
)
"""Decisions that a changed plan takes over from the plan as they stand; ``dp`` follows from the devices."""

PARTS = 64
"""A micro-batch is divided by, and a degree multiplied with, no more than this."""

Decisions = Mapping[str, Any]


@dataclass(frozen=True)
class Lighter:
    """A changed plan that fits.

    Attributes
    ----------
    changes
        The decisions taken otherwise, by name; ``recompute`` means every block.
    estimate
        The price of the plan with these changes and all else as it was.
    """

    changes: Mapping[str, int | str]
    estimate: Estimate


def lighter_plans(problem: Problem, plan: Plan) -> tuple[Lighter, ...]:
    """Return plans that fit and differ from ``plan`` in one decision, or in two of which neither suffices.

    Of each decision only the fastest value that fits is kept; pairs take the lightest value of each decision
    that has none. Fastest first. Left out: changes of the job (precision, loss, length, batch), of more than
    two decisions, and of single layers; ``solve`` searches the last two.
    """
    own = _decisions(problem, plan)
    single = [_priced(problem, own, ({name: v} for v in values)) for name, values in _values(own)]
    alone = [fastest for found in single if (fastest := _fastest(found))]
    short = [min(found, key=_peak).changes for found in single if found and not _fastest(found)]
    pairs = _priced(problem, own, ({**a, **b} for a, b in combinations(short, 2)))
    fitting = [*alone, *(pair for pair in pairs if pair.estimate.fits)]
    return tuple(sorted(fitting, key=lambda one: one.estimate.step_time_s))


def _decisions(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the plan as the fields of a strategy, its stages and the mode of each block included."""
    blocks = problem.model.block_layers
    stages = tuple(sum(chunk.start <= layer < chunk.stop for layer in blocks) for chunk in plan.chunks)
    own = {name: getattr(plan, name) for name in _KEPT}
    return own | {"recompute": tuple(plan.recompute[layer] for layer in blocks), "layers_per_stage": stages}


def _values(own: Decisions) -> Iterator[tuple[str, list[int] | list[str]]]:
    """Yield the decisions that take memory off a device, and the values of each that may."""
    yield "recompute", [mode for mode in RECOMPUTE_MODES if set(own["recompute"]) != {mode}]
    size = own["micro_batch_size"]
    yield "micro_batch_size", [size // parts for parts in range(2, PARTS + 1) if size % parts == 0]
    yield "zero_stage", list(range(own["zero_stage"] + 1, 4))
    for degree in ("tp", "cp", "pp", "ep"):
        yield degree, [own[degree] << doubled for doubled in range(1, PARTS.bit_length())]
    yield "offload", [place for place in OFFLOADS if place != own["offload"]]


def _priced(problem: Problem, own: Decisions, changed: Iterator[dict[str, int | str]]) -> list[Lighter]:
    """Return those changed plans that break no rule, priced."""
    found = []
    for changes in changed:
        try:
            plan = make_plan(problem, **{**own, **_following(changes), **changes})
        except MeshwrightError:
            continue
        found.append(Lighter(changes, price_plan(problem, plan)))
    return found


def _following(changes: Decisions) -> dict[str, Any]:
    """Return what a change leaves to a practitioner's choice again: even stages, sequence parallelism."""
    stages = {"layers_per_stage": None} if "pp" in changes else {}
    return stages | ({"sequence_parallel": None} if {"tp", "cp"} & set(changes) else {})


def _fastest(found: list[Lighter]) -> Lighter | None:
    """Return the fastest plan that fits, None if none does."""
    fitting = [one for one in found if one.estimate.fits]
    return min(fitting, key=lambda one: one.estimate.step_time_s, default=None)


def _peak(one: Lighter) -> float:
    return max(one.estimate.peak_bytes)
