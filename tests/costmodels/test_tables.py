"""Tables per layer kind: what data parallelism, ZeRO and tied weights add to a layer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.spans import state_spans
from meshwright.costmodels.tables import BACKWARD, FORWARD, _layer_costs, build_tables
from tests.costmodels.cases import SMALL, make_setting, make_strategies

SETTING = make_setting(cluster="dgx-h100:2")
STAGES = make_strategies(dp=[4] * 4, zero_stage=[0, 1, 2, 3])
TABLES = build_tables(SETTING, STAGES)
GATHER_F, GATHER_B = FORWARD.index("parameter_gather"), BACKWARD.index("parameter_gather")
REDUCE_B = BACKWARD.index("gradient_reduction")
HOST = FORWARD.index("host")


def collective(name, element, row=0):
    data = state_spans(SETTING.cluster, STAGES).shards
    wide = type(data)(*(v[row] for v in (data.sizes, data.bandwidth_bytes_per_s, data.latency_s)))
    return [float(collective_time(name, element * p, wide)) for p in TABLES.parameters[row]]


def test_gradients_are_reduced_once_a_step_or_scattered_in_every_pass():
    assert TABLES.reduce_s[0].tolist() == collective("all_reduce", 4)
    assert TABLES.reduce_s[1].tolist() == collective("reduce_scatter", 4)
    assert not TABLES.reduce_s[2:].any()
    assert np.all(TABLES.backward_parts[2:, ..., REDUCE_B] > 0)
    assert not TABLES.backward_parts[2, ..., GATHER_B].any()
    assert np.all(TABLES.backward_parts[3, ..., GATHER_B] > 0)


def test_updated_parameters_are_gathered_once_a_step_or_in_every_pass():
    assert not TABLES.gather_s[[0, 3]].any()
    assert TABLES.gather_s[1].tolist() == TABLES.gather_s[2].tolist() == collective("all_gather", 2)
    assert not TABLES.forward_parts[:3, :, GATHER_F].any()
    assert np.all(TABLES.forward_parts[3, :, GATHER_F] > 0)


@given(st.integers(0, 5).map(lambda n: 2**n), st.floats(1e-6, 1.0))
def test_owners_that_send_one_by_one_take_their_time_once_a_model(shards: int, each: float) -> None:
    plain, single = (
        build_tables(
            make_setting(cluster="dgx-h100:4", owner_send_s=seconds),
            make_strategies(dp=[shards] * 4, zero_stage=[0, 1, 2, 3]),
        ).gather_s
        for seconds in (0.0, each)
    )
    added = single - plain
    assert not added[[0, 3]].any()
    assert not added[:, 1:].any()
    assert added[1:3, 0] == pytest.approx(each * shards * (shards > 1))


def test_zero_3_gathers_a_block_and_the_next_one_but_nothing_beside_the_loss():
    assert not TABLES.gathered_bytes[:3].any()
    units = TABLES.gathered_bytes[3] / TABLES.parameters[3]
    assert units.tolist() == [2, 4, 2]


def test_ranks_share_the_optimizer_from_stage_1():
    assert (TABLES.optimizer_s[0] / TABLES.optimizer_s[1]).tolist() == pytest.approx([4, 4, 4])
    assert np.array_equal(TABLES.optimizer_s[1], TABLES.optimizer_s[3])


def test_a_tied_head_is_a_copy_only_where_a_pipeline_separates_it():
    setting = make_setting(replace(SMALL, tied=True), cluster="dgx-h100:2")
    tables = build_tables(setting, make_strategies(pp=[1, 2]))
    embedding = SMALL.vocab * SMALL.hidden
    assert (tables.parameters[1] - tables.parameters[0]).tolist() == [0, 0, embedding]
    # Its gradient crosses between the first and the last stage once a step.
    assert not tables.reduce_s[0].any()
    assert tables.reduce_s[1, 0] == tables.reduce_s[1, 2] > 0 == tables.reduce_s[1, 1]


def test_small_kernels_wait_for_the_host():
    """A block that computes for less than the host needs takes the host's time, embedding and head do not.

    What is recomputed is issued once more: all of the layer, or the launches that a mode repeats.
    """
    slow = make_setting(host_sync=0.0, layer_host_s=1.0, forward_host_s=0.0, backward_host_s=0.0)
    tables = build_tables(slow, make_strategies())
    assert tables.forward_s[0, 1] == pytest.approx(1.0)
    none, selective, full = (tables.backward_s[0, 1, MODES.index(m)] for m in ("none", "selective", "full"))
    assert (none, full) == (pytest.approx(1.0), pytest.approx(2.0))
    assert none < selective < full
    assert tables.forward_parts[0, [0, 2], HOST].tolist() == [0, 0]


def test_every_launch_costs_the_host_and_graphs_spare_it():
    """Chains of eager operators launch more kernels; a captured pass launches none."""

    def idle(**switches):
        setting = make_setting(layer_host_s=0.0, forward_host_s=1.0, backward_host_s=1.0, **switches)
        return build_tables(setting, make_strategies()).forward_parts[0, 1, HOST]

    assert idle(norm="eager") - idle() == pytest.approx(2 * 5, rel=1e-3)  # two norms, six kernels for one
    assert idle(host_share=0.5) == pytest.approx(idle() / 2, rel=1e-3)
    assert idle(host_share=0.0) == 0


def test_what_does_not_overlap_with_the_host_is_waited_for():
    calm, synchronous = (
        build_tables(make_setting(layer_host_s=1e-6, host_sync=share), make_strategies())
        for share in (0.0, 0.5)
    )
    more = synchronous.forward_parts - calm.forward_parts
    assert more[0, 1, HOST] > 0
    assert not more[0, 1, :HOST].any()


def test_stragglers_slow_every_pass_with_the_devices():
    calm, nervous = (
        build_tables(make_setting(cluster="dgx-h100:2", jitter=j), make_strategies(dp=[1, 16])).forward_parts[
            :, 1, 0
        ]
        for j in (0.0, 0.01)
    )
    assert nervous[0] == calm[0]
    assert nervous[1] == pytest.approx(1.04 * calm[1])


@given(st.integers(0, 3), st.floats(0.0, 0.3))
def test_ranks_of_a_tensor_group_wait_for_the_slowest_of_their_hosts(doublings: int, spread: float) -> None:
    """A host that is slower than the device in any case shows in full."""
    alone, together = (
        build_tables(make_setting(layer_host_s=10.0, host_spread=share), make_strategies(tp=2**doublings))
        for share in (0.0, spread)
    )
    one, several = (t.forward_parts[0, 1].sum() for t in (alone, together))
    assert several == pytest.approx(one * (1 + spread * doublings), rel=1e-3)


@settings(max_examples=15)
@given(st.floats(0.01, 1.0))
def test_a_split_block_costs_the_host_more_in_every_pass(seconds: float) -> None:
    """Forward, backward and where all of it runs again; a block of one rank, embedding and head do not."""
    one, two = make_strategies(), make_strategies(tp=2)
    for strategies, times in ((one, 0.0), (two, 1.0)):
        plain, split = (
            build_tables(make_setting(layer_host_s=1.0, tensor_host_s=each, host_spread=0.0), strategies)
            for each in (0.0, seconds)
        )
        ahead = (split.forward_parts - plain.forward_parts).sum(axis=-1)
        back = (split.backward_parts - plain.backward_parts).sum(axis=-1)
        assert ahead[0] == pytest.approx([0.0, times * seconds, 0.0])
        again = [MODES.index(mode) for mode in ("none", "full")]
        assert back[0, 1, again] == pytest.approx([times * seconds, 2 * times * seconds])


@given(st.floats(0.01, 1.0))
def test_a_hook_costs_the_host_for_each_trained_weight(seconds: float) -> None:
    """A host that is slower than the device shows in full: the block's six weights, its norms among them."""
    plain, hooked = (
        build_tables(make_setting(layer_host_s=1.0, gradient_hook_s=each), make_strategies())
        for each in (0.0, seconds)
    )
    weights = _layer_costs(SETTING, STAGES).trained_weights[0]
    added = (hooked.backward_parts - plain.backward_parts)[0, 1, 0]
    assert added[BACKWARD.index("host")] == pytest.approx(seconds * weights[1])
    assert added.sum() == pytest.approx(seconds * weights[1])
    assert np.array_equal(hooked.forward_parts, plain.forward_parts)


