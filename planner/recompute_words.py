"""Which layers recompute what, as a person writes it: one mode, one a block, ranges, or every n-th block."""

from collections.abc import Iterable, Mapping, Sequence

from meshwright.hardware.errors import MeshwrightError, shown
from meshwright.planner.modes import check_modes
from meshwright.planner.plan import RECOMPUTE_MODES
from meshwright.planner.problem import Problem

Recompute = str | Sequence[str] | Mapping[str, str]
"""A mode for all blocks, a mode for each block, ranges of blocks (``"0-15:full,16-31:none"``, or a mapping),
or every n-th block, the first included (``"every-2:full"``)."""


def layer_modes(problem: Problem, recompute: Recompute, schedule: str) -> tuple[str, ...]:
    """Return a mode for every layer, ``none`` for embedding and head.

    Raises
    ------
    MeshwrightError
        If a mode is not available with target or schedule, or the text or the number of modes does not fit
        the blocks.
    """
    blocks = problem.model.block_layers
    wanted = _written(recompute, len(blocks))
    if len(wanted) != len(blocks):
        raise MeshwrightError(f"recompute: {len(wanted)} modes are given for {len(blocks)} layers")
    allowed = problem.target.modes_with(schedule)
    for mode in wanted:
        if mode not in RECOMPUTE_MODES or mode not in allowed:
            have = ", ".join(m for m in RECOMPUTE_MODES if m in allowed)
            beside = f" and schedule {schedule}" if mode in problem.target.recompute else ""
            raise MeshwrightError(
                f"recompute: {shown(mode)} is not available with {problem.target.title}{beside}; "
                f"allowed: {have}" + _by_name(problem, mode)
            )
    check_modes(problem, set(wanted))
    if problem.target.recompute_uniform and len(set(wanted)) > 1:
        raise MeshwrightError(f"recompute: {problem.target.title} needs one mode for all layers")
    own = dict(zip(blocks, wanted, strict=True))
    return tuple(own.get(layer, "none") for layer in range(problem.model.num_layers))


def _by_name(problem: Problem, mode: str) -> str:
    """Say that a target runs modules again that are listed, where it has no word for all light operators."""
    target, job = problem.target, problem.job
    able = target.recompute_modules is not None and job.precision not in target.whole_recompute_precisions
    if mode != "selective" or not able or job.recompute_modules:
        return ""
    return ", and selective of modules that are named (--recompute-modules core_attn)"


def _written(recompute: Recompute, size: int) -> list[str]:
    """Return the modes that the words ask for, block by block."""
    if isinstance(recompute, Mapping):
        return _ranges({str(k): str(v) for k, v in recompute.items()}, size)
    if not isinstance(recompute, Iterable):
        raise MeshwrightError(
            f"recompute: {shown(recompute)} is no mode, list of modes or mapping of ranges; allowed: "
            f"{', '.join(RECOMPUTE_MODES)}, one for each layer, {{'0-15': 'full'}} or 'every-2:full'"
        )
    if not isinstance(recompute, str):
        return [str(r) for r in recompute]
    if recompute.strip().startswith("every-"):
        return _every(recompute.strip(), size)
    if ":" not in recompute:
        return [recompute] * size
    return _ranges(dict(_pair(p) for p in recompute.split(",")), size)


def _every(text: str, size: int) -> list[str]:
    """Return the modes of ``every-2:full``: each second block beginning with the first, the rest ``none``."""
    number, _, mode = text.removeprefix("every-").partition(":")
    if not (mode and number.isdecimal() and len(number) < 10 and 1 <= int(number) <= size):
        raise MeshwrightError(
            f"recompute: {shown(text)} is not every-N:MODE with N from 1 to {size}, for example every-2:full"
        )
    return [mode if i % int(number) == 0 else "none" for i in range(size)]


def _pair(text: str) -> tuple[str, str]:
    """Return where a mode holds, and the mode, from ``0-15:full``."""
    where, _, mode = text.strip().partition(":")
    return where, mode


def _ranges(spans: Mapping[str, str], size: int) -> list[str]:
    """Return a mode for each block from ranges such as ``{"0-15": "full"}``; the rest is ``none``."""
    modes, taken = ["none"] * size, [False] * size
    for where, mode in spans.items():
        first, dash, last = where.partition("-")
        last = last if dash else first
        # isdecimal and short: int() refuses other digits and thousands of them.
        numbers = all(end.isdecimal() and len(end) < 10 for end in (first, last))
        if not (numbers and int(first) <= int(last) < size):
            raise MeshwrightError(
                f"recompute: {shown(where)} is not a range FIRST-LAST (or one number) within 0-{size - 1}"
            )
        span = slice(int(first), int(last) + 1)
        if any(taken[span]):
            raise MeshwrightError(f"recompute: {where!r} overlaps another range; name each layer once")
        modes[span] = [mode] * (int(last) - int(first) + 1)
        taken[span] = [True] * (int(last) - int(first) + 1)
    return modes
