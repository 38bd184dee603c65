"""Pages for people: what ``solve`` and ``estimate`` answer, compact, right at 80 columns and when piped."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.cli.figures import (
    NONE,
    bar,
    count,
    gib,
    hours,
    listed,
    percent,
    plural,
    runs,
    seconds,
    span,
    usd,
    words,
)
from meshwright.cli.plan_page import mesh, plan_facts, stages
from meshwright.cli.tables import bullets, facts, grid, plain, section
from meshwright.hardware.spec import Cluster
from meshwright.planner.lighter import Lighter
from meshwright.planner.placements import PlacementPrice
from meshwright.planner.result import Alternative, Estimate, Infeasibility, Result, SearchRecord
from meshwright.planner.schedule_prices import SchedulePrice

BAR_WIDTH: Final = 24
ITEM_WIDTH: Final = 22
STAGE_WIDTH: Final = 9
ASCII: Final = str.maketrans(
    {"×": "x", "–": "-", "•": "*", "≤": "<", "µ": "u", **dict.fromkeys("█▏▎▍▌▋▊▉", "#")}
)
_STYLES: Final = {"OPTIMAL": "bold green", "FEASIBLE": "bold yellow"}


def result_page(
    result: Result,
    cluster: Cluster,
    width: int,
    placements: Sequence[PlacementPrice] = (),
    schedules: Sequence[SchedulePrice] = (),
) -> Group:
    """Return everything that ``solve`` has to say, files apart."""
    best = result.estimate
    parts: list[list[RenderableType]] = [[_headline(result), *(_spread(best) if best else ())]]
    if best is not None:
        parts += [_plan(best, cluster), *_figures(best, width)]
    if result.infeasibility is not None:
        parts.append(_infeasible(result.infeasibility))
    parts.append(section("Proof", bullets(proof(result))))
    if result.binding:
        parts.append(section("What binds", bullets(result.binding)))
    if len(placements) > 1:
        parts.append(section("Placements, innermost first", _placements(placements, result.objective_s)))
    if len(schedules) > 1:
        parts.append(section("Schedules, all else equal", _schedules(schedules, result.objective_s)))
    if result.alternatives:
        parts.append(
            section(
                "Alternatives (≤ where the best of a mesh is not proven)", _alternatives(result.alternatives)
            )
        )
    parts.append(_notes([*result.notes, *(best.notes if best else ())]))
    return Group(*chain.from_iterable(parts))


def estimate_page(
    estimate: Estimate, cluster: Cluster, width: int, lighter: Sequence[Lighter] | None = None
) -> Group:
    """Return everything that ``estimate`` has to say; ``lighter`` are changed plans that fit, if tried."""
    fits = "fits" if estimate.fits else "does not fit"
    head = plain(fits.upper(), "bold green" if estimate.fits else "bold red") + plain(
        f"  {seconds(estimate.step_time_s)} a step, {_rates(estimate)}"
    )
    parts: list[list[RenderableType]] = [
        [head, *_spread(estimate)],
        _plan(estimate, cluster),
        *_figures(estimate, width),
        [] if lighter is None else section("What would make it fit, all else equal", _lighter(lighter)),
        _notes(estimate.notes),
    ]
    return Group(*chain.from_iterable(parts))


def show(console: Console, page: RenderableType) -> None:
    """Print a page without the blanks that tables leave at the ends of lines, in signs that can be shown."""
    with console.capture() as captured:
        console.print(page)
    text = "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(ASCII)
    console.file.write(text)


def files_written(paths: Iterable[object]) -> Group:
    """Return the list of files that were written."""
    return Group(*section("Files written", bullets(map(str, paths))))


def _headline(result: Result) -> Text:
    """Return the status and the figures that matter most, in one line."""
    status = plain(result.status, _STYLES.get(result.status, "bold red"))
    if result.estimate is None:
        why = "nothing fits" if result.status == "INFEASIBLE" else "no plan found within the limit"
        return status + plain(f"  {why}; searched for {seconds(result.runtime_s)}")
    return status + plain(f"  {seconds(result.objective_s)} a step, {_rates(result.estimate)}")


def _spread(estimate: Estimate) -> list[Text]:
    """Say how far a measured step time may lie from the predicted one, and by what."""
    found = estimate.uncertainty
    return [] if found is None else [plain(f"{seconds(estimate.step_time_s)} {found}", "dim")]


def _rates(estimate: Estimate) -> str:
    return f"{percent(estimate.mfu)} MFU, {count(estimate.tokens_per_s)} tokens/s"


def _plan(estimate: Estimate, cluster: Cluster) -> list[RenderableType]:
    told = plan_facts(estimate.plan, cluster, _trained(estimate))
    return section("Plan", told, Text(), stages(estimate.plan, estimate))


def _trained(estimate: Estimate) -> list[tuple[str, str]]:
    """Say how much of the model is trained, where it is not all of it."""
    every, own = estimate.parameters, estimate.trainable_parameters
    if every is None or own is None or own == every:
        return []
    return [("trained", f"{count(own)} of {count(every)} parameters ({percent(own / every, 2)})")]


def _figures(estimate: Estimate, width: int) -> list[list[RenderableType]]:
    """Return time, memory and money."""
    parts = [section("Where the time goes", _time(estimate), *_hidden(estimate))]
    parts.append(section("Memory of a device, GiB", _memory(estimate, width), *_peaks(estimate)))
    if estimate.usd_per_hour is not None or estimate.total_hours is not None:
        parts.append(section("Bill", facts(_bill(estimate))))
    return parts


def _time(estimate: Estimate) -> Table:
    """Return the breakdown of the step, causes that cost nothing left out."""
    table = grid("Cause", "Time", "Share", "", right=(1, 2))
    total = estimate.step_time_s
    for cause, value in estimate.breakdown.items():
        if value > 0:
            table.add_row(words(cause), seconds(value), percent(value / total), bar(value / total, BAR_WIDTH))
    table.add_row("step", seconds(total), percent(1.0), "", style="bold")
    return table


def _hidden(estimate: Estimate) -> list[RenderableType]:
    """Return what overlap hides, and what MFU counts."""
    behind = [f"{words(cause)} {seconds(value)}" for cause, value in estimate.hidden.items() if value > 0]
    rows = [("hidden", f"{listed(behind)} behind compute, not part of the step")] if behind else []
    rows.append(
        ("use", f"{percent(estimate.mfu)} MFU (model FLOPs, causal attention halved), "
                f"{percent(estimate.hfu)} HFU (recomputation counted, flash attention's too)")
    )  # fmt: skip
    return [Text(), facts(rows)]


def _memory(estimate: Estimate, width: int) -> Table:
    """Return memory item by item, stages that hold the same in one column."""
    columns = _columns(estimate, max(3, (width - ITEM_WIDTH) // STAGE_WIDTH))
    stages_of = [span(first, last) for first, last in columns]
    table = grid("Item", *(f"stage {s}" for s in stages_of), right=range(1, len(columns) + 1))
    items = [item for item in estimate.memory[0] if any(m[item] > 0 for m in estimate.memory)]
    for item in items:
        table.add_row(words(item), *(gib(estimate.memory[first][item]) for first, _ in columns))
    table.add_row("peak", *(gib(estimate.peak_bytes[first]) for first, _ in columns), style="bold")
    free = (estimate.usable_bytes - estimate.peak_bytes[first] for first, _ in columns)
    table.add_row("left", *map(gib, free), style="dim")
    return table


def _columns(estimate: Estimate, room: int) -> list[tuple[int, int]]:
    """Return the runs of equal stages to show: all where there is room, else the first, fullest and last."""
    found = runs([tuple(gib(v) for v in m.values()) for m in estimate.memory])
    if len(found) <= room:
        return found
    fullest = max(found, key=lambda run: estimate.peak_bytes[run[0]])
    return sorted({found[0], fullest, found[-1]})


def _peaks(estimate: Estimate) -> list[RenderableType]:
    """Return the limit, and the peaks of all stages where not all are in the table."""
    limit = f"{gib(estimate.usable_bytes)} of {gib(estimate.capacity_bytes)} GiB after headroom"
    room = estimate.headroom
    over = [rank for rank, peak in enumerate(estimate.peak_bytes) if peak > estimate.usable_bytes]
    rows = [("usable", limit)]
    if room is not None:
        rows.append(("headroom", f"{percent(room.share)}: {room.origin}"))
    if over:
        missing = max(estimate.peak_bytes) - estimate.usable_bytes
        which = listed(span(over[a], over[b]) for a, b in runs([r - i for i, r in enumerate(over)]))
        noun = "stage" if len(over) == 1 else "stages"
        rows.append(("too much", f"{noun} {which}, by {gib(missing)} GiB at most"))
    return [Text(), facts([*rows, *_host(estimate)])]


def _host(estimate: Estimate) -> list[tuple[str, str]]:
    """Return what one device keeps off itself at most, and its share of the place; nothing otherwise."""
    places = (
        ("on the host", estimate.host_bytes, estimate.host_share_bytes),
        ("on its drives", estimate.nvme_bytes, estimate.nvme_share_bytes),
    )
    return [(where, _held(max(held), share)) for where, held, share in places if max(held, default=0.0)]


def _held(held: float, share: float | None) -> str:
    """Say how much of a device's share of a place is filled."""
    if share is None:
        return f"{gib(held)} GiB a device; how much there is in all is not known"
    over = f": {gib(held - share)} GiB too many" if held > share else ""
    return f"{gib(held)} of {gib(share)} GiB that are a device's share{over}"


