"""A transformer layer too small for its arithmetic to matter: what is left is the host's time.

Run as eager stacks run it: norms, rotary embedding and gated activation operator by operator.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

HEAD: Final = 32
"""Features of a head."""
TOKENS: Final = 16
STREAM_WIDTH: Final = 128
"""Last side of the tensors of memory-bound operators."""
COLUMNS: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS: Final = ("self_attn.o_proj", "mlp.down_proj")
NORMS: Final = ("input_layernorm", "post_attention_layernorm")
Passes = tuple[Callable[[], Any], Callable[[], Any]]
"""A forward pass, and the backward pass of one forward pass."""


def passes(device: str) -> Passes:
    """Return the passes of a tiny layer."""
    import torch

    width = 2 * HEAD
    x = torch.randn(1, TOKENS, width, device=device, requires_grad=True)
    return _passes(block(width).to(device), x)


def token_bytes(ranks: int) -> int:
    """Return the bytes of fp32 activations, as wide as all ranks, that :func:`tensor_passes` exchange."""
    return 4 * TOKENS * ranks * 2 * HEAD * ranks


def tensor_passes(device: str, group: Any) -> Passes:
    """Return the same of a layer that a group's ranks split, tokens too, as ``meshwright.apply`` does."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    from meshwright.planner.runtime.architecture import COLUMNS as COLWISE
    from meshwright.planner.runtime.architecture import NORM
    from meshwright.planner.runtime.architecture import ROWS as ROWWISE
    from meshwright.planner.runtime.tensor import split_block

    mesh = DeviceMesh.from_group(group, "cpu" if device == "cpu" else "cuda")
    width = 2 * HEAD * mesh.size()
    words = dict.fromkeys(COLUMNS, COLWISE) | dict.fromkeys(ROWS, ROWWISE) | dict.fromkeys(NORMS, NORM)
    whole = block(width).to(device)
    split_block(whole, words, mesh, Shard(1))
    own = torch.randn(1, TOKENS, width, device=device, requires_grad=True)
    return _passes(whole, DTensor.from_local(own, mesh, [Shard(1)], run_check=False))


def _passes(layer: Any, x: "torch.Tensor") -> Passes:
    import torch

    tokens = TOKENS * (x.device_mesh.size() if hasattr(x, "device_mesh") else 1)
    turn = torch.randn(2, tokens, HEAD, device=x.device)
    out = layer(x, turn)
    seed, leaves = torch.ones_like(out), [x, *layer.parameters()]
    return (
        lambda: layer(x, turn),
        lambda: torch.autograd.grad(out, leaves, seed, retain_graph=True),
    )


def block(width: int) -> Any:
    """Return a module: attention and a gated part, each behind a norm and beside a residual sum."""
    import torch
    from torch import nn

    class Norm(nn.Module):  # type: ignore[misc]
        """A norm with a scale."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the scaled norm."""
            return norm(x, self.weight)

    class Attention(nn.Module):  # type: ignore[misc]
        """Causal attention with four projections."""

        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                nn.Linear(width, width, bias=False) for _ in range(4)
            )

        def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
            """Return the projected output of the core."""
            q, k, v = (heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
            q, k = (t * turn[0] + turned(t) * turn[1] for t in (q, k))
            core = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            out: torch.Tensor = self.o_proj(core.transpose(1, 2).flatten(2))
            return out

    class Gated(nn.Module):  # type: ignore[misc]
        """A gated MLP."""

        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
            self.down_proj = nn.Linear(2 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the projected product of the branches."""
            out: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
            return out

    class Block(nn.Module):  # type: ignore[misc]
        """A pre-norm block."""

        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm, self.self_attn = Norm(), Attention()
            self.post_attention_layernorm, self.mlp = Norm(), Gated()

        def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
            """Return the stream with both residuals added."""
            x = x + self.self_attn(self.input_layernorm(x), turn)
            return x + self.mlp(self.post_attention_layernorm(x))

    return Block()


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
    return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


def turned(x: "torch.Tensor") -> "torch.Tensor":
    """Return the halves of each head swapped, one of them negated."""
    import torch

    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)
