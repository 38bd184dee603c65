"""How answers look at a Python prompt (:func:`result_text`) and in a notebook (:func:`result_html`).

Standard library only. All text is escaped: names come from other people's files.
"""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from meshwright.hardware.units import bytes_to_gib, s_to_text

if TYPE_CHECKING:
    from meshwright.planner.plan import Plan
    from meshwright.planner.result import Estimate, Result


def estimate_text(estimate: "Estimate") -> str:
    """Return an estimate in a few lines."""
    fits = "fits" if estimate.fits else "does not fit"
    peak, usable = bytes_to_gib(max(estimate.peak_bytes)), bytes_to_gib(estimate.usable_bytes)
    room = estimate.headroom
    spent = (f"{_words(k)} {v / estimate.step_time_s:.1%}" for k, v in estimate.breakdown.items() if v > 0)
    return "\n".join(
        (
            f"{s_to_text(estimate.step_time_s)} a step, {estimate.mfu:.1%} MFU, "
            f"{estimate.tokens_per_s:,.0f} tokens/s",
            *([] if estimate.uncertainty is None else [f"step time {estimate.uncertainty}"]),
            _mesh(estimate.plan),
            f"memory {peak:.2f} of {usable:.2f} GiB{_host(estimate)}: {fits}",
            *([] if room is None else [f"headroom {room.share:.1%}: {room.origin}"]),
            "time: " + ", ".join(spent),
        )
    )


def _host(estimate: "Estimate") -> str:
    """Say what a device keeps in host memory and on drives at most, where it keeps anything there."""
    places = (
        ("on the host", estimate.host_bytes, estimate.host_share_bytes),
        ("on drives", estimate.nvme_bytes, estimate.nvme_share_bytes),
    )
    told = ""
    for where, every, share in places:
        if held := max(every, default=0.0):
            of = "" if share is None else f" of its {bytes_to_gib(share):.2f}"
            told += f", {bytes_to_gib(held):.2f}{of} GiB {where}"
    return told


def result_text(result: "Result") -> str:
    """Return a result in a few lines: status and proof, then the plan or why there is none."""
    lines = [_proof(result)]
    if result.estimate is not None:
        lines += [estimate_text(result.estimate), *result.binding]
    if result.infeasibility is not None:
        lines += [result.infeasibility.message, *(f"try: {r}" for r in result.infeasibility.remedies)]
        lines += result.infeasibility.untried
    return "\n".join(lines)


def estimate_html(estimate: "Estimate") -> str:
    """Return an estimate as an HTML fragment: the plan, where the time goes, memory by stage."""
    plan = estimate.plan
    total = estimate.step_time_s
    time = [(_words(k), f"{v:.4g}", f"{v / total:.1%}") for k, v in estimate.breakdown.items() if v > 0]
    stages = [
        (str(rank), *(f"{bytes_to_gib(v):.2f}" for v in (*items.values(), peak)))
        for rank, (items, peak) in enumerate(zip(estimate.memory, estimate.peak_bytes, strict=True))
    ]
    head = ("stage", *map(_words, estimate.memory[0]), "peak")
    return "".join(
        (
            f"<p><b>{escape(plan.model)}</b> on <b>{escape(plan.cluster)}</b><br>",
            f"{_lines(estimate_text(estimate))}</p>",
            _table(
                "Where the time goes", ("cause", "s", "share"), [*time, ("step", f"{total:.4g}", "100.0%")]
            ),
            _table("Memory of a device, GiB", head, stages),
        )
    )


def result_html(result: "Result") -> str:
    """Return a result as an HTML fragment: proof, estimate, alternatives, or why nothing fits."""
    if result.estimate is None:
        return f"<p>{_lines(result_text(result))}</p>"
    others = [
        (_mesh(a.estimate.plan), f"{a.estimate.step_time_s:.4g}", f"{a.gap:.1%}", a.why)
        for a in result.alternatives
    ]
    table = _table("Alternatives", ("mesh", "s", "gap", "why it lost"), others) if others else ""
    return f"<p><b>{escape(_proof(result))}</b></p>{estimate_html(result.estimate)}{table}"


def _proof(result: "Result") -> str:
    """Return the status with what backs it."""
    if result.objective_s is None or result.lower_bound_s is None or result.gap is None:
        return f"{result.status} after {s_to_text(result.runtime_s)}"
    return (
        f"{result.status}: {s_to_text(result.objective_s)} a step, bound {s_to_text(result.lower_bound_s)} "
        f"(gap {result.gap:.2%}), found in {s_to_text(result.runtime_s)}"
    )


def _mesh(plan: "Plan") -> str:
    rare = ("cp", "ep", "etp", "dp_replicate")
    values: dict[str, int] = {
        "tp": plan.tp,
        "pp": plan.pp,
        "vpp": plan.vpp,
        "dp": plan.dp,
        **{name: getattr(plan, name) for name in rare if getattr(plan, name) > 1},
        "micro-batch": plan.micro_batch_size,
        "ZeRO": plan.zero_stage,
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _words(name: str) -> str:
    return name.replace("_", " ")


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table with a caption."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    )
