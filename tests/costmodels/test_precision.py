"""Recipes and optimizers by name."""

import pytest

from meshwright.costmodels.precision import OPTIMIZERS, PRECISIONS, find_optimizer, find_precision
from meshwright.hardware.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "dtype", "element", "master"),
    [
        ("bf16", "bf16", 2, True),
        ("fp16", "fp16", 2, True),
        ("pure-bf16", "bf16", 2, False),
        ("fp32", "fp32", 4, False),
        ("tf32", "tf32", 4, False),
    ],
)
def test_recipes(name, dtype, element, master):
    recipe = find_precision(name)
    assert (recipe.compute, recipe.element_bytes, recipe.master) == (dtype, element, master)


def test_recipes_without_a_master_keep_gradients_of_their_own_size():
    for recipe in PRECISIONS.values():
        if not recipe.master:
            assert recipe.gradient_bytes == recipe.element_bytes == recipe.moment_bytes


@pytest.mark.parametrize(("name", "moments"), [("adamw", 2), ("adam", 2), ("momentum", 1), ("sgd", 0)])
def test_optimizers(name, moments):
    assert find_optimizer(name).moments == moments == OPTIMIZERS[name].moments


def test_unknown_names_are_refused_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"precision.*'bf61'.*bf16"):
        find_precision("bf61")
    with pytest.raises(UnknownNameError, match=r"optimizer.*'adamv'.*adamw"):
        find_optimizer("adamv")
