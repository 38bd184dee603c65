"""Recipes and optimizers by name, and what they mean: states, copies and casts of low precision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.precision import OPTIMIZERS, PRECISIONS, find_optimizer, find_precision
from meshwright.costmodels.roofline import device_rates
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

LOW = [p for p in PRECISIONS.values() if p.low_compute is not None]
HIGH = [p for p in PRECISIONS.values() if p.low_compute is None]


@pytest.mark.parametrize(
    ("name", "dtype", "element", "master"),
    [
        ("bf16", "bf16", 2, True),
        ("fp16", "fp16", 2, True),
        ("pure-bf16", "bf16", 2, False),
        ("fp32", "fp32", 4, False),
        ("tf32", "tf32", 4, False),
        ("fp8-block", "bf16", 2, True),
    ],
)
def test_recipes(name, dtype, element, master):
    recipe = find_precision(name)
    assert (recipe.compute, recipe.element_bytes, recipe.master) == (dtype, element, master)


def test_recipes_without_a_master_keep_gradients_of_their_own_size():
    for recipe in PRECISIONS.values():
        if not recipe.master:
            assert recipe.gradient_bytes == recipe.element_bytes == recipe.moment_bytes


@pytest.mark.parametrize("recipe", HIGH, ids=lambda r: r.name)
def test_a_recipe_of_one_precision_casts_nothing(recipe):
    assert recipe.dtypes == (recipe.compute,)
    assert recipe.cast_bytes() == recipe.weight_copy_bytes == 0
    assert recipe.low_weight_bytes == recipe.element_bytes


@pytest.mark.parametrize("recipe", LOW, ids=lambda r: r.name)
def test_low_precision_needs_both_rates_and_pays_for_casts_with_smaller_operands(recipe):
    assert recipe.dtypes == ("bf16", recipe.low_compute)
    assert recipe.product_bytes < recipe.element_bytes
    assert recipe.cast_bytes(1) == recipe.cast_reads * 2 + recipe.product_bytes
    assert recipe.cast_bytes(2) - recipe.cast_bytes(1) == pytest.approx(recipe.product_bytes)


@pytest.mark.parametrize(
    ("name", "operand", "weights"),
    [
        ("fp8", 1.0, 4.0),
        ("fp8-weights", 1.0, 2.0),
        ("fp8-block", 1.03125, 2.00048828125),
        ("mxfp8", 1.03125, 4.0625),
        ("nvfp4", 0.5625, 3.125),
        ("nvfp4-all", 0.5625, 3.125),
    ],
)
def test_scales_and_copies_of_low_precision(name, operand, weights):
    recipe = find_precision(name)
    assert (recipe.product_bytes, recipe.low_weight_bytes) == (operand, weights)


def test_one_scale_a_tensor_lets_newer_products_read_a_copy_in_either_order():
    current, blocks = find_precision("fp8-current"), find_precision("mxfp8")
    assert [current.cast_copies(a) for a in ("hopper", "blackwell", "blackwell-ultra")] == [2, 1, 1]
    assert blocks.cast_copies("blackwell") == 2


def test_nvfp4_in_every_block_differs_in_the_blocks_alone():
    some, every = find_precision("nvfp4"), find_precision("nvfp4-all")
    assert replace(every, name="nvfp4", high_blocks=some.high_blocks) == some
    assert every.high_blocks == (0, 0)


@pytest.mark.parametrize("recipe", LOW, ids=lambda r: r.name)
def test_scales_of_blocks_slow_their_products(recipe):
    b200 = load_accelerator("b200-sxm")
    plain = replace(recipe, product_rate=1.0)
    scaled, whole = (device_rates(b200, r).low_gemm_fraction for r in (recipe, plain))
    assert scaled == pytest.approx(recipe.product_rate * whole)
    assert 0.8 < recipe.product_rate <= 1


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x", "l40s", "gaudi3"])
def test_microscaling_needs_products_that_know_its_scales(name):
    for recipe in map(find_precision, ("mxfp8", "mxfp8-weights")):
        with pytest.raises(MeshwrightError, match=rf"{recipe.name}.*{name} does not; try fp8-current"):
            device_rates(load_accelerator(name), recipe)
        assert all(device_rates(load_accelerator(a), recipe) for a in ("b200-sxm", "gb300", "mi355x"))
    assert device_rates(load_accelerator(name), find_precision("fp8-current"))


def test_published_states_of_deepseek_v3():
    """Fp8 weight and transpose, fp32 master and gradient, bf16 moments: 14 bytes a parameter."""
    recipe = find_precision("fp8-block")
    states = find_optimizer("adamw-bf16").state_bytes(recipe)
    assert recipe.low_weight_bytes + 4 * recipe.master + 4 + states == pytest.approx(14, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "moments"), [("adamw", 2), ("adam", 2), ("momentum", 1), ("lion", 1), ("sgd", 0)]
)
def test_optimizers(name, moments):
    assert find_optimizer(name).moments == moments == OPTIMIZERS[name].moments
    assert find_optimizer(name).state_bytes(find_precision("bf16")) == 4 * moments


def test_an_optimizers_own_moments_go_before_the_recipes():
    bf16, eight = find_precision("bf16"), find_precision("bf16-8bit")
    assert find_optimizer("adamw").state_bytes(eight) == 2
    assert find_optimizer("adamw-bf16").state_bytes(bf16) == 4
    assert 2 < find_optimizer("adamw-8bit").state_bytes(bf16) < 2.1
    assert find_optimizer("adafactor").state_bytes(bf16) == 0


def test_muon_keeps_one_moment_of_matrices_and_two_outside_the_blocks():
    muon, bf16 = find_optimizer("muon"), find_precision("bf16")
    assert (muon.state_bytes(bf16), muon.state_bytes(bf16, block=False)) == (4, 8)


@given(m=st.integers(1, 10**4), n=st.integers(1, 10**4))
def test_newton_schulz_is_symmetric_and_counts_three_products_a_step(m, n):
    muon = find_optimizer("muon")
    short, long = min(m, n), max(m, n)
    products = 2 * short * short * long + 2 * short**3 + 2 * short * short * long
    assert muon.matrix_flops(m, n) == muon.matrix_flops(n, m) == 5 * products
    assert find_optimizer("adamw").matrix_flops(m, n) == 0


def test_newton_schulz_broadcasts():
    muon, sides = find_optimizer("muon"), np.array([3.0, 8.0, 20.0])
    each = [muon.matrix_flops(s, 8.0) for s in sides]
    assert np.array_equal(muon.matrix_flops(sides, 8.0), each)


def test_unknown_names_are_refused_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"precision.*'bf61'.*bf16"):
        find_precision("bf61")
    with pytest.raises(UnknownNameError, match=r"optimizer.*'adamv'.*adamw"):
        find_optimizer("adamv")
