"""Weights cast in every pass: those that ZeRO-3 gathers in 16 bits and no others, by the bytes moved."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.tables import build_tables
from meshwright.costmodels.weight_casts import weight_cast_s
from tests.costmodels.cases import make_setting, make_strategies

CURRENT = make_setting(precision="fp8-current", profile="fsdp2")
elements = st.floats(0, 1e10)


@given(elements, elements, st.integers(0, 3))
def test_a_pass_casts_what_it_gathered_in_16_bits(dense, expert, stage):
    """Two reads of 2 bytes (the maximum, the cast) and one copy of a byte."""
    got = weight_cast_s(CURRENT, make_strategies(zero_stage=stage), np.array([[[dense, expert]]]))
    rate = CURRENT.rates.memory_bytes_per_s * CURRENT.rates.memory_fraction
    assert got == pytest.approx((stage == 3) * (dense + expert) * 5 / rate)


@given(elements, st.floats(1, 20))
def test_faster_memory_casts_faster(parameters, factor):
    rates = replace(CURRENT.rates, memory_bytes_per_s=CURRENT.rates.memory_bytes_per_s * factor)
    strategies, table = make_strategies(zero_stage=3), np.array([[[parameters, 0.0]]])
    now, then = (weight_cast_s(s, strategies, table) for s in (CURRENT, replace(CURRENT, rates=rates)))
    assert factor * then == pytest.approx(now)


@pytest.mark.parametrize("recipe", ["bf16", "fp8-weights"])
def test_nothing_is_cast_behind_a_gather_of_8_bits_or_for_16_bit_products(recipe):
    setting = make_setting(precision=recipe, profile="fsdp2")
    assert not weight_cast_s(setting, make_strategies(zero_stage=3), np.full((1, 1, 2), 1e9)).any()


def test_both_passes_of_a_block_cast_its_weights_and_an_embedding_casts_none():
    unhindered = make_setting(precision="fp8-current", profile="fsdp2", host_share=0.0)
    tables = build_tables(unhindered, make_strategies(zero_stage=np.array([2, 3])))
    ahead, back = np.diff(tables.forward_s, axis=0)[0], np.diff(tables.backward_s[..., 0], axis=0)[0]
    blocks = np.array([kind.role == "block" for kind in CURRENT.kinds])
    assert np.all(ahead[blocks] > 0)
    assert ahead == pytest.approx(back)
    assert not ahead[~blocks].any()