def test_communication_hides_behind_the_host_too():
    """What the device would wait for the host anyway, it can spend on gathering the next layer."""
    slow = make_setting(cluster="dgx-h100:2", layer_host_s=1.0, overlap_cost=0.0)
    tables = build_tables(slow, make_strategies(dp=4, zero_stage=3))
    assert tables.forward_parts[0, 1, GATHER_F] == 0
    assert tables.hidden_gather_s[0, 1] > 0


def test_a_boundary_carries_the_residual_stream_of_a_micro_batch():
    tables = build_tables(SETTING, make_strategies(pp=[1, 2, 2], micro_batch_size=[1, 1, 4]))
    where = state_spans(SETTING.cluster, make_strategies(pp=2)).pipeline
    size = 512 * 256 * 2
    expected = [0.0, *(float(collective_time("send_recv", n * size, where)[0]) for n in (1, 4))]
    assert tables.transfer_s.tolist() == pytest.approx(expected)


def test_pipelines_across_nodes_are_slower_than_within():
    inside, outside = make_strategies(pp=2, pipeline_stride=[1]), make_strategies(pp=2, pipeline_stride=[8])
    times = [float(build_tables(SETTING, s).transfer_s[0]) for s in (inside, outside)]
    assert times[0] < times[1]


def test_a_root_unit_stays_gathered_beside_every_layer():
    apart, root = (
        build_tables(make_setting(root_unit=on), make_strategies(dp=8, zero_stage=3)).gathered_bytes[0]
        for on in (False, True)
    )
    ends = apart[0] + apart[2]
    assert root.tolist() == [ends, apart[1] + ends, ends]


