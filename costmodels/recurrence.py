"""The real-gated linear recurrence (RG-LRU of Griffin, arXiv 2402.19427, section 2.4)."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain
from meshwright.costmodels.product import gemm_work
from meshwright.costmodels.work import Shape, Work

RECURRENCE_FLOPS = 10
"""FLOPs a token and feature between the gates' products and the output, by the paper's equations 1 to 4."""
STATE_BYTES = 4
"""The recurrence runs in fp32."""


@dataclass(frozen=True, slots=True)
class GatedRecurrence(Plain):
    """Two block-diagonal gates (one block a head) and a recurrence of one number a feature.

    The gates are grouped products of (tokens x block)(block x block). The recurrence reads the input and
    both gates and writes the state; it is bound by memory (arXiv 2402.19427, section 3.2). Backward reads
    these and the gradient, runs the recurrence the other way and writes three gradients.

    Parameters: both gates' weights and biases, and one decay a feature.
    """

    name: str
    width: int
    heads: int
    light: bool = False
    trained: bool = True
    splits_sequence: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: blocks."""
        return (Part(self.width, self.heads, "recurrent heads"),)

    @property
    def block(self) -> int:
        """Features of a block."""
        return self.width // self.heads

    def parameters(self) -> int:
        """Return gates, their biases, and decays."""
        return self.width * (2 * (self.block + 1) + 1)

    def local_parameters(self, shape: Shape) -> Num:
        """Return those of one rank's blocks."""
        return self._heads(shape) * self.block * (2 * (self.block + 1) + 1)

    def _heads(self, shape: Shape) -> Num:
        return ceil_div(self.heads, shape.tp)

    def _scan(self, shape: Shape, features: Num, passes: Num) -> Work:
        elements = shape.tokens * self._heads(shape) * self.block
        states = elements * (features * shape.element_bytes + STATE_BYTES * passes)
        return Work("memory", 1.0 * passes * RECURRENCE_FLOPS * elements, states)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the gates' grouped product and the recurrence."""
        gates = gemm_work(
            shape.tokens, self.block, self.block, shape.element_bytes, groups=2 * self._heads(shape)
        )
        return gates, self._scan(shape, 4, 1)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the recurrence backwards and the gates' gradients."""
        t, b, q = shape.tokens, self.block, shape.element_bytes
        groups = 2 * self._heads(shape)
        inward = self._scan(shape, 8, 2), gemm_work(t, b, b, q, groups=groups)
        if not self.trained:
            return inward
        return *inward, gemm_work(b, b, t, q, groups=groups, weight_gradient=True)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return both gates, and the fp32 state."""
        elements = shape.tokens * self._heads(shape) * self.block
        return elements * (2 * shape.element_bytes + STATE_BYTES)
