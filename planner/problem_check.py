"""What no mesh can mend: problems that are refused before any search."""

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.lengths import target_length
from meshwright.planner.pricing import loss_name
from meshwright.planner.problem import Problem
from meshwright.planner.target_job import refusals
from meshwright.planner.targets import TARGETS


def check_problem(problem: Problem) -> None:
    """Refuse what no mesh can mend: the accelerator cannot train, or lacks the dtype or the target.

    Raises
    ------
    MeshwrightError
        Naming what is lacking.
    """
    device, target, recipe = problem.cluster.accelerator, problem.target, problem.precision
    support = device.support
    if not support.training:
        raise MeshwrightError(
            f"cluster: {device.name} cannot train (inference only); choose another accelerator"
        )
    if recipe.compute not in device.peak_flops_per_s or recipe.compute not in support.dtypes:
        have = ", ".join(sorted(support.dtypes & set(device.peak_flops_per_s)))
        raise MeshwrightError(
            f"precision: {device.name} does not compute in {recipe.compute}; it has {have}; choose another "
            "with precision (--precision)"
        )
    if target.name != "any" and target.needs not in support.targets:
        have = ", ".join(sorted({"any"} | {t.name for t in TARGETS.values() if t.needs in support.targets}))
        raise MeshwrightError(f"target: {target.name} does not run on {device.name}; supported there: {have}")
    lacking = refusals(target, problem.model, problem.job, loss_name(problem))
    if lacking:
        raise MeshwrightError(
            f"target: {target.name} ({target.title}) cannot train this: {'; '.join(lacking)}"
        )
    _check_positions(problem)


def _check_positions(problem: Problem) -> None:
    """Refuse lengths beyond learned positions, of the main stream and of an encoder-decoder's target."""
    model, job = problem.model, problem.job
    if model.attributes.get("positions") != "learned":
        return
    for name, length, limit in (
        ("sequence_length", job.sequence_length, model.max_sequence_length),
        ("target_length", target_length(model, job), model.attributes.get("target_positions")),
    ):
        if isinstance(limit, int) and length > limit:
            given = "" if getattr(job, name) else " (as long as the source, for it is not given)"
            raise MeshwrightError(
                f"{name}: {length}{given} exceeds the {limit} learned positions of {model.name}"
            )
