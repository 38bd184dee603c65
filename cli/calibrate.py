"""``meshwright calibrate``: measure this machine, and say how well the formulas explain it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.errors import ExitCode, guarded

if TYPE_CHECKING:
    from meshwright.planner.calibrate.collect import Progress
    from meshwright.planner.calibrate.explain import Residual
    from meshwright.planner.calibrate.session import Calibration


@guarded
def calibrate(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.YAML", help="The cluster file to write.")
    ],
    budget_s: Annotated[float, typer.Option("--budget", metavar="S", help="Seconds to measure for.")] = 120.0,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="SAMPLES.JSONL", help="Samples of an earlier run; may be repeated."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="D", help="cpu or cuda (ROCm too); a GPU by default.")
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option("--dtypes", metavar="A,B", help="bf16,tf32 by default, on a CPU fp32; also fp16."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the cluster; the device's by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> ExitCode:
    """Measure the machine that this runs on, for --cluster and --profile of solve.

    Products, attention, streams, the optimizer and the host's time; launched by torchrun also collectives
    over its ranks. Writes FILE.yaml, FILE.profile.toml and FILE.samples.jsonl. Needs PyTorch.

    \b
    Try:
      torchrun --nproc-per-node 8 --no-python meshwright calibrate -o mine.yaml
      meshwright solve --cluster mine.yaml --profile mine.profile.toml ...
    """  # noqa: D301  (\b keeps the lines)
    from meshwright.planner.calibrate.session import calibrate as measured

    with measuring(budget_s, quiet=quiet) as progress:
        found = measured(
            output,
            budget_s=budget_s,
            merge=tuple(merge or ()),
            device=device,
            dtypes=tuple(d.strip() for d in (dtypes or "").split(",") if d.strip()),
            name=name,
            progress=progress,
        )
    if found.files:
        _answer(found, as_json=as_json)
    return ExitCode.FOUND


@contextmanager
def measuring(budget_s: float, *, quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """Yield what the measurement should call: a bar of the budget on a terminal, nothing elsewhere."""
    from meshwright.cli.tables import screen

    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=budget_s)

        def show(at: "Progress") -> None:
            """Move the bar."""
            bar.update(task, completed=min(at.spent_s, budget_s), description=described(at))

        yield show


def described(at: "Progress") -> str:
    """Return what is being measured, in words."""
    return f"round {at.round + 1}: {type(at.case).__name__.lower()}"


def _answer(found: "Calibration", *, as_json: bool) -> None:
    from meshwright.cli.tables import write_json

    if as_json:
        write_json(summary(found))
        return
    from rich.console import Group

    from meshwright.cli.render import files_written, show
    from meshwright.cli.tables import bullets, screen, section

    console = screen()
    notes = (
        [f"{len(found.left_out)} cases were not reached: give a larger --budget"] if found.left_out else []
    )
    parts = [residual_table(found.constants.residuals), *(section("Notes", bullets(notes)) if notes else ())]
    show(console, Group(*parts))
    show(console, files_written([str(path) for path in found.files]))


def summary(found: "Calibration") -> dict[str, Any]:
    """Return the calibration as plain data."""
    constants = found.constants
    return {
        "machine": found.machine.title,
        "ranks": found.machine.inside * found.machine.across,
        "peak_flops_per_s": constants.peaks,
        "memory_bytes_per_s": constants.memory,
        "tiers": {
            name: {"bandwidth_bytes_per_s": rate, "latency_s": latency}
            for name, (rate, latency) in constants.tiers.items()
        },
        "profile": constants.profile,
        "residuals": [
            {"case": str(r.case), "measured_s": r.measured_s, "predicted_s": r.predicted_s}
            for r in constants.residuals
        ],
        "left_out": [str(case) for case in found.left_out],
        "files": [str(path) for path in found.files],
    }


def residual_table(residuals: "tuple[Residual, ...]") -> Any:
    """Return how well each kind of sample is explained: the median error, the largest, and where it is."""
    from meshwright.cli.figures import percent, seconds
    from meshwright.cli.tables import grid, plain

    table = grid("What", "Samples", "Median error", "Largest", "Measured there", "Where", right=(1, 2, 3, 4))
    kinds = list(dict.fromkeys(type(r.case).__name__ for r in residuals))
    for kind in kinds:
        own = [r for r in residuals if type(r.case).__name__ == kind]
        worst = max(own, key=lambda r: abs(r.log_ratio))
        errors = [abs(r.predicted_s / r.measured_s - 1) for r in own]
        largest = worst.predicted_s / worst.measured_s - 1
        cells = (kind.lower(), len(own), percent(median(errors)), f"{100 * largest:+.1f} %")
        table.add_row(*map(plain, (*cells, seconds(worst.measured_s), _shown(worst.case))))
    return table


def _shown(case: Any) -> str:
    """Return a case's fields as words."""
    return ", ".join(f"{name} {getattr(case, name)}" for name in case.__slots__)
