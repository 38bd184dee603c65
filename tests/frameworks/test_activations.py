"""The names of activations are those of transformers."""

import pytest

from meshwright.planner.importers.names import ACTIVATIONS

activations = pytest.importorskip("transformers.activations", reason="transformers is not installed")


def test_every_activation_of_transformers_is_known_and_no_other_but_phi_3_small_s() -> None:
    assert frozenset(activations.ACT2CLS) | {"gegelu"} == ACTIVATIONS
