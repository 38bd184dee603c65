"""What operators have in common that are no more than their work: the answers that most of them give."""

from typing import ClassVar

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.part import Part
from meshwright.costmodels.work import Shape, Traffic


class Plain:
    """An operator that, unless it says otherwise, is no expert's, stores nothing packed, asks no network."""

    __slots__ = ()
    expert: ClassVar[bool] = False
    stored_bytes: ClassVar[float | None] = None

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return none: what it works on lies on the rank, or boundaries bring it there."""
        return (), ()


class Weightless(Plain):
    """A plain operator without weights; where it splits anything, the products around it carry the rule."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """Nothing that tensor parallelism could split."""
        return ()

    def parameters(self) -> int:
        """Return zero."""
        return 0

    def local_parameters(self, shape: Shape) -> Num:
        """Return zero."""
        return 0
