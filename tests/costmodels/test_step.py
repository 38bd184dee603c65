"""Whole steps that one can follow by hand."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.schedule import build
from meshwright.costmodels.step import chunk_times, fixed_bytes, price
from meshwright.costmodels.tables import build_tables
from tests.costmodels.cases import SMALL, even_counts, make_setting, make_strategies

GRADIENTS = "gradient_reduction"


def priced(setting, strategies, chunks=1, mode="none"):
    counts = np.concatenate([even_counts(SMALL, chunks, mode)] * len(strategies))
    return price(setting, strategies, counts)


def test_a_gradient_reduction_hides_behind_the_last_backward_pass_as_far_as_the_stack_overlaps():
    free, none = (
        priced(make_setting(cluster="dgx-h100:4", overlap_gradients=o), make_strategies(dp=32, pp=1))
        for o in (1.0, 0.0)
    )
    reduction = none.breakdown[GRADIENTS][0]
    assert none.hidden[GRADIENTS][0] == 0 < reduction
    assert free.breakdown[GRADIENTS][0] + free.hidden[GRADIENTS][0] == pytest.approx(reduction)
    assert free.hidden[GRADIENTS][0] > 0
    assert none.step_time_s[0] - free.step_time_s[0] == pytest.approx(free.hidden[GRADIENTS][0])


def test_sharded_gradients_are_awaited_while_the_only_micro_batch_has_its_activations():
    """What is still to come is at most what is kept, and all else of the peak is there from the start."""
    setting = make_setting(profile="fsdp2")
    once, more = (make_strategies(dp=8, zero_stage=3, num_microbatches=m) for m in (1, 2))
    got = priced(setting, once)
    gradients, kept = (got.memory[item][0, 0] for item in ("gradients", "activations"))
    assert got.idle_bytes[0, 0] == min(gradients, kept) > 0
    few = priced(make_setting(profile="fsdp2", sequence_length=8), once)
    assert few.idle_bytes[0, 0] == few.memory["activations"][0, 0] < few.memory["gradients"][0, 0]
    buffers = make_setting(profile="megatron-core")
    for other in (priced(setting, more), priced(setting, replace(once, zero_stage=once.zero_stage * 0))):
        assert other.idle_bytes[0, 0] == 0
    assert priced(buffers, once).idle_bytes[0, 0] == 0


@pytest.mark.parametrize("times", [0.1, 10])
def test_what_a_later_chunk_waits_for_its_parameters_is_told_as_their_gather(times):
    """The head's are gathered for the last of four chunks: in time, or so late that all ranks wait for it."""
    setting = make_setting(overlap_parameters=1.0, overlap_cost=0.0)
    strategies = make_strategies("interleaved", pp=2, vpp=2, num_microbatches=4)
    counts, tables = even_counts(SMALL, 4), build_tables(setting, strategies)
    without = price(setting, strategies, counts, replace(tables, gather_s=np.zeros((1, 3))))
    gather = times * float(tables.forward_s[0].sum())
    late = price(setting, strategies, counts, replace(tables, gather_s=np.array([[0.0, 0.0, gather]])))
    waited = late.step_time_s - without.step_time_s
    assert (waited[0] > 0) == (times > 1)
    told = {**without.breakdown, "parameter_gather": waited}
    assert {k: v[0] for k, v in late.breakdown.items()} == pytest.approx({k: v[0] for k, v in told.items()})
    assert late.hidden["parameter_gather"] + waited == pytest.approx(gather)


