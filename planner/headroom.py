"""How much of a device's memory a plan must leave free: what measured peaks exceed predictions by."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meshwright.costmodels.residuals import Spread, memory_spread

if TYPE_CHECKING:
    from meshwright.hardware.spec import Accelerator
    from meshwright.planner.job import Job

MOST: Final = 0.10
"""Largest share of a device that measured spread alone may ask for."""


@dataclass(frozen=True)
class Headroom:
    """The memory that a plan leaves free.

    Attributes
    ----------
    share
        Of the device's usable memory.
    origin
        Where it comes from, in words.
    oom_risk
        Share of runs that may exceed it; None where the share was given.
    """

    share: float
    origin: str
    oom_risk: float | None = None


def headroom_of(job: "Job", profile: str, accelerator: "Accelerator") -> Headroom:
    """Return the headroom of a job: the given one, else what the measured spread asks for.

    A plan's file records the share alone: where it is what the spread asks for, that is said.
    """
    asked_for = measured_headroom(job.oom_risk, profile, accelerator)
    if job.headroom is None or job.headroom == asked_for.share:
        return asked_for
    return Headroom(float(job.headroom), "as given")


def measured_headroom(oom_risk: float, profile: str, accelerator: "Accelerator") -> Headroom:
    """Return what the measured spread asks for.

    With ``q`` the quantile ``1 - oom_risk`` of the errors (measured over predicted peak, minus one, less
    their mean) of the nearest group of runs, a plan fits if ``peak x (1 + q)`` does: a share of
    ``q / (1 + q)`` is left free, at least what driver and libraries hold and at most :data:`MOST`. Left out:
    that the errors of one job's plans are alike, so that the risk is one of the job, not of each plan.
    """
    spread = memory_spread(profile)
    if spread is None:
        return Headroom(MOST, "no measured peak is known: the most that is ever asked for", oom_risk)
    over = max(spread.quantile(1 - oom_risk), 0.0)
    asked, least = over / (1 + over), accelerator.achieved.context_bytes / accelerator.memory_bytes
    share = min(max(asked, least), MOST)
    told = f"{100 * (1 - oom_risk):.4g}% of {_runs(spread)} exceed predictions by at most {over:.1%}"
    if share < asked:
        told += f", but no more than {MOST:.0%} is ever asked for"
    elif share > asked:
        told += ", less than driver and libraries hold"
    return Headroom(share, told, oom_risk)


def _runs(spread: Spread) -> str:
    """Say which measured peaks a spread is of."""
    named = {"profile": "{}", "counter": "{} memory"}
    of = ", ".join(named[field].format(value) for field, value in spread.group.items())
    return f"{spread.runs} measured peaks ({of or 'all'})"
