"""What a search leaves out unless the job names it: the limits of a proof, in words.

See :mod:`meshwright.planner.space` for the reasons.
"""

from collections.abc import Iterator

from meshwright.costmodels.schedule import names as schedules
from meshwright.costmodels.strategy import OFFLOADS, ON_NVME
from meshwright.planner.choice import Choice
from meshwright.planner.model_rules import splits_sequence
from meshwright.planner.modes import host_linked
from meshwright.planner.problem import Problem
from meshwright.planner.rule import has_experts
from meshwright.planner.space import LEAST_CONTEXT_TOKENS


def left_out(problem: Problem, searched: Problem) -> tuple[str, ...]:
    """Return what was not searched though the target has it; nothing that the job itself rules out.

    Parameters
    ----------
    searched
        The problem as it was searched at last: offloading is added where nothing fits without.
    """
    parts = (
        _schedules(problem),
        _contexts(problem),
        _offloads(problem, searched),
        _activations(problem),
        _degrees(problem),
    )
    return tuple(text for part in parts for text in part)


def _schedules(problem: Problem) -> Iterator[str]:
    target, open_to = problem.target, "schedule" not in problem.job.choices
    rest = [name for name in schedules() if name in target.schedules - target.usual_schedules]
    usual = [name for name in schedules() if name in target.schedules & target.usual_schedules]
    if open_to and rest and problem.cluster.num_devices > 1 and target.pipeline:
        yield f"the schedules {', '.join(rest)} (searched: {', '.join(usual)})"
    if target.interleaved and not target.uneven_chunks:
        yield "chunks of unequal length with vpp above 1 (not even then)"


def _contexts(problem: Problem) -> Iterator[str]:
    able = problem.target.context and splits_sequence(problem)
    if able and "cp" not in problem.job.choices:
        yield f"context parts of fewer than {LEAST_CONTEXT_TOKENS:,} tokens"


def _offloads(problem: Problem, searched: Problem) -> Iterator[str]:
    if not host_linked(problem):
        return
    usual = searched.job.choices.get("offload", Choice(allowed=frozenset({"none"})))
    drives = problem.cluster.nvme_bytes_per_s is not None
    places = [what for i, what in enumerate(OFFLOADS[1:], start=1) if drives or not ON_NVME[i]]
    able = [what for what in places if what in problem.target.offload and not usual.admits(what)]
    if able and "offload" not in problem.job.choices:
        yield f"offload {', '.join(able)}"


def _activations(problem: Problem) -> Iterator[str]:
    """Offloading of activations beside several chunks a rank (:func:`demand_several`)."""
    wanted, target = problem.job.choices.get("recompute", Choice()), problem.target
    able = "offload" in target.recompute and host_linked(problem) and wanted.admits("offload")
    if able and wanted.allowed is None and target.interleaved and problem.cluster.num_devices > 1:
        yield "recompute offload with vpp above 1"


def _degrees(problem: Problem) -> Iterator[str]:
    """Degrees that follow the topology, and the expert-tensor degree."""
    target, split = problem.target, problem.target.context and splits_sequence(problem)
    able = {"dp_replicate": target.hybrid, "hpz": target.secondary, "ulysses": target.ulysses and split}
    own = [name for name, has in able.items() if has and name not in problem.job.choices]
    if own:
        yield f"values of {', '.join(own)} that do not follow the topology"
    if has_experts(problem) and target.expert_tensor and "etp" not in problem.job.choices:
        yield "etp other than 1 and tp"
