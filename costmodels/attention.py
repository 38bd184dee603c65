"""The attention core: flash or unfused, causal, windowed or full, split by heads."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.operators import Part
from meshwright.costmodels.work import Shape, Traffic, Work


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention core, flash or unfused, split by heads.

    FLOPs: 2 products of (s x s) a head, halved when causal, banded when windowed (formulas: 4 b s^2 a d
    full; 2 b s^2 a d causal; 4 b a d (s w - w(w-1)/2) windowed). Flash attention's backward pass runs five
    products for the forward pass' two, hence 2.5 times its FLOPs (FlashAttention-2, arXiv 2307.08691); the
    unfused one runs four, hence twice.
    Saved: the output, and per head the fp32 log-sum-exp (flash) or the softmax's output (unfused; with
    dropout also its mask and the dropped-out copy: 5 a s bytes a token at 16 bits, arXiv 2205.05198).
    """

    name: str
    heads: Num
    kv_heads: Num
    head_dim: Num
    v_head_dim: Num
    causal: bool = True
    window: Num | None = None
    flash: bool = True
    dropout: bool = False
    light: bool = False
    trained: ClassVar[bool] = True
    expert: ClassVar[bool] = False
    stored_bytes: ClassVar[float | None] = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: query heads."""
        return (Part(self.heads * self.head_dim, self.heads, "attention heads"),)

    def parameters(self) -> int:
        """Return zero."""
        return 0

    def local_parameters(self, shape: Shape) -> Num:
        """Return zero."""
        return 0

    def pairs(self, sequence_length: Num) -> Num:
        """Return the query-key pairs of one head and sequence: full, causal half, or banded."""
        s = 1.0 * sequence_length
        if self.window is not None:
            w = np.minimum(s, self.window)
            band = s * w - w * (w - 1) / 2
            return band if self.causal else 2 * band - s
        return s * (s + 1) / 2 if self.causal else s * s

    def _flops(self, shape: Shape) -> Num:
        heads = ceil_div(self.heads, shape.tp)
        per_pair = 2 * (self.head_dim + self.v_head_dim)
        return shape.sequences * heads * per_pair * self.pairs(shape.sequence_length)

    def _io_bytes(self, shape: Shape) -> Num:
        """Return the bytes of Q, K, V and O, and of the scores if they go through memory."""
        heads, kv = ceil_div(self.heads, shape.tp), ceil_div(self.kv_heads, shape.tp)
        width = heads * (self.head_dim + self.v_head_dim) + kv * (self.head_dim + self.v_head_dim)
        scores = 0 if self.flash else (4 + 2 * self.dropout) * heads * shape.sequence_length
        return shape.tokens * (width + scores) * shape.element_bytes

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the two products with the softmax between them."""
        return (
            Work(
                "attention",
                self._flops(shape),
                self._io_bytes(shape),
                k=shape.sequence_length,
                kernels=1 if self.flash else 4,
            ),
        )

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return 2.5 (flash) or 2 (unfused) times the forward products."""
        ratio = 2.5 if self.flash else 2.0
        return (
            Work(
                "attention",
                ratio * self._flops(shape),
                2 * self._io_bytes(shape),
                k=shape.sequence_length,
                kernels=2 if self.flash else 6,
            ),
        )

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return none: heads are independent."""
        return (), ()

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the output and of the log-sum-exp or the scores."""
        heads = ceil_div(self.heads, shape.tp)
        output = shape.tokens * heads * self.v_head_dim * shape.element_bytes
        return output + self.core_bytes(shape)

    def core_bytes(self, shape: Shape) -> Num:
        """Return what recomputing the core alone frees: the scores, or flash's log-sum-exp."""
        heads = ceil_div(self.heads, shape.tp)
        per_score = shape.element_bytes * (1 + self.dropout) + self.dropout
        per_token = 4 if self.flash else per_score * shape.sequence_length
        return shape.tokens * heads * per_token
