"""Apply a plan to a model inside a training script."""

import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan, read_plan
from meshwright.planner.runtime.applied import Applied
from meshwright.planner.runtime.architecture import Architecture, find_architecture
from meshwright.planner.runtime.context import Context, check_context, deal_out
from meshwright.planner.runtime.layout import CONTEXT, PIPELINE, TENSOR
from meshwright.planner.runtime.limits import check_plan, check_world
from meshwright.planner.runtime.model_check import Facts, check_model, facts_of
from meshwright.planner.runtime.ranks import (
    check_same,
    data_rank,
    device_mesh,
    own_device,
    start_processes,
    world_size,
)
from meshwright.planner.runtime.schedule import pipeline_schedule
from meshwright.planner.runtime.shard import checkpoint_blocks, shard
from meshwright.planner.runtime.stages import model_parts, own_blocks, return_own_tensor
from meshwright.planner.runtime.tensor import split_over_tensor_ranks

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from meshwright.planner.plan import Chunk


def apply(
    plan: "Plan | str | os.PathLike[str]",
    model: "nn.Module",
    optimizer_fn: "Callable[[list[nn.Parameter]], torch.optim.Optimizer]",
    *,
    loss_fn: Callable[..., Any] | None = None,
    architecture: Architecture | None = None,
    initialise: "Callable[[nn.Module], None] | None" = None,
    max_grad_norm: float | None = None,
    device: str | None = None,
) -> Applied:
    """Lay a model out over the running processes as a plan says, and return what a training loop needs.

    Call it in every process with the same plan and a model with the same weights. It builds the device mesh,
    keeps the layers of this rank's pipeline stages, deals tokens out to context ranks, splits layers over
    tensor ranks, has those that the plan names recompute their activations, shards weights, gradients and
    optimizer states (FSDP2), and sets up schedule and micro-batches. World size, plan and model are checked
    before anything is allocated. The model is changed in place.

    Parameters
    ----------
    plan
        A plan, or the path of its ``plan.json``.
    model
        A decoder from token ids to logits (or a record with ``logits``), on the CPU or the ``meta`` device,
        in the dtype in which the recipe keeps weights (fp32, but bf16 for ``pure-bf16``).
    optimizer_fn
        From this rank's parameters to their optimizer.
    loss_fn
        From logits (sequences, tokens, vocabulary) and labels (sequences, tokens) to the mean loss; the cross
        entropy of each next token by default, the only one with context ranks.
    architecture
        Where the model's parts are, and how its blocks split over tensor ranks; known for Llama, Mistral,
        Qwen2 and Qwen3 of transformers.
    initialise
        Gives a part on the ``meta`` device its weights once they are allocated, shard by shard.
    max_grad_norm
        Clip the gradient of each step to this norm.
    device
        ``cuda`` or ``cpu``; by default what there is.

    Returns
    -------
    Applied
        With :meth:`~meshwright.planner.runtime.applied.Applied.step`.

    Raises
    ------
    MeshwrightError
        If the plan asks for what is not applied (each decision is named), the number of processes is another
        one, the model is not the planned one, or ranks differ in plan or weights.
    """
    plan = _plan(plan)
    _check_arguments(optimizer_fn, max_grad_norm, device)
    check_plan(plan)
    check_world(plan, world_size())
    layout = architecture or find_architecture(model)
    facts = _checked(plan, model, layout, loss_fn is not None, initialise)
    own = own_device(device)
    start_processes(own)
    check_same(plan, model)
    mesh = device_mesh(plan, own)
    chunks = [c for c in plan.chunks if c.rank == mesh.get_local_rank(PIPELINE)]
    context = Context(mesh.get_group(CONTEXT), mesh.get_local_rank(CONTEXT), plan.cp)
    parts = model_parts(model, plan, layout, chunks)
    for part, chunk in zip(parts, chunks, strict=True):
        _distribute(part, chunk, plan, layout, mesh, context)
        _allocate(part, own, initialise)
    loss = loss_fn or (context.loss if plan.cp > 1 else next_token_loss)
    widths = facts.hidden_size, facts.logits
    return Applied(
        plan=plan,
        mesh=mesh,
        device=own,
        parts=parts,
        optimizer=_optimizer(optimizer_fn([p for part in parts for p in part.parameters()])),
        data_rank=data_rank(plan, mesh),
        data_ranks=plan.dp,
        loss_fn=loss,
        context=context,
        schedule=pipeline_schedule(parts, chunks, plan, mesh, loss, widths) if plan.pp > 1 else None,
        max_grad_norm=max_grad_norm,
    )


