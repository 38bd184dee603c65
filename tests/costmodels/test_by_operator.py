"""What a policy keeps operator by operator, and what it runs again."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.by_operator import kept_bytes, kept_shares
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import input_bytes, repeated_shares, saved_bytes
from meshwright.costmodels.work import Shape
from meshwright.planner.modes import told
from tests.costmodels.test_modules import KINDS, LATENT, PLAIN, SPEC

POLICY = ("by_operator",)
TOLD = told(PLAIN, POLICY)
FSDP = find_profile("fsdp2")


def test_every_second_product_of_a_plain_block_is_kept():
    h, kv, f, tokens = SPEC.hidden, SPEC.kv_heads * SPEC.head_dim, SPEC.ffn, 256
    core, statistics = h, 4 * SPEC.heads  # fp32 log-sum-exp of each head
    kept = 2 * (h + kv + f + h + core) + statistics  # queries, values, gate, down; 16 bits
    assert float(kept_bytes(TOLD, Shape(1, tokens, 1, False))) == kept * tokens
    assert kept_shares(TOLD)["out"] == 0
    assert kept_shares(TOLD)["qkv"] == pytest.approx((h + kv) / (h + 2 * kv))


def test_what_is_kept_of_an_operator_is_not_run_again_and_all_else_is():
    again = repeated_shares(TOLD, "selective", FSDP)
    shares = kept_shares(TOLD)
    assert list(again) == list(repeated_shares(PLAIN, "full", FSDP))  # both stop before the last product
    assert all(share == 1 - shares.get(name, 0) for name, share in again.items())
    assert again["attention"] == 0 and again["pre_mlp_norm"] == 1


@given(KINDS, st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([128, 256, 1024]))
def test_a_policy_keeps_more_than_the_input_and_runs_less_than_the_layer(kind, tp, sequence, tokens):
    own, shape = told(kind, POLICY), Shape(1, tokens, tp, sequence and tp > 1)
    shares = kept_shares(own)
    assert all(0 <= share <= 1 for share in shares.values())
    saved = saved_bytes(own, "selective", shape)
    assert saved == input_bytes(own, shape) + kept_bytes(own, shape) > saved_bytes(own, "full", shape)
    full, again = (repeated_shares(own, mode, FSDP) for mode in ("full", "selective"))
    assert set(again) == set(full) and sum(again.values()) < sum(full.values())


@given(st.sampled_from([2, 4]))
def test_a_tensor_group_keeps_what_its_reduce_scatters_return(tp):
    apart, whole = (kept_bytes(TOLD, Shape(1, 256, tp, split)) for split in (True, False))
    assert apart - whole == 2 * 2 * 256 * SPEC.hidden / tp  # behind attention and feed, 16 bits


@given(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4))
def test_arrays_are_scalars_side_by_side(degrees):
    tp = np.array(degrees)
    together = kept_bytes(TOLD, Shape(1, 256, tp, tp > 1))
    assert together == pytest.approx([float(kept_bytes(TOLD, Shape(1, 256, t, t > 1))) for t in degrees])


def test_a_kind_counts_its_own_products_and_leaves_the_routed_ones_out():
    shares = kept_shares(told(LATENT, POLICY))
    products = [op.name for op in LATENT.operators if isinstance(op, Gemm)]
    assert set(products) <= set(shares) and not any(name.startswith("expert") for name in shares)


def test_a_kind_that_is_told_nothing_keeps_as_before():
    plain = replace(TOLD, by_operator=False, again=None)
    assert plain == PLAIN
