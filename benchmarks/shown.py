"""Plan four well-known training jobs, each in a fresh process, beside the configuration published for it.

``python -m benchmarks.shown [NAME ...] [--json OUT]`` prints for each job the plan, the proof, seconds and
peak memory of the planner, and the price of the published configuration by the same cost models.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """A configuration that was published for a job: a strategy, and where it stands."""

    strategy: dict[str, Any]
    source: str


@dataclass(frozen=True)
class Shown:
    """A job, with the configurations published for it."""

    model: str
    cluster: str
    sequence_length: int
    global_batch_size: int
    published: tuple[Published, ...]

    @property
    def job(self) -> dict[str, int]:
        """The job's fields."""
        return {"global_batch_size": self.global_batch_size, "sequence_length": self.sequence_length}


LLAMA_3 = "Llama 3 report, arXiv 2407.21783, table 4"
MEGATRON = "Megatron-LM, arXiv 2104.04473, tables 1 and 2; arXiv 2205.05198, table 3"
SHOWN = {
    "llama-3.1-8b": Shown(
        "llama-3.1-8b",
        "dgx-h100:1",
        8192,
        128,
        (
            Published(
                {"zero_stage": 3, "micro_batch_size": 1, "recompute": "selective"},
                "torchtitan, Llama-3-8B on 8 H100: FSDP, local batch 1, selective recompute",
            ),
        ),
    ),
    "llama-3.1-70b": Shown(
        "llama-3.1-70b",
        "dgx-h100:8",
        8192,
        512,
        (
            Published(
                {"tp": 4, "pp": 4, "vpp": 5, "micro_batch_size": 1, "zero_stage": 1},
                "NeMo, Llama-3-70B on 64 H100: tp 4, pp 4, vpp 5 (context parallelism 2 left out)",
            ),
            Published(
                {
                    "tp": 4,
                    "pp": 4,
                    "vpp": 5,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "recompute": "selective",
                },
                "the same with selective recompute",
            ),
        ),
    ),
    "gpt3-175b": Shown(
        "gpt3-175b",
        "dgx-a100:128",
        2048,
        1536,
        (
            Published(
                {
                    "tp": 8,
                    "pp": 8,
                    "vpp": 3,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "recompute": "selective",
                },
                f"{MEGATRON}: tp 8, pp 8, interleaved 3",
            ),
            Published(
                {"tp": 8, "pp": 16, "vpp": 3, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
                f"{MEGATRON}: tp 8, pp 16, interleaved, full recompute",
            ),
        ),
    ),
    "llama-3.1-405b": Shown(
        "llama-3.1-405b",
        "dgx-h100:2048",
        8192,
        2048,
        (
            Published(
                {"tp": 8, "pp": 16, "vpp": 8, "micro_batch_size": 1, "zero_stage": 1},
                f"{LLAMA_3}: tp 8, pp 16, dp 128, one layer a chunk",
            ),
            Published(
                {"tp": 8, "pp": 16, "micro_batch_size": 1, "zero_stage": 1, "recompute": "selective"},
                "the same without interleaving, selective recompute",
            ),
        ),
    ),
}


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
        "published": rows,
    }


def report(row: dict[str, Any]) -> str:
    """Return one job's figures as text."""
    plan = row["plan"]
    mesh = " ".join(f"{k} {plan[k]}" for k in ("tp", "pp", "dp", "vpp", "zero_stage", "micro_batch_size"))
    lines = [
        f"{row['name']}: {row['status']} {row['step_s']:.3f} s, gap {100 * row['gap']:.3f} %, "
        f"MFU {100 * row['mfu']:.1f} %, {row['peak_gib']:.1f} GiB a device",
        f"  planned in {row['wall_s']:.1f} s with {row['planner_gib']:.2f} GiB: {mesh}, {plan['schedule']}",
    ]
    for entry in row["published"]:
        ratio = entry["step_s"] / row["step_s"]
        fits = "fits" if entry["fits"] else "does not fit"
        lines.append(
            f"  published: {entry['step_s']:.3f} s ({ratio:.3f} x), {entry['peak_gib']:.1f} GiB, {fits}: "
            f"{entry['source']}"
        )
    return "\n".join(lines)


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
    main()
