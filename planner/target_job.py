"""What a target can train at all: limits on job and model that no mesh can mend, each with its name."""

from dataclasses import replace
from typing import Final

from meshwright.costmodels.attention import Attention
from meshwright.planner.graph import ModelGraph
from meshwright.planner.job import Job
from meshwright.planner.target import Target

WHOLE_LOSSES: Final = frozenset({"full", "torch", "eager", "engine"})
"""Cross entropies that a framework's own loss is; others are a kernel, in parts, or compiled."""


def fitted(target: Target, model: ModelGraph, job: Job) -> Target:
    """Return the target with the recompute modes that it has for this model and recipe.

    Selective recomputation drops what every light operator keeps. A framework that names modules instead can
    say so only where its modules are all of them (``selective_operators``), or where the job lists modules.
    """
    if target.selective_operators is None:
        return target
    blocks = [kind for kind in model.kinds if kind.role == "block"]
    light = {op.name for kind in blocks for op in kind.operators if op.light}
    said = bool(job.recompute_modules) or light <= target.selective_operators
    able = said and job.precision not in target.whole_recompute_precisions
    return target if able else replace(target, recompute=target.recompute - {"selective", "moe"})


def refusals(target: Target, model: ModelGraph, job: Job, loss: str) -> list[str]:
    """Return a line for each property of job or model that the target cannot train, led by its field."""
    words = (
        ("precision", job.precision, target.precisions),
        ("optimizer", job.optimizer, target.optimizers),
        ("loss", loss, target.losses),
        ("tuning", job.tuning.kind, target.tunings),
    )
    found = [
        f"{name}={value}: only {', '.join(sorted(allowed))}"
        for name, value, allowed in words
        if allowed is not None and value not in allowed
    ]
    if job.mtp and not target.multi_token:
        found.append("mtp=true: only false")
    if target.families is not None and model.family not in target.families:
        found.append(f"model={model.name}: only {', '.join(sorted(target.families))}, not {model.family}")
    elif target.decoders_only and not plain_decoder(model):
        found.append(f"model={model.name}: only decoders of one stream with attention in every layer")
    return found


def pipeline_refusals(target: Target, model: ModelGraph, job: Job, loss: str) -> list[str]:
    """Return a line for each property that the target cannot train as a pipeline, led by its field."""
    found = _family_refusals(target.pipeline_families, model, job, loss)
    return found if target.pipeline_families is None else [*found, *_window_refusals(model)]


def context_refusals(target: Target, model: ModelGraph, job: Job, loss: str) -> list[str]:
    """Return a line for each property that the target cannot train over context ranks, led by its field."""
    found = _family_refusals(target.context_families, model, job, loss)
    return found if target.context_families is None else [*found, *_window_refusals(model)]


def _window_refusals(model: ModelGraph) -> list[str]:
    cores = [op for kind in model.kinds for op in kind.operators if isinstance(op, Attention)]
    narrow = any(core.window or core.chunk for core in cores)
    return [f"model={model.name}: only attention to all tokens"] if narrow else []


def tensor_refusals(target: Target, model: ModelGraph, job: Job, loss: str) -> list[str]:
    """Return a line for each property that the target cannot train over tensor ranks, led by its field."""
    return _family_refusals(target.tensor_families, model, job, loss)


def _family_refusals(families: frozenset[str] | None, model: ModelGraph, job: Job, loss: str) -> list[str]:
    if families is None:
        return []
    limits = {
        f"model={model.name}: only {', '.join(sorted(families))}, not {model.family}": (
            model.family not in families
        ),
        f"tuning={job.tuning.kind}: only full": job.tuning.kind != "full",
        f"loss={loss}: only whole cross entropies": loss not in WHOLE_LOSSES,
    }
    return [line for line, broken in limits.items() if broken]


def plain_decoder(model: ModelGraph) -> bool:
    """Return whether a model is one stream of text through blocks that all attend to what came before."""
    blocks = [kind for kind in model.kinds if kind.role == "block"]
    cores = [[op for op in kind.operators if isinstance(op, Attention)] for kind in blocks]
    attends = all(own and all(core.causal for core in own) for own in cores)
    ends = len(model.block_layers) == model.num_layers - 2
    return attends and ends and not model.streams and model.context is None