def test_the_bubble_is_what_the_busiest_rank_does_not_work():
    """Without transfers, 1F1B with stages of different length: the slow rank waits for the others' passes.

    The first rank ends last and waits most; told for it, imbalance would read as a bubble.
    """
    setting, strategies = make_setting(), make_strategies(pp=2, num_microbatches=4)
    tables = replace(build_tables(setting, strategies), transfer_s=np.zeros(1), pass_s=np.zeros(1))
    counts = even_counts(SMALL, 2)
    times = chunk_times(build("1f1b", 2, 1, 4), tables, np.array([0]), counts)
    forward, backward, _ = (of[0] for of in times)
    got = price(setting, strategies, counts, tables)
    slow = int((forward + backward).argmax())
    assert slow == 1  # four blocks each, but the head weighs more than the embedding
    assert got.critical_rank.tolist() == [0]  # rank 0 ends last: the last backward pass is its own
    assert got.breakdown["pipeline_transfer"][0] == 0
    end = forward[0] + 4 * (forward[1] + backward[1]) + backward[0]
    assert got.breakdown["bubble"][0] == pytest.approx(end - 4 * (forward[1] + backward[1]))
    assert got.step_time_s[0] == pytest.approx(sum(v[0] for v in got.breakdown.values()))


def test_transfers_are_told_apart_from_the_bubble():
    setting = make_setting(cluster="dgx-h100:2", overlap_cost=0.0)
    strategies = make_strategies(pp=2, pipeline_stride=8, num_microbatches=1)
    got, tables = priced(setting, strategies, 2), build_tables(setting, strategies)
    # One micro-batch crosses once forward and once back.
    assert got.breakdown["pipeline_transfer"][0] == pytest.approx(2 * tables.transfer_s[0])


def test_every_step_pays_the_fixed_time_once():
    slow, fast = (priced(make_setting(step_fixed_s=s), make_strategies()) for s in (1.5, 0.0))
    assert slow.step_time_s[0] - fast.step_time_s[0] == pytest.approx(1.5)
    assert slow.breakdown["fixed"][0] == 1.5


def test_ranks_beyond_a_plans_own_hold_nothing():
    setting, strategies = make_setting(), make_strategies(pp=[1, 2])
    counts = np.concatenate([even_counts(SMALL, pp, width=2) for pp in (1, 2)])
    got = price(setting, strategies, counts)
    assert got.peak_bytes.shape == got.flops.shape == (2, 2)
    assert got.peak_bytes[0, 1] == got.flops[0, 1] == 0 < got.peak_bytes[1, 1]


def test_a_device_alone_has_no_buckets_and_no_communicators():
    setting = make_setting(profile="deepspeed")
    got = fixed_bytes(setting, make_strategies(tp=[1, 1, 2], dp=[1, 2, 1]))
    bucket = 2 * setting.profile.bucket_bytes
    assert got["buckets"].tolist() == [0, bucket, 0]
    assert [v > 0 for v in got["communicators"]] == [False, True, True]
    for own, count in ({"pp": 2}, 1), ({"pp": 1}, 2):
        held = fixed_bytes(setting, make_strategies(dp=2, **own))["buckets"]
        assert held.tolist() == [count * setting.profile.bucket_bytes]
    alone = make_setting(profile="deepspeed", overlap_gradients=0.0)
    assert fixed_bytes(alone, make_strategies(dp=2))["buckets"].tolist() == [setting.profile.bucket_bytes]
    assert np.all(got["context"] == setting.cluster.accelerator.achieved.context_bytes)


def test_fragmentation_is_a_share_of_what_comes_and_goes():
    got = priced(make_setting(fragmentation=0.5), make_strategies(dp=8, zero_stage=3))
    moving = sum(got.memory[item] for item in ("activations", "gathered_parameters", "working_set"))
    assert got.memory["fragmentation"] == pytest.approx(0.5 * moving)


def test_empty_blocks_that_an_allocator_gives_back_are_no_part_of_what_a_device_needs():
    own = make_strategies(dp=8, zero_stage=3)
    none, some = (priced(make_setting(cached=share), own) for share in (0.0, 0.5))
    assert not none.cached_bytes.any()
    moving = sum(some.memory[item] for item in ("activations", "gathered_parameters", "working_set"))
    assert some.cached_bytes == pytest.approx(0.5 * moving)
    assert np.array_equal(some.peak_bytes, none.peak_bytes)