@pytest.mark.parametrize(("stage", "pp"), [(3, 1), (2, 1), (1, 1), (3, 2)])
def test_a_root_unit_holds_the_heads_gradient_beside_blocks_until_it_is_whole(stage: int, pp: int):
    """Where both ends are on a rank and gradients are scattered, beside the weights that stay gathered."""

    def held(root: bool):
        columns = make_strategies(dp=4, pp=pp, zero_stage=stage)
        return build_tables(make_setting(profile="fsdp2", root_unit=root), columns)

    apart, root = held(False), held(True)
    added = root.working_bytes[0] - apart.working_bytes[0]
    gathered = root.gathered_bytes[0] - apart.gathered_bytes[0]
    waits = stage > 1 and pp == 1
    beside = np.array([0, 2 * root.parameters[0, 2], 0]) * waits
    assert (added - gathered[:, None])[:, 0] == pytest.approx(beside)


def test_gradients_reduced_last_are_whole_under_a_pipeline_and_sent_once():
    def built(late: bool, pp: int):
        setting = make_setting(profile="fsdp2", cluster="dgx-h100:2", reduce_last=late)
        return build_tables(setting, make_strategies(pp=pp, dp=4, zero_stage=3, num_microbatches=4))

    each, last = built(False, 2), built(True, 2)
    assert last.states.gradients == pytest.approx(4 * each.states.gradients)
    assert last.states.weights == pytest.approx(2 * last.parameters)
    assert not last.gathered_bytes.any()
    assert np.all(last.reduce_s > each.reduce_s)
    assert np.array_equal(built(True, 1).states.total, built(False, 1).states.total)


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_that_several_micro_batches_add_are_whole_and_weights_come_and_go(stage: int):
    def built(whole: bool, count: int):
        setting = make_setting(profile="fsdp2", cluster="dgx-h100:2", accumulates_whole=whole)
        return build_tables(setting, make_strategies(dp=4, zero_stage=stage, num_microbatches=count))

    each, last = built(False, 4), built(True, 4)
    assert last.states.gradients == pytest.approx(4 * each.states.gradients)
    assert np.array_equal(last.states.weights, each.states.weights)
    assert np.array_equal(last.gathered_bytes, each.gathered_bytes)
    assert np.all(last.reduce_s > each.reduce_s)
    assert not last.backward_parts[..., REDUCE_B].any()
    assert np.array_equal(built(True, 1).states.total, built(False, 1).states.total)


def test_replicas_whose_gradients_lie_in_buckets_as_well_have_them_twice():
    def gradients(twice: bool, **columns: int):
        tables = build_tables(make_setting(gradient_buckets=twice), make_strategies(**columns))
        return tables.states.gradients

    assert np.array_equal(gradients(True, dp=8), 2 * gradients(False, dp=8))
    for columns in ({"dp": 8, "zero_stage": 2}, {"dp": 1}):
        assert np.array_equal(gradients(True, **columns), gradients(False, **columns))


@pytest.mark.parametrize("dp", [1, 8])
def test_gradients_that_are_flattened_before_owners_get_theirs_exist_twice_under_zero_1_alone(dp: int):
    def gradients(flat: bool, stage: int):
        columns = make_strategies(dp=dp, zero_stage=stage)
        return build_tables(make_setting(flat_gradients=flat), columns).states.gradients

    assert np.array_equal(gradients(True, 1), 2 * gradients(False, 1))
    for stage in (0, 2, 3):
        assert np.array_equal(gradients(True, stage), gradients(False, stage))


def test_what_is_scattered_arrives_beside_what_earlier_micro_batches_left():
    """One shard of a block's gradients more where they are added; else it is the gradient itself."""

    def held(passes: int):
        columns = make_strategies(dp=8, zero_stage=3, num_microbatches=passes)
        return build_tables(make_setting(profile="fsdp2", sequence_length=64), columns)

    once, twice, often = (held(m) for m in (1, 2, 8))
    added = twice.working_bytes[0, 1] - once.working_bytes[0, 1]
    assert added == pytest.approx(4 * once.parameters[0, 1] / 8)
    assert np.array_equal(often.working_bytes, twice.working_bytes)


def test_placeholders_are_one_block_of_gradients_beside_whatever_runs():
    plain, held = (build_tables(make_setting(placeholders=on), make_strategies(dp=8)) for on in (False, True))
    added = held.working_bytes - plain.working_bytes
    assert added[0, :2] == pytest.approx(2 * plain.parameters[0, 1])
