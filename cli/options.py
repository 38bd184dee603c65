"""The options that commands share, each named and explained once."""

from pathlib import Path
from typing import Annotated

import typer

SCHEDULE_HELP = (
    "gpipe, 1f1b, 1f1b_ahead, interleaved, zb1p, zb2p, interleaved_zb, zbv, v_half, v_min or dualpipev; "
    "1f1b by default, interleaved with chunks."
)
"""Every schedule; written out, for reading their table would load numpy for a page of help."""

PRECISION_HELP = (
    "bf16 (the default), fp16, pure-bf16, bf16-8bit, fp32, tf32, fp8, fp8-current, fp8-weights, fp8-block, "
    "mxfp8, mxfp8-weights, nvfp4 or nvfp4-all."
)
OPTIMIZER_HELP = "adamw (the default), adam, momentum, sgd, lion, adamw-8bit, adamw-bf16, adafactor or muon."
"""Every recipe and every optimizer, written out for the same reason."""

JobFile = Annotated[
    Path | None,
    typer.Argument(metavar="JOB.YAML", help="Job file; flags override what it says.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="M", help="Preset or its ORG/NAME, config.json, its folder, or YAML."),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="C",
        help="Name such as dgx-h100:8 (eight nodes), dgx-a100:4@100GbE (behind another network; 8xNDR), "
        "or YAML.",
    ),
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
SequenceLength = Annotated[
    str | None, typer.Option("--seq-len", metavar="N", help="Tokens per sequence; 8k is 8192.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="P",
        help=PRECISION_HELP,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="O", help=OPTIMIZER_HELP),
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="T", help="Framework that must run the plan; see meshwright targets."),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="P", help="Software profile or its TOML; the target's own by default."),
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="L",
        help="Cross entropy: full (Megatron's), torch, kernel, chunked, fused (Liger's) and others; the "
        "profile's own by default.",
    ),
]
Headroom = Annotated[
    float | None,
    typer.Option(
        "--headroom",
        metavar="F",
        help="Fraction of usable memory to leave free; by default what measured peaks ask for at --oom-risk.",
    ),
]
OomRisk = Annotated[
    float | None,
    typer.Option(
        "--oom-risk",
        metavar="F",
        help="Share of measured runs like this one whose peak may exceed the headroom; 0.05 by default.",
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Tokens of the whole run, for its bill: 15e12 or 15T."),
]
TargetLength = Annotated[
    str | None,
    typer.Option("--target-length", metavar="N", help="Decoder tokens per sequence of an encoder-decoder."),
]
ImageTokens = Annotated[
    str | None,
    typer.Option("--image-tokens", metavar="N", help="Tokens that images (or audio) add to a sample."),
]
Tuning = Annotated[
    str | None,
    typer.Option(
        "--tuning",
        metavar="T",
        help="What is trained: full (the default), lora:r=16, qlora, freeze:layers=20.",
    ),
]
Lora = Annotated[
    int | None, typer.Option("--lora", metavar="RANK", help="Short for --tuning lora:r=RANK.", min=1)
]
RecomputeModules = Annotated[
    str | None,
    typer.Option(
        "--recompute-modules",
        metavar="LIST",
        help="What selective recompute runs again: core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, "
        "shared_experts, norms, activations, by_operator.",
    ),
]
ExpertLoad = Annotated[
    float | None,
    typer.Option(
        "--expert-load", metavar="F", help="Rows of the busiest expert rank over the mean; 1 by default."
    ),
]
Mtp = Annotated[
    bool | None,
    typer.Option("--mtp/--no-mtp", help="Train the multi-token-prediction layers too; not by default."),
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
Launchers = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher",
        metavar="L",
        help="torchrun, accelerate, deepspeed, slurm, kubernetes or skypilot; repeat for several.",
    ),
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
ContextDegree = Annotated[
    int | None, typer.Option("--cp", metavar="N", help="Context-parallel degree; 1 by default.")
]
ExpertDegree = Annotated[
    int | None, typer.Option("--ep", metavar="N", help="Expert-parallel degree; 1 by default.")
]
ExpertTensorDegree = Annotated[
    int | None, typer.Option("--etp", metavar="N", help="Expert-tensor degree; 1 by default.")
]
Replicas = Annotated[
    int | None,
    typer.Option("--dp-replicate", metavar="N", help="Copies of the shards (hybrid sharding); 1 by default."),
]
Secondary = Annotated[
    int | None,
    typer.Option("--hpz", metavar="N", help="Ranks that hold a secondary copy of the weights (ZeRO++)."),
]
Ulysses = Annotated[
    int | None,
    typer.Option("--ulysses", metavar="N", help="Context ranks that exchange heads for tokens; default 1."),
]
KvExchange = Annotated[
    str | None,
    typer.Option("--kv-exchange", metavar="W", help="ring (the default) or all_gather, among context ranks."),
]
Offload = Annotated[
    str | None,
    typer.Option(
        "--offload",
        metavar="W",
        help="To the host: none, optimizer, parameters, or either with -nvme.",
    ),
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
Schedule = Annotated[str | None, typer.Option("--schedule", metavar="S", help=SCHEDULE_HELP)]
Placement = Annotated[
    str | None,
    typer.Option("--placement", metavar="DIMS", help="Mesh dimensions, innermost first: tp,cp,dp,pp."),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        metavar="MODE",
        help="none, selective, moe, offload or full: for all layers, by block number (0-15:full,16-31:none), "
        "or every n-th (every-2:full).",
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
