"""All families whose layers are not attention alone, and those that a search put together layer by layer."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers.families_linear import LINEAR_FAMILIES
from meshwright.planner.importers.families_mamba import MAMBA_FAMILIES
from meshwright.planner.importers.families_nas import NAS_FAMILIES
from meshwright.planner.importers.families_zamba import ZAMBA_FAMILIES
from meshwright.planner.importers.family import Family

HYBRID_FAMILIES: Final[Mapping[str, Family]] = {
    **MAMBA_FAMILIES,
    **LINEAR_FAMILIES,
    **ZAMBA_FAMILIES,
    **NAS_FAMILIES,
}
