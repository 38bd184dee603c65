"""The parts of a model that one pipeline rank holds: the model itself, with what lives elsewhere left out."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.runtime.architecture import Architecture
from meshwright.planner.runtime.layout import block_range

if TYPE_CHECKING:
    from torch import nn


def model_parts(
    model: "nn.Module", plan: Plan, architecture: Architecture, chunks: Sequence[Chunk]
) -> tuple["nn.Module", ...]:
    """Return a model for each chunk, in which every other chunk's module passes its input through.

    The names of parameters stay those of the whole model, so that a checkpoint of it fits every part.
    """
    _without_cache(model)
    if len(chunks) == plan.pp * plan.vpp == 1:
        return (model,)
    shells = [_shell(model, architecture) for _ in chunks[1:]]
    parts = (model, *shells)
    for part, chunk in zip(parts, chunks, strict=True):
        _leave_out(part, plan, architecture, chunk)
    return parts


def own_blocks(
    part: "nn.Module", plan: Plan, architecture: Architecture, chunk: Chunk
) -> dict[int, "nn.Module"]:
    """Return the blocks of a chunk by their number in the model."""
    blocks: Any = architecture.part(part, "blocks")
    return {i: blocks[i] for i in block_range(plan, chunk.start, chunk.stop)}


def _shell(model: "nn.Module", architecture: Architecture) -> "nn.Module":
    """Return a copy of a model that shares its parts with it."""
    ends = [architecture.part(model, name) for name in ("embedding", "norm", "head")]
    blocks: Any = architecture.part(model, "blocks")
    return copy.deepcopy(model, {id(part): part for part in (*ends, *blocks)})


def _leave_out(part: "nn.Module", plan: Plan, architecture: Architecture, chunk: Chunk) -> None:
    """Replace what is no part of a chunk."""
    blocks: Any = architecture.part(part, "blocks")
    own = block_range(plan, chunk.start, chunk.stop)
    for i in set(range(len(blocks))) - set(own):
        blocks[i] = _elsewhere()
    if chunk.start > 0:
        part.set_submodule(architecture.embedding, _elsewhere())
    if chunk.stop < plan.num_layers:
        part.set_submodule(architecture.norm, _elsewhere())
        part.set_submodule(architecture.head, _elsewhere())


def _elsewhere() -> "nn.Module":
    """Return a module without parameters that hands on its first argument, whatever comes with it."""
    from torch import nn

    module = nn.Identity()
    module.forward = lambda first, *args, **kwargs: first
    return module


def _without_cache(model: "nn.Module") -> None:
    """Switch off the cache of keys and values, which serves generation only."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False


def return_own_tensor(part: "nn.Module") -> None:
    """Make a part return what its rank holds of logits or activations, not a record or a DTensor with them.

    It is no view of another tensor: schedules that split the backward pass detach it in place. This is the
    last thing that is done to a part, for FSDP watches what a module returns.
    """
    import torch

    class Own(torch.autograd.Function):  # type: ignore[misc]
        """The same elements in a tensor of its own, without a copy."""

        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            """Return the tensor as one of its own."""
            return tensor.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            """Hand the gradient on."""
            return grad

    def own(module: Any, args: Any, output: Any) -> Any:
        """Return an output that is no view."""
        tensor = getattr(output, "logits", output)
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return Own.apply(tensor) if tensor._is_view() else tensor

    part.register_forward_hook(own)
