"""Transfers of a pipeline: what is sent, what waits for it, and what that costs a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.profile import TRANSFERS_BESIDE
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.spans import layer_groups, state_spans
from meshwright.costmodels.step import price
from meshwright.costmodels.tables import build_tables
from meshwright.hardware.errors import UnknownNameError
from tests.costmodels.cases import ROUNDING, SMALL, even_counts, make_setting, make_strategies

WHOLE = 512 * 256 * 2
MIXED = make_strategies(["1f1b", "interleaved", "zb1p"], pp=2, vpp=[1, 2, 1], num_microbatches=4)


@pytest.mark.parametrize(
    ("beside", "waits"), [("all", [0, 0, 0]), ("interleaved", [1, 0, 0]), ("none", [1, 1, 1])]
)
def test_a_transfer_is_part_of_a_pass_or_travels_beside_the_next(beside, waits):
    tables = build_tables(make_setting(overlap_transfers=beside, overlap_cost=0.25), MIXED)
    seconds = float(
        collective_time("send_recv", WHOLE, state_spans(make_setting().cluster, MIXED).pipeline)[0]
    )
    assert tables.transfer_s.tolist() == pytest.approx([seconds * (1 - w) for w in waits])
    assert tables.pass_s.tolist() == pytest.approx([seconds * (1.0 if w else 0.25) for w in waits])


@given(st.integers(2, 4), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.integers(0, 1))
def test_to_wait_for_transfers_never_ends_a_step_earlier(pp, m, tp, split):
    """Unless what runs beside them is slowed, which waiting spares it."""
    spread = make_strategies(pp=pp, tp=tp, sequence_parallel=split, num_microbatches=m, pipeline_stride=8)
    settings = [
        make_setting(cluster="dgx-h100:4", overlap_transfers=beside, overlap_cost=0.0)
        for beside in TRANSFERS_BESIDE
    ]
    beside, plain, apart = (price(s, spread, even_counts(SMALL, pp)).step_time_s[0] for s in settings)
    assert apart == plain  # one chunk a rank
    assert beside <= apart * ROUNDING


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 1), st.integers(1, 4))
def test_parts_of_what_a_group_holds_alike_are_sent_once_and_gathered(tp, split, sequences):
    spread = make_strategies(
        pp=2, tp=tp, sequence_parallel=split, micro_batch_size=sequences, pipeline_stride=8
    )
    cluster = "dgx-h100:2"
    whole, parts = (build_tables(make_setting(cluster=cluster, transfers_split=on), spread) for on in (0, 1))
    setting = make_setting(cluster=cluster)
    where = state_spans(setting.cluster, spread).pipeline
    sent = collective_time("send_recv", sequences * WHOLE / tp, where)
    gathered = collective_time(
        "all_gather", sequences * WHOLE * (1 - split), layer_groups(setting.cluster, spread)["tensor"]
    )
    assert parts.transfer_s.tolist() == pytest.approx((sent + gathered).tolist())
    if split or tp == 1:
        assert np.array_equal(whole.transfer_s, parts.transfer_s)


@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.sampled_from(TRANSFERS_BESIDE))
def test_a_device_that_holds_all_layers_hands_nothing_on(tp, parts, beside):
    """Neither to another stage nor, to gather it, to its tensor group."""
    setting = make_setting(transfers_split=parts, overlap_transfers=beside, overlap_cost=0.5)
    tables = build_tables(setting, make_strategies(tp=tp, dp=8 // tp, num_microbatches=4))
    assert tables.transfer_s.tolist() == tables.pass_s.tolist() == [0.0]


def test_an_unknown_word_for_overlapping_transfers_is_refused():
    with pytest.raises(UnknownNameError, match="overlap_transfers"):
        find_profile("generic[overlap_transfers=sometimes]")
