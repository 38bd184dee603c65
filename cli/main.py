"""The ``meshwright`` command: names and help only, so that asking for help loads nothing heavy.

Each command imports its work when it is called. Exit codes: 0 found, 1 a bug in Meshwright, 2 bad input,
3 infeasible (or, for ``estimate``, does not fit), 4 limit reached without a plan, 130 interrupted.
"""

import sys
from typing import Annotated, Any

import typer

from meshwright.cli import options as o
from meshwright.cli.calibrate import calibrate
from meshwright.cli.commands import Commands
from meshwright.cli.errors import ExitCode, guarded, reader_may_leave
from meshwright.cli.hardware import hardware
from meshwright.cli.learn import learn
from meshwright.cli.model import model

app = typer.Typer(
    name="meshwright",
    cls=Commands,
    # Rich help and tracebacks would load rich for a page of text.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from meshwright._version import __version__

        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The fastest training plan that fits memory, with a proof, and the files that launch it.

    \b
    Try:
      meshwright solve --model llama-3.1-8b --cluster dgx-h100 \\
        --global-batch 128 --seq-len 8192

    \b
    Exit codes:
      0  found                      3  infeasible, or estimate: does not fit
      1  a bug in Meshwright        4  limit reached without a plan
      2  bad input                  130  interrupted
    """  # noqa: D301  (\b keeps the lines)


@app.command()
@guarded
def solve(
    job_file: o.JobFile = None,
    model: o.Model = None,
    cluster: o.Cluster = None,
    global_batch_size: o.GlobalBatch = None,
    global_batch_tokens: o.GlobalBatchTokens = None,
    sequence_length: o.SequenceLength = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    target: o.Target = None,
    profile: o.Profile = None,
    loss: o.Loss = None,
    headroom: o.Headroom = None,
    oom_risk: o.OomRisk = None,
    tokens: o.Tokens = None,
    target_length: o.TargetLength = None,
    image_tokens: o.ImageTokens = None,
    tuning: o.Tuning = None,
    lora: o.Lora = None,
    expert_load: o.ExpertLoad = None,
    recompute_modules: o.RecomputeModules = None,
    mtp: o.Mtp = None,
    pins: o.Pins = None,
    allow_idle: o.AllowIdle = None,
    time_limit_s: o.TimeLimit = None,
    output: o.OutputDir = None,
    force: o.Force = False,
    script: o.Script = None,
    launcher: o.Launchers = None,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> ExitCode:
    """Find the fastest plan that fits memory, and prove it.

    Everything can stand in one YAML job file, whose keys are model, cluster, global_batch_size (or
    global_batch_tokens), sequence_length, target_length, image_tokens, precision, optimizer, tuning,
    expert_load, recompute_modules, mtp, target, profile, loss, headroom, oom_risk, tokens, pins, allow_idle
    and time_limit_s. Paths in it are relative to its folder.

    \b
    Exit codes: 0 found, 2 bad input, 3 infeasible, 4 limit without a plan.
    """  # noqa: D301  (\b keeps the lines)
    flags: dict[str, Any] = dict(locals())
    from meshwright.cli.solve import run

    return run(flags)


@app.command()
@guarded
def estimate(
    job_file: o.JobFile = None,
    model: o.Model = None,
    cluster: o.Cluster = None,
    global_batch_size: o.GlobalBatch = None,
    global_batch_tokens: o.GlobalBatchTokens = None,
    sequence_length: o.SequenceLength = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    target: o.Target = None,
    profile: o.Profile = None,
    loss: o.Loss = None,
    headroom: o.Headroom = None,
    oom_risk: o.OomRisk = None,
    tokens: o.Tokens = None,
    target_length: o.TargetLength = None,
    image_tokens: o.ImageTokens = None,
    tuning: o.Tuning = None,
    lora: o.Lora = None,
    expert_load: o.ExpertLoad = None,
    recompute_modules: o.RecomputeModules = None,
    mtp: o.Mtp = None,
    plan: o.PlanFile = None,
    tp: o.TensorDegree = None,
    cp: o.ContextDegree = None,
    pp: o.PipelineDegree = None,
    dp: o.DataDegree = None,
    dp_replicate: o.Replicas = None,
    ep: o.ExpertDegree = None,
    etp: o.ExpertTensorDegree = None,
    hpz: o.Secondary = None,
    vpp: o.VirtualStages = None,
    micro_batch_size: o.MicroBatch = None,
    zero_stage: o.ZeroStage = None,
    sequence_parallel: o.SequenceParallel = None,
    kv_exchange: o.KvExchange = None,
    ulysses: o.Ulysses = None,
    offload: o.Offload = None,
    schedule: o.Schedule = None,
    placement: o.Placement = None,
    recompute: o.Recompute = None,
    layers_per_stage: o.LayersPerStage = None,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> ExitCode:
    """Price a given plan: time, memory, whether it fits.

    The plan comes from the flags, from a plan.json (--plan), or from the key strategy of a YAML job file,
    whose keys are tp, cp, pp, dp, dp_replicate, ep, etp, hpz, vpp, micro_batch_size, zero_stage,
    sequence_parallel, kv_exchange, ulysses, offload, schedule, placement, recompute and layers_per_stage.

    \b
    Exit codes: 0 it fits, 2 bad input, 3 it does not fit.
    """  # noqa: D301  (\b keeps the lines)
    flags: dict[str, Any] = dict(locals())
    from meshwright.cli.estimate import run

    return run(flags)


@app.command(short_help="List the target frameworks, and what a plan loses there.")
@guarded
def targets(as_json: o.AsJson = False) -> ExitCode:
    """List the target frameworks, and what a plan loses by going there."""
    from meshwright.cli.targets import run

    return run(as_json=as_json)


app.command(short_help="Show a model's layers, parameters, FLOPs and activations.")(model)
app.command(short_help="List accelerators, nodes and pods, or show one of them.")(hardware)
app.command(short_help="Measure the machine that this runs on.")(calibrate)
app.command(short_help="Fit a software profile's constants to measured runs.")(learn)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character shows a question mark instead of ending the command.
            stream.reconfigure(errors="replace")
    with reader_may_leave():
        app(prog_name="meshwright")


if __name__ == "__main__":
    main()
