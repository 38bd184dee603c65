"""What tensor and expert parallelism split: features in pieces that cannot be cut."""

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.arrays import Num, ceil_div

Axis = Literal["tensor", "expert", "expert_tensor", "ulysses"]


@dataclass(frozen=True, slots=True)
class Part:
    """Features that are split over ``tp`` in ``units`` that cannot be cut (heads, or single columns).

    Attributes
    ----------
    features
        Width per token before any split.
    units
        Indivisible pieces of it: heads for attention, ``features`` for an MLP.
    replicable
        Whether a rank may hold a copy of a unit when ``tp`` exceeds ``units`` (key/value heads).
    what
        The word for a unit in messages: "attention heads", "key/value heads", "ffn columns" ...
    padded
        Whether units are padded up to a multiple of ``tp`` x ``vocab_multiple`` (the vocabulary).
    axis
        The degree that splits it.
    """

    features: Num
    units: Num
    what: str
    replicable: bool = False
    padded: bool = False
    axis: Axis = "tensor"

    def local(self, tp: Num, multiple: Num = 1) -> Num:
        """Return the features that one of ``tp`` ranks holds; ``multiple`` pads a padded part."""
        per_unit = self.features / self.units
        if self.padded:
            return ceil_div(self.units, tp * multiple) * multiple * per_unit
        return ceil_div(self.units, tp) * per_unit
