"""Context parallelism: each rank works on two mirrored pieces of every sequence.

The pieces of rank ``r`` of ``cp`` are the ``r``-th from either end of ``2 cp``, which balances causal work
(arXiv 2310.03294 and Megatron-Core's ``get_batch_on_this_cp_rank``). A rank's queries attend to the keys and
values of all, gathered in one collective for each layer. The backward pass gathers them again, for they are
not kept, and scatters the sums of their gradients. Left out: overlap of these with attention, and the ring.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

ATTENTION: Final = "meshwright_context"
"""Name of the attention function, in the table of transformers."""
IGNORED: Final = -100
"""The label of a token that is no target."""


@dataclass(frozen=True)
class Context:
    """A rank's place in its context group.

    Attributes
    ----------
    group
        The process group, None where there is one rank.
    rank, size
        Place in it, and ranks.
    kept
        Whether what a layer gathered may stay for its backward pass: where the layer itself runs again.
    """

    group: Any = None
    rank: int = 0
    size: int = 1
    kept: bool = False

    def pieces(self, length: int) -> tuple[range, range]:
        """Return the places of this rank's tokens among ``length``, which ``2 size`` divides."""
        each, last = length // (2 * self.size), 2 * self.size - 1 - self.rank
        return range(self.rank * each, (self.rank + 1) * each), range(last * each, (last + 1) * each)

    def own(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Return this rank's tokens of (sequences, length)."""
        import torch

        return torch.cat([tokens[:, p.start : p.stop] for p in self.pieces(tokens.shape[1])], dim=1)

    def targets(self, labels: "torch.Tensor") -> "torch.Tensor":
        """Return the label that follows each of this rank's tokens, and how many the whole sequence has.

        (sequences, own tokens + 1): the last column counts the sequence's targets.
        """
        import torch

        following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return torch.cat([self.own(following), (following != IGNORED).sum(dim=1, keepdim=True)], dim=1)

    def loss(self, logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return this rank's summand of the mean cross entropy, times the ranks: their mean is the loss."""
        from torch.nn.functional import cross_entropy

        total = cross_entropy(
            logits.flatten(0, 1).float(), targets[:, :-1].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total * self.size / targets[:, -1].sum()


def deal_out(part: "nn.Module", blocks: "Mapping[int, nn.Module]", plan: Plan, context: Context) -> None:
    """Have a part of a transformers model, with some blocks by number, work on a rank's tokens."""
    import torch
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    config: Any = part.config
    config._attn_implementation = ATTENTION
    for i, block in blocks.items():
        for module in block.modules():
            if hasattr(module, "is_causal"):
                module.context = replace(context, kept=plan.recompute[i + 1] == "full")
    pieces = context.pieces(plan.sequence_length)
    places = torch.tensor([place for piece in pieces for place in piece])[None]

    def enter(module: Any, args: Any, kwargs: Any) -> Any:
        """Say where in the sequence a rank's tokens stand."""
        return args, {**kwargs, "position_ids": places.to(args[0].device)}

    part.register_forward_pre_hook(enter, with_kwargs=True)


def attend(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> "tuple[torch.Tensor, None]":
    """Return causal attention of a rank's tokens to all before them, (sequences, tokens, heads, width).

    Its signature is that of transformers' attention functions; tensors are (sequences, heads, tokens, width).
    """
    import torch
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    context: Context = module.context
    pair, grouped = torch.stack([key, value]), key.shape[1] != query.shape[1]
    every = gathered(pair, context)
    found = []
    with nullcontext() if context.kept else gathered_again(pair.detach(), every, context):
        for piece, own in zip(context.pieces(every.shape[-2]), query.chunk(2, dim=2), strict=True):
            seen = causal_lower_right(len(piece), piece.stop)
            before = every[..., : piece.stop, :]
            found.append(
                scaled_dot_product_attention(own, *before, attn_mask=seen, scale=scaling, enable_gqa=grouped)
            )
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None


def gathered_again(own: "torch.Tensor", every: "torch.Tensor", context: Context) -> Any:
    """Return hooks that keep of ``every`` what it was gathered from, until a backward pass asks for it."""
    import torch

    storage, left, held = every.untyped_storage().data_ptr(), [0], list[torch.Tensor]()

    def pack(tensor: Any) -> Any:
        """Keep where a view of it lies."""
        if tensor.untyped_storage().data_ptr() != storage:
            return tensor
        left[0] += 1
        return tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(kept: Any) -> Any:
        """Gather it for the first that asks, free it after the last."""
        if isinstance(kept, torch.Tensor):
            return kept
        if not held:
            held.extend([gathered(own, context)] * left[0])
        return held.pop().as_strided(*kept)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def gathered(own: "torch.Tensor", context: Context) -> "torch.Tensor":
    """Return all ranks' tokens in order, of (two, sequences, heads, own tokens, width)."""
    import torch
    from torch import distributed

    # The names of torch 2.13, and those that it had before.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor

    class Gather(torch.autograd.Function):  # type: ignore[misc]
        """What all ranks hold, (ranks, ...); backward the sum of all ranks' gradients for this rank's."""

        @staticmethod
        def forward(ctx: Any, own: Any) -> Any:
            """Gather."""
            every = own.new_empty((context.size, *own.shape))
            gather(every.flatten(0, 1), own.contiguous(), group=context.group)
            return every

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            """Sum, and scatter."""
            own = grad.new_empty(grad.shape[1:])
            scatter(own, grad.contiguous().flatten(0, 1), group=context.group)
            return own

    first, second = Gather.apply(own).chunk(2, dim=-2)
    return torch.cat([*first, *second.flip(0)], dim=-2)


def check_context(cp: int, model: "nn.Module", able: bool, own_loss: bool) -> None:
    """Refuse what context ranks would compute otherwise.

    Raises
    ------
    MeshwrightError
        If the model's attention cannot be dealt out, or looks at a window, or the loss is one's own.
    """
    if cp == 1:
        return
    config: Any = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None)
    narrow = set(kinds or ()) - {"full_attention"} or (
        kinds is None and getattr(config, "sliding_window", None)
    )
    found = {
        "model: context ranks need one of transformers whose family is known": not able,
        "model: context ranks need attention to all tokens before, and its looks at a window": narrow,
        "loss_fn: context ranks compute the default cross entropy, each of its own tokens": own_loss,
    }
    for message, broken in found.items():
        if broken:
            raise MeshwrightError(f"{message}; plan with cp=1 instead of cp={cp}")