def _bill(estimate: Estimate) -> list[tuple[str, str]]:
    """Return what the step and the whole run cost."""
    rows = [("cluster", f"{usd(estimate.usd_per_hour)} an hour, {usd(estimate.usd_per_step)} a step")]
    if estimate.usd_per_hour is None:
        rows = []
    if estimate.total_hours is not None:
        bill = "" if estimate.total_usd is None else f", {usd(estimate.total_usd)}"
        rows.append(("whole run", f"{hours(estimate.total_hours)}{bill}"))
    return rows


def _infeasible(found: Infeasibility) -> list[RenderableType]:
    """Return which limit binds, by how little it is missed, and what would lift it."""
    rows = [("rule", words(found.rule)), ("why", found.message)]
    if found.missing_bytes is not None:
        where = f"of {found.rule} for each device" if found.rule != "memory" else "on the fullest device"
        rows.append(("missing", f"{gib(found.missing_bytes)} GiB {where}"))
    if found.closest is not None:
        peak, usable = max(found.closest.peak_bytes), found.closest.usable_bytes
        rows.append(("closest", f"{mesh(found.closest.plan)}: {gib(peak)} of {gib(usable)} GiB"))
    parts = section("Why nothing fits", facts(rows))
    if found.remedies:
        parts += section("What would lift it", bullets(found.remedies))
    if found.untried:
        parts += section("What could not be tried", bullets(found.untried))
    return parts


