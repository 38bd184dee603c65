"""Memory that waits for the device: how much, where, and what it leaves alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.tables import build_tables
from meshwright.costmodels.waiting import QUEUE, lost_bytes
from tests.costmodels.cases import SMALL, make_setting, make_strategies
from tests.costmodels.test_step import priced

RECORDS = make_setting(records_streams=True)
PLAIN = make_setting(records_streams=False)
SIZES = st.floats(0.0, 1e12)


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.integers(1, 8))
def test_whole_tensors_of_two_collectives_a_layer_wait_or_of_four(tp: int, split: bool, batch: int) -> None:
    own = make_strategies(tp=tp, sequence_parallel=int(split), micro_batch_size=batch)
    waiting = build_tables(RECORDS, own).waiting_bytes[0]
    tensor = 2.0 * batch * RECORDS.sequence_length * SMALL.hidden
    layers = waiting / ((4 if split else 2) * tensor)
    if tp == 1:
        assert waiting == 0
    else:
        assert QUEUE / 60 < layers < QUEUE / 10  # a block has some dozens of kernels


def test_a_host_that_issues_nothing_does_not_run_ahead():
    graphs = make_setting(records_streams=True, host_share=0.0)
    assert build_tables(graphs, make_strategies(tp=2)).waiting_bytes[0] == 0


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.integers(1, 8), st.sampled_from([0, 1, 3]))
def test_at_most_a_layers_transient_is_reserved_twice(tp: int, split: bool, batch: int, zero: int) -> None:
    own = make_strategies(
        tp=tp, dp=8 // tp, sequence_parallel=int(split), micro_batch_size=batch, zero_stage=zero
    )
    plain, records = build_tables(PLAIN, own), build_tables(RECORDS, own)
    assert np.all(records.working_bytes >= plain.working_bytes)
    assert np.all(records.working_bytes <= 2 * plain.working_bytes)
    lost = lost_bytes(records.working_bytes, records.waiting_bytes[:, None, None])
    assert records.working_bytes - lost == pytest.approx(plain.working_bytes)
    assert np.all(lost <= records.waiting_bytes[:, None, None])


@given(SIZES, SIZES)
def test_what_is_lost_is_told_from_the_sum(waiting: float, working: float) -> None:
    lost = min(waiting, working)
    assert lost_bytes(np.array(working + lost), np.array(waiting)) == pytest.approx(lost)


def test_room_is_lost_to_an_allocator_not_allocated():
    own = make_strategies(tp=2, micro_batch_size=4)
    plain, records = (priced(setting, own) for setting in (PLAIN, RECORDS))
    assert records.memory["fragmentation"].sum() > plain.memory["fragmentation"].sum()
    for item in ("activations", "gathered_parameters", "working_set"):
        assert records.memory[item] == pytest.approx(plain.memory[item])
    assert records.step_time_s == pytest.approx(plain.step_time_s)
