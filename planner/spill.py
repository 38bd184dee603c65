"""Where nothing fits on the devices alone, states go to host memory: the last resort, searched by itself.

Offloading moves every trained state over the host link in every step, which costs more than other ways to
save memory; so it is no part of the usual space unless the job names it.
"""

from typing import Final

from meshwright.planner.choice import Choice
from meshwright.planner.problem import Problem

SPILLED: Final = "nothing fits without offloading: searched with states in host memory"


def spilled(problem: Problem) -> Problem | None:
    """Return the problem with some states in host memory; drives are used only where the job names them.

    None where the job has its own word on it, or where device or target offload nothing.
    """
    able = problem.target.offload & {"optimizer", "parameters"}
    linked = problem.cluster.accelerator.host_link is not None
    if not (able and linked) or "offload" in problem.job.choices:
        return None
    return problem.choosing(offload=Choice(allowed=able))
