"""The accuracy of predictions as plain data (for JSON), and as text for people."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Final

from benchmarks.accuracy_groups import (
    KINDS,
    best_tau,
    errors_of,
    grouped,
    kind_of,
    mean_over_families,
    profile_of,
    ranking,
    sweeps,
    timed,
)
from benchmarks.accuracy_memory import MODES, fit_confusion, memory_errors
from benchmarks.accuracy_stats import Confusion, mean, summary
from benchmarks.accuracy_targets import TARGETS, Target
from benchmarks.measured_prices import Priced
from benchmarks.row_reading import MisreadRow
from benchmarks.rows import COUNTERS
from meshwright.planner.job import OOM_RISK

Figures = dict[str, Any]
SHOWN_CAUSES: Final = 4
"""Causes of a step's time that a line of the worst rows tells, largest first."""


def group_figures(runs: Sequence[Priced]) -> Figures:
    """Return rows, priced ones, and the errors of the step times that count."""
    errors = summary(errors_of(runs))
    counts = {"rows": len(runs), "priced": sum(p.reason is None for p in runs)}
    return counts | ({} if errors is None else asdict(errors))


def kind_figures(runs: Sequence[Priced]) -> Figures:
    """Return the headline of each kind of training: mean over families beside that over all rows."""
    found = {}
    for kind in KINDS:
        own = [p for p in runs if kind_of(p.row) == kind]
        headline, votes = mean_over_families(own)
        found[kind] = group_figures(own) | {"mean_over_families": headline, "families": votes}
    return found


def sweep_figures(runs: Sequence[Priced], apart: bool = False) -> Figures:
    """Return the agreement of ranks inside sweeps, by family; ``apart`` counts runs instead of layouts."""
    families: dict[str, list[tuple[int, float | None, float, float | None]]] = {}
    for sweep in sweeps(runs, apart):
        families.setdefault(sweep[0].family, []).append((len(sweep), *ranking(sweep), best_tau(sweep)))
    return {
        family: {
            "sweeps": len(found),
            "layouts": sum(n for n, _, _, _ in found),
            "tau": mean(tau for _, tau, _, _ in found if tau is not None),
            "best_tau": mean(best for _, _, _, best in found if best is not None),
            "regret": mean(lost for _, _, lost, _ in found),
            "worst_regret": max(lost for _, _, lost, _ in found),
        }
        for family, found in families.items()
    }


def memory_figures(runs: Sequence[Priced]) -> Figures:
    """Return the errors of peaks by counter, for full training and for adapters."""
    found = {}
    for mode in MODES:
        for counter in (*COUNTERS, "not stated"):
            errors = summary(memory_errors(runs, mode, (counter,)))
            if errors is not None:
                found[f"{mode}, {counter}"] = asdict(errors)
        stated = summary(memory_errors(runs, mode))
        if stated is not None:
            found[f"{mode}, all stated"] = asdict(stated)
    return found


def _confusion(seen: Confusion) -> Figures:
    return asdict(seen) | {"missed": seen.missed, "refused": seen.refused}


def target_figures(runs: Sequence[Priced], targets: Iterable[Target] = TARGETS) -> list[Figures]:
    """Return each target with the figure reached."""
    found = []
    for target in targets:
        reached = target.figure(runs)
        found.append(
            {
                "what": target.what,
                "target": target.limit,
                "at_least": target.at_least,
                "percent": target.percent,
                "reached": reached,
                "met": target.met(reached),
                "elsewhere": target.elsewhere,
            }
        )
    return found


def worst_figures(runs: Sequence[Priced], count: int) -> list[Figures]:
    """Return the runs whose step times are furthest off, with the causes that take most of them."""
    order = sorted(timed(runs), key=lambda p: -abs(p.error or 0.0))
    return [
        {
            "id": p.row.id,
            "family": p.row.family,
            "profile": profile_of(p),
            "measured_s": p.row.step_time_s,
            "predicted_s": p.step_time_s,
            "error": p.error,
            "causes": dict(sorted((p.breakdown or {}).items(), key=lambda item: -item[1])[:SHOWN_CAUSES]),
        }
        for p in order[:count]
    ]


def figures(
    runs: Sequence[Priced],
    by: Sequence[str] = ("family",),
    worst: int = 0,
    targets: Iterable[Target] = TARGETS,
) -> Figures:
    """Return everything that is reported, as plain data.

    Parameters
    ----------
    by
        Keys of :data:`~benchmarks.accuracy_groups.KEYS`.
    worst
        Rows to list, the furthest off first.
    targets
        What the rows should reach.
    """
    trusted = [p for p in runs if p.row.trusted]
    return {
        "all": group_figures(runs),
        "trusted": group_figures(trusted),
        "kinds": kind_figures(runs),
        "by": {key: {name: group_figures(own) for name, own in grouped(runs, key).items()} for key in by},
        "sweeps": sweep_figures(runs),
        "sweeps of runs": sweep_figures(runs, apart=True),
        "memory": memory_figures(runs),
        "fits": {
            "usable memory": _confusion(fit_confusion(runs)),
            "usable, less the search's headroom": _confusion(fit_confusion(runs, OOM_RISK)),
        },
        "unpriced": [{"id": p.row.id, "reason": p.reason} for p in runs if p.reason is not None],
        "misread": [
            {"id": p.row.id, "reason": told}
            for p in runs
            if isinstance(p.row, MisreadRow)
            for told in p.row.misread
        ],
        "worst": worst_figures(runs, worst),
        "targets": target_figures(runs, targets),
    }


