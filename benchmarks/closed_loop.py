"""The closed loop: calibrate this machine, predict small training layouts, run them, compare.

``python -m benchmarks.closed_loop`` (in an environment with PyTorch and transformers) does for each number
of ranks: ``meshwright calibrate`` with one thread a rank and all ranks at work; ``solve`` for each job; every
layout of the job and the plan that ``solve`` picked, run by ``meshwright.apply``, the median of steps that
are interleaved with a second calibration of the same kind, by which they are predicted. Nothing of the runs
flows into the predictions. Printed are predicted against measured step times and peaks of memory, their mean
errors, Kendall's tau, and the regret of the plan that ``solve`` picked: its measured time over the fastest
one's, minus one.

On a CPU large blocks are kept by the allocator (:data:`ENVIRONMENT`), as PyTorch's own allocator does on
GPUs; else every tensor would cost page faults.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.accuracy_stats import kendall_tau, mean, regret
from meshwright.cli.errors import reader_may_leave
from meshwright.planner.calibrate.fits import fitted
from meshwright.planner.calibrate.machine import Machine
from meshwright.planner.calibrate.machine_file import paths
from meshwright.planner.calibrate.samples import from_lines
from meshwright.planner.calibrate.session import write
from meshwright.planner.estimate import estimate_problem
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.solve import solve_problem
from meshwright.planner.strategy import make_plan

ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}
"""One thread a rank; glibc neither maps large blocks one by one nor gives them back (mallopt(3))."""
CALIBRATION_S: Final = {"cpu": 12.0, "cuda": 60.0}
PICK: Final = "solve"
"""The name of the layout that the solver picked."""
CHECKOUT: Final = Path(__file__).parent.parent
NOTHING: Final[Mapping[str, Any]] = {"times_s": (), "peak_bytes": 0.0}
"""What is measured of a layout that runs out of memory."""
Files = tuple[Path, Path, Path]
"""Cluster, profile and samples of a measured machine."""


@dataclass(frozen=True)
class Job:
    """Layouts of one model and batch on one number of ranks; each a strategy's fields by name."""

    ranks: int
    length: int
    batch: int
    layouts: Mapping[str, Mapping[str, Any]]
    precision: str = "fp32"

    @property
    def fields(self) -> dict[str, Any]:
        """The job's fields without its profile."""
        return {
            "global_batch_size": self.batch,
            "sequence_length": self.length,
            "precision": self.precision,
            "target": "native",
            "headroom": 0.0,
        }


@dataclass(frozen=True)
class Run:
    """A layout, predicted and measured; without times where it ran out of memory."""

    ranks: int
    length: int
    name: str
    predicted_s: float
    times_s: Sequence[float]
    predicted_bytes: float
    peak_bytes: float
    fits: bool

    @property
    def measured_s(self) -> float:
        """The median step."""
        return median(self.times_s)

    @property
    def time_error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        """The same of the peak."""
        return self.predicted_bytes / self.peak_bytes - 1


