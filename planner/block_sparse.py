"""Attention to a band of local blocks and to every n-th block before it (Phi-3-small)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Operator
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.mixers import SelfAttention


@dataclass(frozen=True, slots=True)
class BlockSparseAttention:
    """Standard attention whose queries see ``local`` tokens and one block in each ``stride`` before them.

    Priced by the number of keys that a query sees: ``local (1 - 1 / stride)`` beside one for every ``stride``
    of all earlier tokens is exactly that from the ``local``-th token on (up to ``1 / stride`` too many
    before). Kernels of the same number of keys but whole blocks cost the same.
    """

    local: int
    stride: int
    label: ClassVar[str] = "sparse"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its reach."""
        return f"sparse{self.local}-{self.stride}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return standard attention's operators with a sparse core."""
        window = self.local * (self.stride - 1) / self.stride

        def thinned(op: Operator) -> Operator:
            """Return an operator with the window and stride of the blocks, if it is the core."""
            return (
                replace(op, window=window, stride=self.stride)
                if isinstance(op, Attention) and self.stride > 1
                else op
            )

        return tuple(thinned(op) for op in SelfAttention().operators(spec))
