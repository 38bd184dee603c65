"""A sum over tensor ranks in the middle of a layer, whole on each rank afterwards."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.plain import Weightless
from meshwright.costmodels.work import Shape, Traffic, Work


@dataclass(frozen=True, slots=True)
class PartialSum(Weightless):
    """Features that a row-parallel product leaves in parts and that every rank then needs whole.

    All-reduced forward and, as every rank uses them for its own features, backward (time step, B and C of
    Mamba-1, whose product reads split channels). Unlike a
    :class:`~meshwright.costmodels.operators.Boundary` it does not leave the tensor region.
    """

    name: str
    features: Num
    light: bool = False
    trained: ClassVar[bool] = True

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return none: the network does the work."""
        return ()

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return none."""
        return ()

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return an all-reduce each way."""
        whole = shape.tokens * self.features * shape.element_bytes * (shape.tp > 1)
        return (Traffic("all_reduce", whole),), (Traffic("all_reduce", whole),)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return zero: the product before keeps its output."""
        return 0