def row_record(priced: Priced) -> Figures:
    """Return the prediction of a row; the peak is that which the row's own counter sees."""
    return {
        "id": priced.row.id,
        "predicted_step_time_s": priced.step_time_s,
        "predicted_peak_memory_bytes": priced.comparable_bytes,
        "fits": priced.fits,
        "profile": profile_of(priced),
        "reason": priced.reason,
    }


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    """Return a share in percent, a dash for None."""
    return "-" if value is None else f"{100 * value:{sign}.{digits}f}"


def table(title: str, header: Sequence[str], lines: Iterable[Sequence[str]], widest: int = 56) -> list[str]:
    """Return aligned lines: the first column to the left, at most ``widest``; none without lines."""
    cells = [list(header), *([line[0][:widest], *line[1:]] for line in lines)]
    if len(cells) == 1:
        return []
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    return ["", title, *(_aligned(line, widths) for line in cells)]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    pairs = zip(line[1:], widths[1:], strict=True)
    return "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in pairs)]).rstrip()


ERRORS: Final = ("mape", "median", "p90", "maximum")
HEADER: Final = ("", "rows", "priced", "timed", "MAPE %", "median", "p90", "max", "bias")


def group_line(name: str, group: Mapping[str, Any]) -> list[str]:
    """Return the cells of a group under :data:`HEADER`."""
    counts = [str(group.get(key, 0)) for key in ("rows", "priced", "count")]
    sizes = [percent(group.get(key)) for key in ERRORS]
    return [name, *counts, *sizes, percent(group.get("bias"), sign="+")]


def _target_line(found: Mapping[str, Any]) -> list[str]:
    # two digits, as a figure may miss its target by less than one
    scale = 100 if found["percent"] else 1
    shown = ["-" if v is None else f"{scale * v:.2f}" for v in _ends(found)]
    way = ">=" if found["at_least"] else "<="
    met = {None: "no rows", True: "met", False: "missed"}[found["met"]]
    return [found["what"], shown[0], f"{way} {shown[1]}", met]


def _ends(found: Mapping[str, Any]) -> tuple[float | None, float]:
    return found["reached"], found["target"]


def targets_text(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the table of targets."""
    header = ("", "reached", "target", "")
    return table("targets (percent; tau as it is)", header, map(_target_line, found), widest=60)


def _kind_lines(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = (*HEADER, "families", "mean over them %")
    lines = [
        [*group_line(kind, got), str(got["families"]), percent(got["mean_over_families"])]
        for kind, got in kinds.items()
    ]
    return table("headline (families of at least 5 timed rows, one vote each)", header, lines)


def _sweep_lines(found: Mapping[str, Mapping[str, Any]], what: str, counted: str) -> list[str]:
    lines = [
        [
            name,
            str(got["sweeps"]),
            str(got["layouts"]),
            *("-" if got[key] is None else f"{got[key]:.2f}" for key in ("tau", "best_tau")),
            percent(got["regret"]),
            percent(got["worst_regret"]),
        ]
        for name, got in found.items()
    ]
    header = ("", "sweeps", counted, "tau", "at most", "regret %", "worst")
    return table(f"{what} (means over sweeps)", header, lines)


def _memory_lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [
        [name, str(got["count"]), *(percent(got[key]) for key in ERRORS), percent(got["bias"], sign="+")]
        for name, got in found.items()
    ]
    return table("peak memory, trust A and B", ("", "rows", "MAPE %", "median", "p90", "max", "bias"), lines)


def _fit_lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = (
        "limit",
        "fit: called fit",
        "called oom",
        "oom: called fit",
        "called oom",
        "missed %",
        "refused %",
    )
    lines = [
        [
            name,
            *(str(got[k]) for k in ("fit_called_fit", "fit_called_oom", "oom_called_fit", "oom_called_oom")),
            percent(got["missed"]),
            percent(got["refused"]),
        ]
        for name, got in found.items()
    ]
    return table("fits or not (fitting runs of trust A and B, all out-of-memory runs)", header, lines)


def _worst_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        [
            got["id"],
            percent(got["error"], sign="+"),
            f"{got['measured_s']:.3f}",
            f"{got['predicted_s']:.3f}",
            ", ".join(f"{cause} {seconds:.3f}" for cause, seconds in got["causes"].items()),
        ]
        for got in found
    ]
    return table("furthest off", ("", "error %", "measured s", "predicted s", "largest causes"), lines)


def _reason_lines(title: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows that something is said of, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for got in found:
        reasons.setdefault(got["reason"], []).append(got["id"])
    lines = ["", f"{title}: {len(found)}"] if found else []
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(ids):>5}  {reason}")
        lines += wrap(", ".join(ids), 110, initial_indent=" " * 7, subsequent_indent=" " * 7)
    return lines


def text(found: Mapping[str, Any]) -> str:
    """Return the tables of :func:`figures` as text."""
    lines = []
    for key, groups in found["by"].items():
        lines += table(
            f"step time by {key}, trust A and B timed", HEADER, [group_line(*g) for g in groups.items()]
        )
    both = [group_line("all rows", found["all"]), group_line("trust A and B", found["trusted"])]
    lines += table("step time", HEADER, both)
    lines += _kind_lines(found["kinds"])
    lines += _sweep_lines(found["sweeps"], "sweeps", "layouts")
    lines += _sweep_lines(found["sweeps of runs"], "sweeps, runs of one layout counted one by one", "runs")
    lines += _memory_lines(found["memory"]) + _fit_lines(found["fits"])
    lines += _worst_lines(found["worst"]) + _reason_lines("not priced", found["unpriced"])
    lines += _reason_lines("read otherwise than written", found["misread"])
    lines += targets_text(found["targets"])
    return "\n".join(lines).lstrip("\n")
