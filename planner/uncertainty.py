"""How far a measured step time may lie from its prediction, told by the nearest runs that were measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meshwright.costmodels.recompute import has_experts
from meshwright.costmodels.residuals import UNSEEN, Group, measured_accelerators, step_time_spread

if TYPE_CHECKING:
    from meshwright.planner.problem import Problem

TYPICAL: Final = 2 / 3
WIDE: Final = 0.9
KIND_WORDS: Final = {"dense": "dense", "moe": "mixture of experts", "tuned": "adapters"}


@dataclass(frozen=True)
class Uncertainty:
    """The spread of measured over predicted step times of a group of runs.

    Attributes
    ----------
    typical, wide
        Two of three runs (nine of ten) lie within this share of the prediction.
    runs
        Runs in the group, each priced with constants fitted without its source's family.
    group
        What they have in common, in words.
    extrapolated
        Whether no run on the accelerator was measured.
    """

    typical: float
    wide: float
    runs: int
    group: str
    extrapolated: bool

    def __str__(self) -> str:
        """Say it in words: ``± 9 % (42 runs, megatron-core on h100-sxm, dense)``."""
        told = f"± {self.typical:.0%} (two of three of {self.runs:,} runs: {self.group})"
        if not self.extrapolated:
            return told
        return f"extrapolated: no measured run on this accelerator; {told}"


def kind_of(problem: "Problem") -> str:
    """Return what is trained: ``tuned`` (adapters or part of the weights), ``moe`` or ``dense``."""
    if str(problem.job.tuning) != "full":
        return "tuned"
    return "moe" if any(map(has_experts, problem.base.kinds)) else "dense"


def uncertainty_of(problem: "Problem") -> Uncertainty | None:
    """Return how far a measured step time may lie from its prediction; None if no run is known."""
    accelerator = problem.cluster.accelerator
    spread = step_time_spread(problem.profile.name, accelerator, kind_of(problem))
    if spread is None:
        return None
    return Uncertainty(
        typical=spread.quantile(TYPICAL),
        wide=spread.quantile(WIDE),
        runs=spread.runs,
        group=group_words(spread.group),
        extrapolated=accelerator.name not in measured_accelerators(),
    )


def group_words(group: Group) -> str:
    """Return what the runs of a group have in common."""
    stack = group.get("profile", "all stacks")
    where = group.get("accelerator", group.get("architecture"))
    if where == UNSEEN:
        where = "accelerators that nothing was fitted to"
    place = f"{stack} on {where}" if where else stack
    return f"{place}, {KIND_WORDS[group['kind']]}" if "kind" in group else place
