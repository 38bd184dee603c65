"""``meshwright estimate``: the price of a plan that a person wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from meshwright.cli.errors import ExitCode
from meshwright.cli.jobfile import Request, StrategySchema, read_request
from meshwright.cli.render import estimate_page, show
from meshwright.cli.tables import screen, write_json
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import read_text
from meshwright.planner.plan import RECOMPUTE_MODES, Plan
from meshwright.planner.problem import Problem

MAX_PLAN_BYTES: Final = 16 * 2**20
_OF_PLAN: Final = (
    "model",
    "cluster",
    "sequence_length",
    "global_batch_size",
    "precision",
    "optimizer",
    "target",
    "profile",
    "loss",
)
"""Fields of a plan from which a request is filled where flags and job file are silent."""


def run(flags: Mapping[str, Any]) -> ExitCode:
    """Read the request, price its plan and print what it costs."""
    given = _read_plan(flags["plan"]) if flags["plan"] else None
    request = read_request(flags, {key: getattr(given, key) for key in _OF_PLAN} if given else None)
    problem = Problem.load(request.model, request.cluster, request.job)
    from meshwright.planner.estimate import estimate_problem

    price = estimate_problem(problem, given or _plan(problem, request))
    if flags["as_json"]:
        write_json(price.to_dict())
    else:
        console = screen()
        show(console, estimate_page(price, problem.cluster, console.width))
    return ExitCode.FOUND if price.fits else ExitCode.INFEASIBLE


def _read_plan(path: Path) -> Plan:
    """Return the plan in a file."""
    try:
        return Plan.from_json(read_text(path, MAX_PLAN_BYTES))
    except MeshwrightError as error:
        raise MeshwrightError(f"{path}: {error}") from None


def _plan(problem: Problem, request: Request) -> Plan:
    """Return the plan that the strategy describes."""
    from meshwright.planner.strategy import make_plan

    strategy = StrategySchema.model_validate(request.strategy or {}).model_dump(exclude_none=True)
    if "recompute" in strategy:
        strategy["recompute"] = recompute_modes(strategy["recompute"], len(problem.model.block_layers))
    return make_plan(problem, **strategy)


def recompute_modes(text: str | tuple[str, ...], num_blocks: int) -> str | list[str]:
    """Return one mode for all layers, or a mode for each transformer layer.

    ``0-15:full,16-31:none`` counts transformer layers from 0, both ends included; what it leaves out
    recomputes nothing.

    Raises
    ------
    MeshwrightError
        If a range cannot be read, leaves the model, or meets another one.
    """
    if not isinstance(text, str):
        return list(text)
    if ":" not in text:
        return text
    modes: list[str | None] = [None] * num_blocks
    for part in text.split(","):
        first, last, mode = _range(part, num_blocks)
        if any(m is not None for m in modes[first : last + 1]):
            raise MeshwrightError(f"recompute: {part.strip()!r} names layers that an earlier range names")
        modes[first : last + 1] = [mode] * (last + 1 - first)
    return [mode or "none" for mode in modes]


def _range(part: str, num_blocks: int) -> tuple[int, int, str]:
    """Return the first layer, the last layer and the mode of ``0-15:full``."""
    where, _, mode = (piece.strip() for piece in part.partition(":"))
    ends = [end.strip() for end in where.split("-")]
    if len(ends) > 2 or not all(end.isdecimal() and len(end) < 10 for end in ends):
        raise MeshwrightError(f"recompute: {part.strip()!r} is no range; write for example 0-15:full")
    if mode not in RECOMPUTE_MODES:
        raise MeshwrightError(f"recompute: {mode!r} is no mode; allowed: {', '.join(RECOMPUTE_MODES)}")
    first, last = int(ends[0]), int(ends[-1])
    if not first <= last < num_blocks:
        raise MeshwrightError(f"recompute: layers {where} are not within 0-{num_blocks - 1}")
    return first, last, mode
