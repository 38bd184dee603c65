"""Weights that several places of one stage use: work again, but neither parameters nor memory again."""

from dataclasses import dataclass

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.work import Shape


@dataclass(frozen=True, slots=True)
class SharedGemm(Gemm):
    """A product with the weight of another one beside it (the head of a multi-token-prediction layer).

    Unlike a ``tied`` weight it needs no copy: both lie on one device.
    """

    def parameters(self) -> int:
        """Return zero."""
        return 0

    def local_parameters(self, shape: Shape) -> Num:
        """Return zero."""
        return 0
