"""A transformer layer too small for its arithmetic to matter: what is left is the host's time.

Run as eager stacks run it: norms, rotary embedding and gated activation operator by operator.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

HIDDEN: Final = 64
HEADS: Final = 2
TOKENS: Final = 16
STREAM_WIDTH: Final = 128
"""Last side of the tensors of memory-bound operators."""
PRODUCTS: Final = {
    "query": (HIDDEN, HIDDEN),
    "key": (HIDDEN, HIDDEN),
    "value": (HIDDEN, HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "gate": (HIDDEN, 2 * HIDDEN),
    "up": (HIDDEN, 2 * HIDDEN),
    "down": (2 * HIDDEN, HIDDEN),
}
"""Inputs and outputs of the layer's products."""
Parts = Any
"""A ``ModuleDict`` of the products, and of the two norms' weights."""


def passes(device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a forward pass, and the backward pass of one forward pass, of a tiny layer."""
    import torch
    from torch import nn

    linear = {name: nn.Linear(*sides, bias=False) for name, sides in PRODUCTS.items()}
    products = nn.ModuleDict(linear).to(device)
    scales = [torch.ones(HIDDEN, device=device, requires_grad=True) for _ in range(2)]
    x = torch.randn(1, TOKENS, HIDDEN, device=device, requires_grad=True)
    turn = torch.randn(2, TOKENS, HIDDEN // HEADS, device=device)
    out = layer(x, products, scales, turn)
    seed, leaves = torch.ones_like(out), [x, *scales, *products.parameters()]
    return (
        lambda: layer(x, products, scales, turn),
        lambda: torch.autograd.grad(out, leaves, seed, retain_graph=True),
    )


def layer(
    x: "torch.Tensor", products: Parts, scales: "list[torch.Tensor]", turn: "torch.Tensor"
) -> "torch.Tensor":
    """Return the output of attention and a gated part, each behind a norm and beside a residual sum."""
    from torch.nn import functional

    normed = norm(x, scales[0])
    q, k, v = (heads(products[name](normed)) for name in ("query", "key", "value"))
    q, k = (t * turn[0] + turned(t) * turn[1] for t in (q, k))
    core = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + products["out"](core.transpose(1, 2).reshape(x.shape))
    normed = norm(x, scales[1])
    summed: torch.Tensor = x + products["down"](
        functional.silu(products["gate"](normed)) * products["up"](normed)
    )
    return summed


def norm(x: "torch.Tensor", scale: "torch.Tensor") -> "torch.Tensor":
    """Return the input over its root mean square, computed in fp32, scaled."""
    import torch

    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return scale * wide.to(x.dtype)


def stream(what: str, a: "torch.Tensor", b: "torch.Tensor") -> Callable[[], Any]:
    """Return a memory-bound operator of a layer over the first tensor, or both."""
    import torch
    from torch.nn import functional

    scale, turn = torch.ones_like(a[0, 0]), b[0, :1]
    alone: dict[str, Callable[[], Any]] = {
        "sum": lambda: a + b,
        "norm": lambda: norm(a, scale),
        "gate": lambda: functional.silu(a) * b,
        "rotary": lambda: a * turn + turned(a) * turn,
    }
    return alone[what]


def heads(x: "torch.Tensor") -> "torch.Tensor":
    """Return (1, heads, tokens, features of a head)."""
    return x.view(1, TOKENS, HEADS, HIDDEN // HEADS).transpose(1, 2)


def turned(x: "torch.Tensor") -> "torch.Tensor":
    """Return the halves of each head swapped, one of them negated."""
    import torch

    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)
