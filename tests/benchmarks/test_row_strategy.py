"""Degrees that a row does not print are those that its model and activations need."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_prices import express
from benchmarks.rows import Row, read_rows

UNSPLIT = next(r for r in read_rows() if r.id == "gaudi-001")
LARGER = next(r for r in read_rows() if r.id == "gaudi-005")


def split(row: Row, **changes: Any) -> int:
    plan = express(replace(row, **changes)).plan
    return plan.tp * plan.pp


def test_replicas_that_share_the_optimizer_need_a_smaller_split() -> None:
    assert UNSPLIT.tp is None and UNSPLIT.pp is None
    assert split(UNSPLIT, sharding="ddp") > split(UNSPLIT, sharding="zero1")


@given(st.integers(0, 3))
def test_longer_sequences_never_need_a_smaller_split(doublings: int) -> None:
    length = 4096 * 2**doublings
    assert split(UNSPLIT, seq_len=length) <= split(UNSPLIT, seq_len=2 * length)


@pytest.mark.parametrize("batch", [1, 2, 4, 16, 64])
def test_every_replica_has_a_sequence(batch: int) -> None:
    assert express(replace(LARGER, global_batch=batch)).plan.dp <= batch
