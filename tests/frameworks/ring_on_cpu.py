"""torch's ring of context ranks with the attention kernel of CPUs, which its own table of kernels lacks.

The ring, its balanced pieces and the merging of partial results are torch's own code; only the kernel that
works on a piece, and how attention gets there, stand here (torch goes through its dispatcher for DTensors).
"""

from typing import Any

import torch
from torch.distributed.tensor.experimental._context_parallel import _attention as theirs
from torch.nn import functional

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Ring(torch.autograd.Function):
    """Causal attention of a rank's queries to the keys of all."""

    @staticmethod
    def forward(ctx: Any, mesh: Any, query: Any, key: Any, value: Any, scale: float | None) -> Any:
        ctx.group, ctx.scale = mesh.get_group(), scale
        out, sums = theirs._templated_ring_attention(
            ctx.group, 2, KERNEL, query, key, value, is_causal=True, scale=scale
        )
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, out, sums = ctx.saved_tensors
        own = {"query": query, "key": key, "value": value, "out": out, "logsumexp": sums}
        rest = {"is_causal": True, "dropout_p": 0.0, "scale": ctx.scale}
        found = theirs._templated_ring_attention_backward(
            ctx.group, 2, BACKWARD, grad.contiguous(), "grad_out", **own, **rest
        )
        return None, *found[:3], None


def allow() -> None:
    """Have ``context_parallel`` send attention on CPUs through the ring."""
    whole = functional.scaled_dot_product_attention

    def enter(seq_dim: int, mesh: Any) -> None:
        def attend(query: Any, key: Any, value: Any, **given: Any) -> Any:
            assert given.pop("is_causal") and given.pop("attn_mask", None) is None
            if given.pop("enable_gqa", False):
                again = query.shape[1] // key.shape[1]
                key, value = (x.repeat_interleave(again, dim=1) for x in (key, value))
            return Ring.apply(mesh, query, key, value, given.get("scale"))

        functional.scaled_dot_product_attention = attend

    def leave() -> None:
        functional.scaled_dot_product_attention = whole

    theirs._enable_context_parallel_dispatcher_impl = enter
    theirs._disable_context_parallel_dispatcher_impl = leave
