"""Recomputation and data parallelism of a part: checkpointed blocks, FSDP2 groups, precision.

Each block is a group of its own, and so are the embedding and norm with head (together where they share a
weight). ZeRO-3 frees the gathered weights after the forward pass, ZeRO-2 keeps them until the backward pass
(``reshard_after_forward``, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html). Copies
that are not sharded are left as they are, but where a recipe computes in fewer bits than it keeps torch's
``replicate`` casts them group by group. Left out: ZeRO-1.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from meshwright.planner.plan import Plan
from meshwright.planner.runtime.architecture import Architecture
from meshwright.planner.runtime.layout import REPLICATE, SHARD
from meshwright.planner.runtime.ranks import with_context

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

CAST: Final = frozenset({"bf16"})
"""Recipes that keep fp32 weights and compute in bf16; gradients are reduced in fp32."""


def checkpoint_blocks(part: "nn.Module", architecture: Architecture, numbers: Iterable[int]) -> None:
    """Have the blocks with these numbers recompute their activations in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    blocks: Any = architecture.part(part, "blocks")
    for i in numbers:
        blocks[i] = checkpoint_wrapper(blocks[i])


def managed(plan: Plan) -> bool:
    """Return whether torch gathers or casts weights and reduces gradients; else weights are plain copies."""
    return plan.precision in CAST or (plan.dp * plan.cp > 1 and plan.zero_stage > 0)


def shard(
    part: "nn.Module",
    blocks: Iterable["nn.Module"],
    plan: Plan,
    architecture: Architecture,
    mesh: "DeviceMesh",
    ends: tuple[bool, bool],
) -> None:
    """Distribute a part's weights, gradients and optimizer states over the data-parallel ranks, in place."""
    if not managed(plan):
        return
    wrap = _wrapper(plan, mesh)
    for group in (*([block] for block in blocks), *_ends(part, architecture, ends)):
        wrap(group if len(group) > 1 else group[0])
    wrap(part)


def _ends(part: "nn.Module", architecture: Architecture, ends: tuple[bool, bool]) -> list[list["nn.Module"]]:
    """Return the groups beside the blocks."""
    embedding, norm, head = (architecture.part(part, name) for name in ("embedding", "norm", "head"))
    first, last = ends
    if first and last and head.weight is embedding.weight:
        return [[embedding, norm, head]]
    return [*([[embedding]] if first else []), *([[norm, head]] if last else [])]


def _wrapper(plan: Plan, mesh: "DeviceMesh") -> Any:
    """Return the function that makes modules a group."""
    import torch
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(**(low if plan.precision in CAST else {}))
    if plan.zero_stage == 0:
        copies = with_context(mesh, REPLICATE)
        return lambda modules: replicate(modules, mesh=copies, mp_policy=policy)
    ranks = with_context(mesh, SHARD)
    if plan.dp_replicate > 1:
        ranks = DeviceMesh._concatenate([mesh[REPLICATE], ranks])
    again = plan.zero_stage == 3
    return lambda modules: fully_shard(modules, mesh=ranks, mp_policy=policy, reshard_after_forward=again)
