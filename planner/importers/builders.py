"""Families that are no plain decoder: each has a function that builds its whole graph."""

from collections.abc import Callable, Mapping
from typing import Final

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.config import Config

BUILDERS: Final[Mapping[str, Callable[[Config, str], ModelGraph]]] = {}
"""Builders by ``model_type``."""
