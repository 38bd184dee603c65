"""Plan well-known training jobs, each in a fresh process, beside the configurations published for them.

``python -m benchmarks.shown [NAME ...] [--json OUT]`` prints for each job the plan, the proof, seconds and
peak memory of the planner, and the price of the published configuration by the same cost models.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.shown_jobs import SHOWN
from meshwright.cli.errors import reader_may_leave


def measure(name: str) -> dict[str, Any]:
    """Solve one job in this process and price what was published; return plain figures."""
    from meshwright import estimate, solve
    from meshwright.hardware.units import bytes_to_gib

    case = SHOWN[name]
    started = time.perf_counter()
    result = solve(case.model, case.cluster, case.job)
    wall_s = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = []
    for entry in case.published:
        priced = estimate(case.model, case.cluster, case.job, entry.strategy)
        rows.append(
            {
                "source": entry.source,
                "strategy": entry.strategy,
                "step_s": priced.step_time_s,
                "mfu": priced.mfu,
                "peak_gib": bytes_to_gib(max(priced.peak_bytes)),
                "fits": priced.fits,
                "breakdown": dict(priced.breakdown),
            }
        )
    best = result.estimate
    return {
        "name": name,
        "status": result.status,
        "step_s": result.objective_s,
        "bound_s": result.lower_bound_s,
        "gap": result.gap,
        "wall_s": wall_s,
        "planner_gib": bytes_to_gib(peak_kib * 1024),
        "mfu": best and best.mfu,
        "plan": result.plan and result.plan.to_dict(),
        "breakdown": best and dict(best.breakdown),
        "peak_gib": best and bytes_to_gib(max(best.peak_bytes)),
        "host_gib": best and bytes_to_gib(max(best.host_bytes)),
        "why": result.infeasibility and result.infeasibility.message,
        "published": rows,
    }


def report(row: dict[str, Any]) -> str:
    """Return one job's figures as text."""
    lines = (
        _plan(row) if row["plan"] else [f"{row['name']}: {row['status']}; {row['why'] or 'no plan found'}"]
    )
    for entry in row["published"]:
        ratio = f" ({entry['step_s'] / row['step_s']:.3f} x)" if row["step_s"] else ""
        fits = "fits" if entry["fits"] else "does not fit"
        lines.append(
            f"  published: {entry['step_s']:.3f} s{ratio}, {entry['peak_gib']:.1f} GiB, {fits}: "
            f"{entry['source']}"
        )
    return "\n".join(lines)


def _plan(row: dict[str, Any]) -> list[str]:
    """Return the plan that was found, and how it was found, in two lines."""
    plan = row["plan"]
    degrees = ("tp", "cp", "pp", "dp", "vpp", "ep", "etp", "dp_replicate", "zero_stage", "micro_batch_size")
    always = ("tp", "pp", "dp", "zero_stage", "micro_batch_size")
    mesh = " ".join(f"{k} {plan[k]}" for k in degrees if plan[k] > 1 or k in always)
    away = f", {plan['offload']} offloaded ({row['host_gib']:.1f} GiB)" if plan["offload"] != "none" else ""
    return [
        f"{row['name']}: {row['status']} {row['step_s']:.3f} s, gap {100 * row['gap']:.3f} %, "
        f"MFU {100 * row['mfu']:.1f} %, {row['peak_gib']:.1f} GiB a device",
        f"  planned in {row['wall_s']:.1f} s with {row['planner_gib']:.2f} GiB: "
        f"{mesh}, {plan['schedule']}{away}",
    ]


def main() -> None:
    """Run each job in a fresh process and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHOWN)}; all by default")
    parser.add_argument("--json", metavar="OUT", help="also write the figures to a file")
    parser.add_argument("--one", choices=sorted(SHOWN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    for name in options.names:
        if name not in SHOWN:
            parser.error(f"{name!r} is not one of {', '.join(SHOWN)}")
    rows = []
    for name in options.names or list(SHOWN):
        command = [sys.executable, "-m", "benchmarks.shown", "--one", name]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(report(rows[-1]), flush=True)
    if options.json:
        from pathlib import Path

        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with reader_may_leave():
        main()
