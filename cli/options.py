"""The options that commands share, each named and explained once."""

from pathlib import Path
from typing import Annotated

import typer

_JOB, _STRATEGY, _OUTPUT = "Job", "Strategy", "Output"

JobFile = Annotated[
    Path | None,
    typer.Argument(metavar="JOB.YAML", help="Job file; flags override what it says.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="M", help="Preset name, config.json, its folder, or YAML."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="C", help="Name such as dgx-h100:8 (eight nodes), or YAML."),
]
GlobalBatch = Annotated[
    str | None, typer.Option("--global-batch", metavar="N", help="Sequences per optimizer step.")
]
GlobalBatchTokens = Annotated[
    str | None,
    typer.Option(
        "--global-batch-tokens", metavar="N", help="The same in tokens, in place of --global-batch."
    ),
]
SequenceLength = Annotated[str | None, typer.Option("--seq-len", metavar="N", help="Tokens per sequence.")]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="P", help="bf16 (the default), fp16, pure-bf16, bf16-8bit, fp32 or tf32."
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="O", help="adamw (the default), adam, momentum or sgd."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="T", help="Framework that must run the plan; see meshwright targets."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="P", help="Software profile; the target's own by default.")
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="L", help="full, chunked or fused cross entropy; the profile's own by default."
    ),
]
Headroom = Annotated[
    float | None,
    typer.Option("--headroom", metavar="F", help="Fraction of usable memory to leave free; 0.04 by default."),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Tokens of the whole run, for its bill; 15e12 will do."),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        "--limit",
        metavar="RULE",
        help="Pin, bound or forbid a decision: tp=4, tp=2,4, 'tp<=8', 'zero_stage!3'. May be repeated.",
    ),
]
AllowIdle = Annotated[
    bool | None,
    typer.Option("--allow-idle/--no-allow-idle", help="Whether devices may stay unused; not by default."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="S", help="Stop after S seconds with the best plan and its gap."),
]
OutputDir = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write plan.json and the launch files here."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files of an earlier plan in DIR.")]
Script = Annotated[
    str | None,
    typer.Option("--script", metavar="FILE", help="Training script that the launch files start."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]

PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="A plan.json, in place of the flags below."),
]
TensorDegree = Annotated[
    int | None, typer.Option("--tp", metavar="N", help="Tensor-parallel degree; 1 by default.")
]
PipelineDegree = Annotated[
    int | None, typer.Option("--pp", metavar="N", help="Pipeline stages; 1 by default.")
]
DataDegree = Annotated[
    int | None, typer.Option("--dp", metavar="N", help="Data-parallel degree; all devices left by default.")
]
VirtualStages = Annotated[
    int | None, typer.Option("--vpp", metavar="N", help="Chunks per pipeline rank; 1 by default.")
]
MicroBatch = Annotated[
    int | None,
    typer.Option("--micro-batch", metavar="N", help="Sequences per forward pass; 1 by default."),
]
ZeroStage = Annotated[int | None, typer.Option("--zero", metavar="0-3", help="ZeRO stage.")]
SequenceParallel = Annotated[
    bool | None,
    typer.Option("--sequence-parallel/--no-sequence-parallel", help="Split norms over the tensor group."),
]
Schedule = Annotated[str | None, typer.Option("--schedule", metavar="S", help="gpipe, 1f1b or interleaved.")]
Placement = Annotated[
    str | None,
    typer.Option("--placement", metavar="DIMS", help="Mesh dimensions, innermost first: tp,dp,pp."),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        metavar="MODE",
        help="none, selective or full, for all layers or by block number: 0-15:full,16-31:none.",
    ),
]
LayersPerStage = Annotated[
    str | None,
    typer.Option(
        "--layers-per-stage",
        metavar="N,N,...",
        help="Transformer layers of each chunk in model order: 7,8,8,7.",
    ),
]