def llama(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    """Return a configuration of the Llama family."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_cache": False,
    }


SMALL: Final = llama(384, 6, 6, 6, 1024, 2048)
"""12 M parameters: a step of 2,048 tokens takes a core one to two seconds."""
LARGE: Final = llama(2048, 16, 32, 8, 8192, 32768)
"""1 B parameters, for one GPU."""

FULL: Final = {"recompute": "full"}
ALONE: Final = {
    "micro 1": {"micro_batch_size": 1},
    "micro 4": {"micro_batch_size": 4},
    "micro 4 full": {"micro_batch_size": 4, **FULL},
    "micro 2 every second": {"micro_batch_size": 2, "recompute": "every-2:full"},
}
TWO: Final = {
    "dp": {"dp": 2, "zero_stage": 0, "micro_batch_size": 2},
    "zero-2": {"dp": 2, "zero_stage": 2, "micro_batch_size": 4},
    "zero-2 micro 1": {"dp": 2, "zero_stage": 2, "micro_batch_size": 1},
    "zero-3": {"dp": 2, "zero_stage": 3, "micro_batch_size": 4},
    "zero-3 full": {"dp": 2, "zero_stage": 3, "micro_batch_size": 2, **FULL},
    "tp": {"tp": 2, "micro_batch_size": 2},
    "tp micro 8": {"tp": 2, "micro_batch_size": 8},
    "pp": {"pp": 2, "micro_batch_size": 1},
    "pp micro 2 full": {"pp": 2, "micro_batch_size": 2, **FULL},
    "pp uneven": {"pp": 2, "micro_batch_size": 1, "layers_per_stage": [4, 2]},
}
FOUR: Final = {
    "dp": {"dp": 4, "zero_stage": 0, "micro_batch_size": 2},
    "zero-3": {"dp": 4, "zero_stage": 3, "micro_batch_size": 2},
    "tp x dp": {"tp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 2},
    "pp x dp": {"pp": 2, "dp": 2, "zero_stage": 0, "micro_batch_size": 1},
    "pp": {"pp": 4, "micro_batch_size": 1, "layers_per_stage": [1, 2, 2, 1]},
}
SHORT: Final = ("dp", "zero-2", "zero-3", "tp", "pp", "micro 4", "micro 4 full")
"""Layouts that run at the shorter length as well."""


def cpu_jobs() -> tuple[Job, ...]:
    """Return the jobs of one, two and four ranks of a CPU."""
    found = []
    for ranks, layouts in ((1, ALONE), (2, TWO), (4, FOUR)):
        found.append(Job(ranks, 256, 8, layouts))
        short = {name: layout for name, layout in layouts.items() if name in SHORT and ranks <= 2}
        found += [Job(ranks, 96, 8, short)] if short else []
    return tuple(found)


def gpu_jobs() -> tuple[Job, ...]:
    """Return the jobs of one GPU: micro-batch x recomputation x length."""
    layouts = {
        f"micro {size}{' ' + mode if mode != 'none' else ''}": {"micro_batch_size": size, "recompute": mode}
        for size in (1, 2, 4, 8)
        for mode in ("none", "full")
    }
    return tuple(Job(1, length, 8, layouts, "bf16") for length in (1024, 2048, 4096))


def launched(ranks: int, command: Sequence[str]) -> None:
    """Run a module under torchrun; its own words are shown if something fails."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*start, "-m", *command],
        cwd=CHECKOUT,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")


@dataclass(frozen=True)
class Loop:
    """One run of the loop: where its files lie, and on what."""

    folder: Path
    device: str
    budget_s: float
    repeats: int

    def calibrate(self, ranks: int) -> Files:
        """Measure the machine before anything runs on it, by which the solver picks."""
        output = self.folder / f"ranks-{ranks}.yaml"
        options = ["--budget", str(self.budget_s), "--device", self.device, "--name", f"ranks-{ranks}"]
        launched(ranks, ["meshwright.cli.main", "calibrate", "-o", str(output), *options])
        return paths(output)

    def problem(self, job: Job, machine: Files) -> Problem:
        """Return a job on a measured machine."""
        given = job.fields | {"profile": str(machine[1])}
        return Problem.load(str(self.folder / "model"), str(machine[0]), given)

    def plans(self, job: Job, machine: Files) -> dict[str, Plan]:
        """Return a job's layouts as plans, and the plan that the solver picks."""
        problem = self.problem(job, machine)
        found = {name: make_plan(problem, **fields) for name, fields in job.layouts.items()}
        picked = solve_problem(problem).plan
        return found | ({PICK: picked} if picked is not None else {})

    def measured(self, ranks: int, plans: Mapping[tuple[int, str], Plan]) -> tuple[dict[str, Any], Files]:
        """Run plans; return what was measured of each, and the files of the machine as it was meanwhile."""
        place = self.folder / f"plans-{ranks}"
        place.mkdir()
        for number, plan in enumerate(plans.values()):
            (place / f"{number:03}.json").write_text(plan.to_json())
        output = place / "measured.out"
        options = ["--repeats", str(self.repeats), "--device", self.device]
        command = ["benchmarks.closed_loop_rank", str(place), str(self.folder / "model"), str(output)]
        launched(ranks, [*command, *options])
        found = json.loads(output.read_text())
        told = found["machine"] | {"dtypes": tuple(found["machine"]["dtypes"]), "name": f"ranks-{ranks}"}
        samples, files = from_lines(found["samples"], str(output)), paths(place / "machine.yaml")
        write(files, Machine(**told), fitted(samples, Machine(**told)), samples)
        return found["runs"], files

    def runs(self, jobs: Sequence[Job]) -> list[Run]:
        """Return every layout of jobs on one number of ranks, predicted and measured."""
        first = self.calibrate(jobs[0].ranks)
        plans = {(at, name): p for at, job in enumerate(jobs) for name, p in self.plans(job, first).items()}
        seen, machine = self.measured(jobs[0].ranks, plans)
        problems = [self.problem(job, machine) for job in jobs]
        return [
            run_of(jobs[at], name, problems[at], plan, seen[f"{number:03}"] or NOTHING)
            for number, ((at, name), plan) in enumerate(plans.items())
        ]


def run_of(job: Job, name: str, problem: Problem, plan: Plan, seen: Mapping[str, Any]) -> Run:
    """Return one layout with its price on the machine as it was while it ran."""
    own = replace(plan, profile=problem.profile.name, cluster=problem.cluster.name)
    price = estimate_problem(problem, own)
    return Run(
        ranks=job.ranks,
        length=job.length,
        name=name,
        predicted_s=price.step_time_s,
        times_s=seen["times_s"],
        predicted_bytes=max(price.peak_bytes),
        peak_bytes=seen["peak_bytes"],
        fits=price.fits,
    )


def regret_of_pick(runs: Sequence[Run]) -> float | None:
    """Return what the solver's pick loses to the fastest layout of its job; None without a pick."""
    picked = [run.measured_s for run in runs if run.name == PICK]
    return picked[0] / min(run.measured_s for run in runs) - 1 if picked else None


def report(every: Sequence[Run]) -> list[str]:
    """Return the lines of the report."""
    lines = [f"{'ranks':>5} {'tokens':>6}  {'layout':22}{'predicted':>11}{'measured':>10}{'error':>8}"]
    lines[0] += f"{'spread':>8}{'peak MB':>10}{'error':>8}"
    runs = [run for run in every if run.times_s]
    for run in runs:
        spread = (max(run.times_s) - min(run.times_s)) / run.measured_s
        lines.append(
            f"{run.ranks:5} {run.length:6}  {run.name:22}{run.predicted_s:10.3f}s{run.measured_s:9.3f}s"
            f"{run.time_error:+8.1%}{spread:8.0%}{run.peak_bytes / 1e6:10.0f}{run.memory_error:+8.1%}"
        )
    for run in every:
        if not run.times_s:
            called = "fits" if run.fits else "does not fit"
            lines.append(f"{run.ranks:5} {run.length:6}  {run.name:22} out of memory; called: {called}")
    for name, few in (("1 and 2 ranks", {1, 2}), ("4 ranks", {4})):
        own = [run for run in runs if run.ranks in few]
        lines += [f"{name}: {line}" for line in figures(own)] if own else []
    return lines


def figures(runs: Sequence[Run]) -> list[str]:
    """Return the figures of a group of runs."""
    predicted, measured = [r.predicted_s for r in runs], [r.measured_s for r in runs]
    tau, span = kendall_tau(measured, predicted) or 0.0, max(measured) / min(measured)
    jobs = {
        (r.ranks, r.length): [s for s in runs if (s.ranks, s.length) == (r.ranks, r.length)] for r in runs
    }
    picks = [loss for own in jobs.values() if (loss := regret_of_pick(own)) is not None]
    by_job = [kendall_tau([r.measured_s for r in own], [r.predicted_s for r in own]) for own in jobs.values()]
    ranking = [regret([r.measured_s for r in own], [r.predicted_s for r in own]) for own in jobs.values()]
    return [
        f"{len(runs)} layouts, step times span {span:.1f}x",
        f"step time: mean error {mean(abs(r.time_error) for r in runs):.1%}, tau {tau:.2f} "
        f"(within jobs {mean(t for t in by_job if t is not None) or 0.0:.2f})",
        f"regret: of solve's pick {max(picks, default=0.0):.1%} at most, of the fastest predicted layout "
        f"{max(ranking):.1%} at most",
        f"peak memory: mean error {mean(abs(r.memory_error) for r in runs):.1%}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the loop and print its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, on a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each layout")
    parser.add_argument("--budget", type=float, help="seconds of each of the two calibrations")
    parser.add_argument("--json", type=Path, help="write every run to this file as well")
    parser.add_argument("--folder", type=Path, help="keep the files in this new folder")
    args = parser.parse_args(arguments)
    jobs = cpu_jobs() if args.device == "cpu" else gpu_jobs()
    wanted = [int(r) for r in args.ranks.split(",")] if args.device == "cpu" else [1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        (folder / "model").mkdir(parents=True)
        model = SMALL if args.device == "cpu" else LARGE
        (folder / "model" / "config.json").write_text(json.dumps(model))
        loop = Loop(folder, args.device, args.budget or CALIBRATION_S[args.device], args.repeats)
        runs = [run for ranks in wanted for run in loop.runs([j for j in jobs if j.ranks == ranks])]
    print("\n".join(report(runs)))
    if args.json:
        args.json.write_text(json.dumps([vars(run) for run in runs], indent=1))


if __name__ == "__main__":
    with reader_may_leave():
        main()
