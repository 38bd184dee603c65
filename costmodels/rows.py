"""Operators for what no standard block has: products on other rows than the layer's tokens, and products of
two activations that are no attention.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.operators import Operator
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Weightless
from meshwright.costmodels.work import Shape, Traffic, Work


@dataclass(frozen=True, slots=True)
class OnRows:
    """An operator that sees ``ratio`` rows for each token of its layer.

    A pooler sees one row a sequence (``1 / sequence_length``), a patch-merging convolution a quarter.
    Left out: the ratio is that of the example, so one row a sequence stays a share of the tokens.
    """

    inner: Operator
    ratio: float

    @property
    def name(self) -> str:
        """The inner operator's name."""
        return self.inner.name

    @property
    def light(self) -> bool:
        """As the inner operator."""
        return self.inner.light

    @property
    def parts(self) -> tuple[Part, ...]:
        """As the inner operator."""
        return self.inner.parts

    @property
    def trained(self) -> bool:
        """As the inner operator."""
        return self.inner.trained

    @property
    def expert(self) -> bool:
        """As the inner operator."""
        return self.inner.expert

    @property
    def stored_bytes(self) -> float | None:
        """As the inner operator."""
        return self.inner.stored_bytes

    def _rows(self, shape: Shape) -> Shape:
        return replace(shape, sequences=self.ratio * shape.sequences)

    def parameters(self) -> int:
        """Return the inner operator's parameters."""
        return self.inner.parameters()

    def local_parameters(self, shape: Shape) -> Num:
        """Return the inner operator's parameters on one rank."""
        return self.inner.local_parameters(shape)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the work on its rows."""
        return self.inner.forward(self._rows(shape))

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the work on its rows."""
        return self.inner.backward(self._rows(shape))

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the traffic of its rows."""
        return self.inner.traffic(self._rows(shape))

    def saved_bytes(self, shape: Shape) -> Num:
        """Return what it keeps of its rows."""
        return self.inner.saved_bytes(self._rows(shape))


@dataclass(frozen=True, slots=True)
class Contraction(Weightless):
    """A product of two activations: (m x k)(k x n) for each token's share of a batch.

    ``flops`` and ``features`` (both operands and the result) are per token, at the length that they were
    seen at; split in ``units`` over ``tp`` where its operands are. Both operands are kept elsewhere; the
    backward pass is two such products.
    """

    name: str
    flops: float
    features: float
    rows: int
    columns: int
    inner: int
    split: bool = False
    light: bool = False
    trained: ClassVar[bool] = True

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the product."""
        tokens = shape.tokens / (1 + self.split * (shape.tp - 1))
        moved = tokens * self.features * shape.element_bytes
        return (Work("gemm", tokens * self.flops, moved, self.rows, self.columns, self.inner),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products for the gradients of both operands."""
        return self.forward(shape) * 2

    def saved_bytes(self, shape: Shape) -> Num:
        """Return zero: its operands belong to those that made them."""
        return 0 * shape.tokens