def proof(result: Result) -> list[str]:
    """Return the sentences that back the status."""
    record = result.record
    among = f" in {plural(record.meshes, 'mesh')}" if record else ""
    bound = f"bound {seconds(result.lower_bound_s)}, gap {percent(result.gap, 2)}"
    lines = {
        "OPTIMAL": f"OPTIMAL: no plan{among} is faster than {seconds(result.objective_s)}; {bound}",
        "FEASIBLE": f"FEASIBLE: the best plan found, not proven; no plan{among} can beat "
        f"{seconds(result.lower_bound_s)}, so at most {percent(result.gap, 2)} remains to be gained"
        f"{_ended(record)}",
        "INFEASIBLE": f"INFEASIBLE: no plan{among} keeps every rule",
        "UNKNOWN": f"UNKNOWN: the limit came before the first plan{among}; a plan may exist",
    }
    return [lines[result.status], *(_record(record, result.runtime_s) if record else [])]


def _ended(record: SearchRecord | None) -> str:
    """Return what ended a search without a proof, where it was not the clock."""
    if record is None or not record.reproducible:
        return ""
    return "; the work that a mesh is given ended it, not the clock: pins make the search smaller"


COUNTED: Final = ("memory floor", "host memory floor")
"""What sets meshes aside that are counted among those searched; rules and twins come before the count."""


