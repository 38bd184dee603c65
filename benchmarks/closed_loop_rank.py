"""One rank of the closed loop: measures the machine, applies plans to a model, times steps, tracks memory.

Started by :mod:`benchmarks.closed_loop` under ``torchrun``. On a CPU all layouts are held at once; each round
measures every case of the calibration and one step of every layout, so that whatever disturbs the machine
disturbs both alike. On a GPU layouts run one after the other, as the allocator's peak is each one's own.
"""

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM

import meshwright
from meshwright.planner.calibrate.bench import Bench
from meshwright.planner.calibrate.bench_groups import make_groups
from meshwright.planner.calibrate.cases import CPU, GPU, Case, Sample, grid
from meshwright.planner.calibrate.collect import merged
from meshwright.planner.calibrate.detect import machine
from meshwright.planner.calibrate.machine import Machine
from meshwright.planner.calibrate.samples import to_lines
from meshwright.planner.runtime.applied import Applied

CLIP = 1.0


@dataclass
class Held:
    """An applied plan, its batch, and what was measured of it."""

    applied: Applied
    batch: dict[str, torch.Tensor]
    peak_bytes: float
    times_s: list[float] = field(default_factory=list)

    @property
    def measured(self) -> dict[str, Any]:
        """Plain data."""
        return {"times_s": self.times_s, "peak_bytes": self.peak_bytes}


def built(plan: Path, model: Path, device: str) -> Held:
    """Return an applied plan after a step that makes the optimizer's states and one that is tracked."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    applied = meshwright.apply(
        plan,
        module,
        lambda ps: torch.optim.AdamW(ps, lr=1e-4, fused=True),
        max_grad_norm=CLIP,
        device=device,
    )
    shape = applied.local_batch_size, applied.plan.sequence_length
    torch.manual_seed(1 + applied.data_rank)
    batch = {"input_ids": torch.randint(0, config.vocab_size, shape)}
    applied.step(batch)
    return Held(applied, batch, peak_bytes(applied, batch))


def timed(held: Held) -> None:
    """Add the seconds of one step, from a common start to the last rank's end."""
    dist.barrier()
    start = time.perf_counter()
    held.applied.step(held.batch)
    if held.applied.device.type != "cpu":
        torch.cuda.synchronize()
    held.times_s.append(largest(time.perf_counter() - start, held.applied.device))


def largest(value: float, device: torch.device) -> float:
    """Return the largest of the ranks' values."""
    seen = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return float(seen[0])


def peak_bytes(applied: Applied, batch: dict[str, torch.Tensor]) -> float:
    """Return one more step's peak on the fullest rank: by torch's tracker, on a GPU by its allocator."""
    if applied.device.type != "cpu":
        torch.cuda.reset_peak_memory_stats()
        applied.step(batch)
        return largest(float(torch.cuda.max_memory_allocated()), applied.device)
    tracker = StepTracker()
    tracker.track_external(*applied.parts, applied.optimizer)
    with tracker:
        applied.step(batch)
    peak = max(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values())
    return largest(float(peak), applied.device)


class StepTracker(MemTracker):  # type: ignore[misc]
    """torch's memory tracker of a whole step.

    Without its statistics by module, which refuse a second micro-batch.
    """

    def _no_statistics(self, *_: Any) -> None:
        pass

    _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _no_statistics


def on_cpu(plans: Sequence[Path], model: Path, repeats: int) -> dict[str, Any]:
    """Return what was measured of layouts that are all held at once, and of the machine meanwhile."""
    every = {path.stem: built(path, model, "cpu") for path in plans}
    here, bench, cases = calibration("cpu")
    rounds: list[list[Sample]] = []
    for _ in range(repeats):
        rounds.append(samples(bench, cases))
        for held in every.values():
            timed(held)
    return told(here, rounds, {name: held.measured for name, held in every.items()})


def on_gpu(plans: Sequence[Path], model: Path, repeats: int) -> dict[str, Any]:
    """Return the same of layouts one after the other; null where one ran out of memory."""
    found: dict[str, Any] = {}
    dist.init_process_group("nccl")
    here, bench, cases = calibration("cuda:0")
    rounds = [samples(bench, cases) for _ in range(repeats)]
    for path in plans:
        held = None
        try:
            held = built(path, model, "cuda")
            for _ in range(repeats):
                timed(held)
            found[path.stem] = held.measured
        except torch.OutOfMemoryError:
            found[path.stem] = None
        del held
        torch.cuda.empty_cache()
    return told(here, rounds, found)


def calibration(device: str) -> tuple[Machine, Bench, Sequence[Case]]:
    """Return this machine, what measures it, and its cases."""
    here = machine(device, (), None)
    groups = make_groups(here.inside) if here.inside * here.across > 1 else None
    scale = CPU if here.kind == "cpu" else GPU
    cases = grid(scale, here.dtypes, here.inside, here.across, graphs=here.kind == "gpu")
    return here, Bench(device, groups), cases


def samples(bench: Bench, cases: Sequence[Case]) -> list[Sample]:
    """Return one timing of every case that the machine can run."""
    timings = ((case, bench(case)) for case in cases)
    return [Sample(case, seconds) for case, seconds in timings if seconds is not None]


def told(here: Machine, rounds: Sequence[Sequence[Sample]], runs: dict[str, Any]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {"machine": asdict(here), "samples": to_lines(merged(rounds)), "runs": runs}


def main() -> None:
    """Run the plans of a folder; the first rank writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    run = on_cpu if args.device == "cpu" else on_gpu
    found = run(sorted(args.plans.glob("*.json")), args.model, args.repeats)
    if dist.get_rank() == 0:
        args.output.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
