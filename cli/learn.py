"""``meshwright learn``: a software profile refitted to one's own runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.errors import ExitCode, guarded

if TYPE_CHECKING:
    from meshwright.planner.calibrate.learn import Learned, Outcome


@guarded
def learn(
    logs: Annotated[
        list[Path], typer.Option("--log", metavar="FILE", help="A log of runs; may be repeated.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.TOML", help="Write the profile here.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN.JSON", help="The plan that ran, where a log is silent."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="As for solve; the plan's by default.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="C", help="As for solve; the plan's by default.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="P", help="To start from; the plan's by default.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="F",
            help="jsonl, megatron, deepspeed, torchtitan or trainer; found by itself.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Fit the constants of a software profile to measured runs, within physical bounds.

    A line of JSONL has step_time_s, optionally peak_memory_bytes, and plan (a path or a plan), or model,
    cluster, job and strategy; paths in it are looked for beside the log first. Logs of Megatron-LM,
    DeepSpeed, torchtitan and Trainer need --plan.

    \b
    Try:
      meshwright learn --log runs.jsonl -o mine.toml
      meshwright solve --profile mine.toml ...
    """  # noqa: D301  (\b keeps the lines)
    from meshwright.planner.calibrate.learn import learned
    from meshwright.planner.calibrate.observations import Given, read_observations
    from meshwright.planner.calibrate.profile_file import check_output, write_learned
    from meshwright.planner.plan import read_plan

    check_output(output)
    given = Given(None if plan is None else read_plan(plan), model, cluster, profile)
    read = [read_observations(log, given, form) for log in logs]
    found = learned([run for own in read for run in own.runs], [note for own in read for note in own.notes])
    if output is not None:
        write_learned(output, found, [str(log.name) for log in logs])
    if as_json:
        from meshwright.cli.tables import write_json

        write_json(summary(found, output))
    else:
        _page(found, output)
    return ExitCode.FOUND


def _page(found: "Learned", output: Path | None) -> None:
    from rich.console import Group

    from meshwright.cli.render import files_written, show
    from meshwright.cli.tables import bullets, screen, section

    console = screen()
    parts = [runs_table(found.outcomes), *section(errors(found.outcomes))]
    if found.moved or found.beyond:
        parts += section("Constants that moved, or are outside their range", constants_table(found))
    if found.notes:
        parts += section("Notes", bullets(found.notes))
    show(console, Group(*parts))
    if output is not None:
        show(console, files_written([str(output)]))


def runs_table(outcomes: "tuple[Outcome, ...]") -> Any:
    """Return each run's measured step time, and what was and is predicted."""
    from meshwright.cli.figures import seconds
    from meshwright.cli.tables import grid, plain

    table = grid("Run", "Measured", "Before", "Error", "After", "Error", right=(1, 2, 3, 4, 5))
    for one in outcomes:
        run, wanted = one.observation, one.observation.step_time_s
        cells = (f"{run.plan.model}: {layout(run.plan)}", seconds(wanted))
        before = (seconds(one.before_s), _signed(one.before_s / wanted - 1))
        after = (seconds(one.after_s), _signed(one.after_s / wanted - 1))
        table.add_row(*map(plain, (*cells, *before, *after)))
    return table


def layout(plan: Any) -> str:
    """Return a plan's degrees above one, its ZeRO stage and micro-batch."""
    degrees = [f"{d} {getattr(plan, d)}" for d in ("tp", "cp", "pp", "dp", "ep") if getattr(plan, d) > 1]
    return ", ".join([*degrees, f"ZeRO {plan.zero_stage}", f"micro-batch {plan.micro_batch_size}"])


def errors(outcomes: "tuple[Outcome, ...]") -> str:
    """Return the mean error of step time and memory, before and after, in words."""
    from meshwright.cli.figures import percent, plural

    told = []
    for what, before, after, wanted in (
        ("step time", "before_s", "after_s", "step_time_s"),
        ("peak memory", "before_bytes", "after_bytes", "peak_bytes"),
    ):
        own = [o for o in outcomes if getattr(o.observation, wanted) is not None]
        if own:
            sides = [
                sum(abs(getattr(o, side) / getattr(o.observation, wanted) - 1) for o in own) / len(own)
                for side in (before, after)
            ]
            told.append(f"{what} {percent(sides[0])} before, {percent(sides[1])} after")
    return f"Mean error of {plural(len(outcomes), 'run')}: {'; '.join(told)}"


def constants_table(found: "Learned") -> Any:
    """Return the constants that moved or are outside their bounds, with these and why they are so."""
    from meshwright.cli.tables import grid, plain
    from meshwright.planner.calibrate.bounds import MEMORY, PROFILE

    table = grid("Constant", "Before", "After", "Allowed", "Because", right=(1, 2), whole=(0,))
    still = {name: (value, value) for name, value in found.beyond.items() if name not in found.moved}
    for name, (before, after) in {**found.moved, **still}.items():
        bounds = {**PROFILE, **MEMORY}[name]
        on = " (on its bound)" if bounds.touches(after) else ""
        on = " (outside)" if name in found.beyond else on
        allowed = f"{bounds.low:.3g} to {bounds.high:.3g}{on}"
        table.add_row(*map(plain, (name, f"{before:.3g}", f"{after:.3g}", allowed, bounds.reason)))
    return table


def summary(found: "Learned", output: Path | None) -> dict[str, Any]:
    """Return what was learned as plain data."""
    return {
        "profile": found.base.name,
        "constants": {n: {"before": old, "after": new} for n, (old, new) in found.moved.items()},
        "outside": found.beyond,
        "notes": list(found.notes),
        "runs": [
            {
                "model": o.observation.plan.model,
                "layout": layout(o.observation.plan),
                "step_time_s": o.observation.step_time_s,
                "before_s": o.before_s,
                "after_s": o.after_s,
                "peak_bytes": o.observation.peak_bytes,
                "before_bytes": o.before_bytes,
                "after_bytes": o.after_bytes,
            }
            for o in found.outcomes
        ],
        "files": [] if output is None else [str(output)],
    }


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"