def _plan(given: "Plan | str | os.PathLike[str]") -> Plan:
    """Return the plan, read from its file where a path is given."""
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | os.PathLike):
        raise MeshwrightError(f"plan: a Plan or the path of a plan.json, not {type(given).__name__}")
    return read_plan(Path(given))


def _check_arguments(optimizer_fn: object, max_grad_norm: object, device: str | None) -> None:
    """Refuse arguments that would fail after the layout."""
    if not callable(optimizer_fn):
        raise MeshwrightError(
            f"optimizer_fn is {optimizer_fn!r}; a function from parameters to an optimizer is expected, "
            "for example lambda weights: torch.optim.AdamW(weights)"
        )
    if max_grad_norm is not None and not _positive(max_grad_norm):
        raise MeshwrightError(f"max_grad_norm is {max_grad_norm!r}; allowed: None or a number above 0")
    if device is not None and str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise MeshwrightError(f"device is {device!r}; allowed: cuda and cpu (ROCm is cuda)")


def _optimizer(made: object) -> "torch.optim.Optimizer":
    """Return what ``optimizer_fn`` made, which each step asks to step and to forget its gradients."""
    if not all(callable(getattr(made, name, None)) for name in ("step", "zero_grad")):
        raise MeshwrightError(
            f"optimizer_fn: it returned {type(made).__name__}; an optimizer with step and zero_grad is "
            "expected, for example lambda weights: torch.optim.AdamW(weights)"
        )
    return cast("torch.optim.Optimizer", made)


def _positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < inf


def next_token_loss(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Return the mean cross entropy of every token given those before it; labels of -100 are left out."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def _checked(
    plan: Plan, model: "nn.Module", architecture: Architecture, own_loss: bool, initialise: Any
) -> Facts:
    """Return the facts of a model; refuse another than the planned one, or one whose weights nobody gives."""
    facts = facts_of(model, architecture)
    check_model(plan, facts, architecture)
    check_context(plan.cp, model, architecture.context, own_loss)
    if initialise is None and any(p.is_meta for p in model.parameters()):
        raise MeshwrightError(
            "model: its parameters are on the meta device; give initialise=..., which sets the weights of a "
            "part, or load them first"
        )
    return facts


def _distribute(
    part: "nn.Module",
    chunk: "Chunk",
    plan: Plan,
    architecture: Architecture,
    mesh: "DeviceMesh",
    context: Context,
) -> None:
    """Deal out, split, checkpoint and shard one part: each works on what the one before it made."""
    ends = chunk.start == 0, chunk.stop == plan.num_layers
    blocks = own_blocks(part, plan, architecture, chunk)
    if plan.cp > 1:
        deal_out(part, blocks, plan, context)
    if plan.tp > 1:
        split_over_tensor_ranks(
            part, blocks.values(), architecture, mesh[TENSOR], plan.sequence_parallel, ends
        )
    again = [i for i in blocks if plan.recompute[i + 1] == "full"]
    checkpoint_blocks(part, architecture, again)
    blocks = own_blocks(part, plan, architecture, chunk)
    shard(part, blocks.values(), plan, architecture, mesh, ends)
    return_own_tensor(part)


def _allocate(part: "nn.Module", device: "torch.device", initialise: Any) -> None:
    """Put a part on its device, with its weights."""
    if any(p.is_meta for p in part.parameters()):
        part.to_empty(device=device)
        initialise(part)
    else:
        part.to(device)