def _record(record: SearchRecord, runtime_s: float) -> list[str]:
    """Return how the search went."""
    told = {why: f"{count(n)} by {words(why)!r}" for why, n in record.discarded.items() if n}
    counted = listed(said for why, said in told.items() if why in COUNTED)
    others = listed(said for why, said in told.items() if why not in COUNTED)
    lines = [f"of these set aside without solving: {counted}"] if counted else []
    lines += [f"not among these: {others}"] if others else []
    again = (
        "the same input gives the same plan"
        if record.reproducible
        else "stopped by the clock: not reproducible"
    )
    lines.append(
        f"{plural(record.solved, 'mesh')} solved with {plural(record.cuts, 'lazy cut')} in "
        f"{seconds(runtime_s)}; integer scaling errs by at most {percent(record.integer_error, 4)}; {again}"
    )
    if record.left_out:
        lines.append(f"not searched unless pinned: {'; '.join(record.left_out)}")
    return lines


def _alternatives(found: Sequence[Alternative]) -> Table:
    """Return the other meshes and why each lost."""
    table = grid("Mesh", "Step", "Gap", "Peak GiB", "Why it lost", right=(1, 2, 3))
    for other in found:
        gap = percent(other.gap) if other.proven else f"≤ {percent(other.gap)}"
        peak = gib(max(other.estimate.peak_bytes))
        table.add_row(
            plain(mesh(other.estimate.plan)), seconds(other.estimate.step_time_s), gap, peak, plain(other.why)
        )
    return table


def _placements(found: Sequence[PlacementPrice], best_s: float | None) -> Table:
    """Return what each order of the dimensions costs, all else equal."""
    table = grid("Order", "Step", "Longer by", right=(1, 2))
    for one in found:
        longer = NONE if best_s is None else percent(one.step_time_s / best_s - 1)
        table.add_row(", ".join(one.order), seconds(one.step_time_s), longer)
    return table


def _schedules(found: Sequence[SchedulePrice], best_s: float | None) -> Table:
    """Return what each schedule costs with the same stages and recomputation, and whether it fits."""
    table = grid("Schedule", "Step", "Longer by", "Memory", right=(1, 2))
    for one in found:
        longer = NONE if best_s is None else percent(one.step_time_s / best_s - 1)
        fits = "fits" if one.fits else "too much"
        table.add_row(one.schedule, seconds(one.step_time_s), longer, fits)
    return table


def _lighter(found: Sequence[Lighter]) -> RenderableType:
    """Return what each change of a plan that does not fit costs, and what is then full."""
    if not found:
        return bullets(["no change of one or two decisions; meshwright solve searches all of them"])
    table = grid("Change", "Step", "Peak GiB", right=(1, 2))
    for one in found:
        told = " and ".join(f"{name} {value}" for name, value in one.changes.items())
        table.add_row(told, seconds(one.estimate.step_time_s), gib(max(one.estimate.peak_bytes)))
    return table


def _notes(notes: Iterable[str]) -> list[RenderableType]:
    found = list(dict.fromkeys(notes))
    return section("Notes", bullets(found)) if found else []
