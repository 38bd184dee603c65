"""States of layers: shards add up, copies and offloading move bytes but lose none, experts have their own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.offload import (
    activation_bytes_per_s,
    host_link_bytes_per_s,
    host_memory_bytes_per_s,
)
from meshwright.costmodels.precision import find_optimizer
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.spans import layer_groups, state_spans
from meshwright.costmodels.strategy import OFFLOADS, Setting
from meshwright.costmodels.tables import BACKWARD, build_tables
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.span import group_span
from meshwright.planner.importers import load_model
from meshwright.planner.tuned import tuned
from meshwright.planner.tuning import read_tuning
from tests.costmodels.cases import make_setting, make_strategies

DENSE = make_setting(cluster="dgx-h100:8")
KINDS = load_model("qwen3-30b-a3b").kinds
MOE: Setting = replace(
    DENSE, kinds=tuple(adapt(kind, DENSE.profile, find_loss("full")) for kind in KINDS), sequence_length=1024
)
EXPERTS = next(i for i, kind in enumerate(KINDS) if "moe" in kind.name or kind.role == "block")
powers = st.integers(0, 3).map(lambda n: 2**n)
stages = st.integers(0, 3)


@given(st.integers(1, 3), powers, st.sampled_from([1, 2, 4]))
def test_copies_of_shards_keep_more_and_shards_add_up(stage, shards, copies):
    both = [
        make_strategies(dp=shards * c, dp_replicate=c, zero_stage=stage, micro_batch_size=1)
        for c in (1, copies)
    ]
    alone, hybrid = (build_tables(DENSE, s) for s in both)
    # What a rank holds depends on the ranks that share it, not on the copies.
    assert hybrid.state_bytes.tolist() == alone.state_bytes.tolist()
    assert np.all(hybrid.reduce_s >= alone.reduce_s)


@given(stages, powers, st.sampled_from(range(1, len(OFFLOADS))))
def test_offloading_moves_states_to_the_host_and_loses_none(stage, dp, level):
    home, away = (
        build_tables(DENSE, make_strategies(dp=dp, zero_stage=stage, offload=o)) for o in (0, level)
    )
    assert not home.host_bytes.any()
    total = away.state_bytes + away.host_bytes
    assert total == pytest.approx(home.state_bytes)
    assert np.all(away.host_bytes > 0)
    assert np.all(away.optimizer_s >= home.optimizer_s)


@given(stages, powers, st.sampled_from(range(1, len(OFFLOADS))))
def test_shards_of_gradients_leave_the_device_with_the_states_in_every_pass(stage, dp, level):
    home, away = (
        build_tables(DENSE, make_strategies(dp=dp, zero_stage=stage, offload=o)) for o in (0, level)
    )
    if stage < 2:
        assert away.states.gradients == pytest.approx(home.states.gradients)
        return
    assert not away.states.gradients.any()
    down = home.states.gradients / host_link_bytes_per_s(DENSE.cluster)
    reducing = away.backward_parts[..., 0, BACKWARD.index("gradient_reduction")] + away.hidden_reduce_s
    assert np.all(reducing >= down * (1 - 1e-9))


@given(powers, powers, powers, st.integers(1, 3))
def test_an_expert_s_states_are_shared_by_the_ranks_that_hold_it(ep, dp, tp, stage):
    """All ranks together hold every sharded state once, however experts are folded."""
    if tp * dp % ep:
        return
    fold = {"tp": tp, "sequence_parallel": int(tp > 1), "dp": dp, "zero_stage": stage}
    states = [build_tables(MOE, make_strategies(ep=e, **fold)).states for e in (1, ep)]
    whole, split = (s.master_weights[0, EXPERTS] for s in states)
    assert split == pytest.approx(whole)


@given(powers, powers)
def test_more_expert_ranks_keep_fewer_weights_and_gather_less(ep, dp):
    if dp % ep:
        return
    plain, split = (build_tables(MOE, make_strategies(ep=e, dp=dp, zero_stage=1)) for e in (1, ep))
    assert split.states.weights[0, EXPERTS] <= plain.states.weights[0, EXPERTS]
    assert split.reduce_s[0, EXPERTS] <= plain.reduce_s[0, EXPERTS] * (1 + 1e-9)


def test_a_secondary_copy_spares_the_backward_gather_and_costs_its_share():
    fast, slow = (build_tables(DENSE, make_strategies(dp=16, zero_stage=3, hpz=hpz)) for hpz in (8, 1))
    extra = fast.states.weights - slow.states.weights
    assert extra == pytest.approx(2 * slow.parameters / 8)
    assert np.all(fast.backward_s <= slow.backward_s)
    assert np.array_equal(fast.forward_s, slow.forward_s)


def test_experts_have_no_secondary_copy():
    """Data neighbours hold different experts: only dense weights are kept near (at 2 bytes of 8)."""
    near, far = (build_tables(MOE, make_strategies(dp=16, ep=8, zero_stage=3, hpz=hpz)) for hpz in (8, 1))
    extra = (near.states.weights - far.states.weights)[0, EXPERTS]
    dense = sum(op.parameters() for op in MOE.kinds[EXPERTS].operators if not op.expert and op.parameters())
    assert extra == pytest.approx(2 * dense / 8)


def test_muon_deals_each_rank_the_matrices_of_its_own_shard():
    """Twice the data ranks halve a rank's share of dense and of expert matrices alike."""
    muon = replace(MOE, optimizer=find_optimizer("muon"))
    few, many = (
        build_tables(muon, make_strategies(dp=dp, ep=8, zero_stage=1)).optimizer_s[0, EXPERTS]
        for dp in (8, 16)
    )
    plain = build_tables(MOE, make_strategies(dp=8, ep=8, zero_stage=1)).optimizer_s[0, EXPERTS]
    assert plain < few
    assert many < few


def test_gathered_frozen_weights_that_stay_have_their_shard_beside_them():
    """FSDP keeps sharded and gathered storage apart; a stack with a working copy has the whole alone."""
    kinds = tuned(load_model("llama-3.2-1b"), read_tuning("lora:r=4")).kinds
    for profile, copies in (("fsdp2", 1 + 1 / 4), ("generic", 1)):
        base = make_setting(cluster="dgx-h100:1", profile=profile)
        adapted = replace(base, kinds=tuple(adapt(k, base.profile, find_loss("full")) for k in kinds))
        two, three = (
            build_tables(adapted, make_strategies(dp=4, zero_stage=z)).states.weights[0, 1] for z in (2, 3)
        )
        frozen = sum(2 * op.parameters() for op in kinds[1].operators if not op.trained)
        trained = sum(2 * op.parameters() for op in kinds[1].operators if op.trained)
        assert two == pytest.approx(frozen * copies + trained)
        assert three == pytest.approx(frozen / 4 + trained / 4 * (profile == "generic"))


# Where folded groups lie -----------------------------------------------------------------------------------

CLUSTER = load_cluster("dgx-h100:8")


@given(powers, powers, powers)
def test_folds_inside_the_pipeline_dimension_are_plain_groups(etp, ep, rest):
    dp = etp * ep * rest
    if dp > 64:
        return
    s = make_strategies(dp=dp, ep=ep, etp=etp)
    got = layer_groups(CLUSTER, s)["expert"]
    expected = group_span(CLUSTER, ep, etp)
    assert got.sizes.tolist() == [expected.sizes.tolist()]


@given(powers, powers, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_every_group_has_as_many_members_as_its_degree(tp, dp, pp, cp):
    if tp * dp * pp * cp > 64:
        return
    for order in ("pipeline outside", "pipeline inside data"):
        strides = (
            {}
            if order == "pipeline outside"
            else {
                "context_stride": tp,
                "pipeline_stride": tp * cp,
                "data_stride": tp * cp * pp,
                "inner": tp * cp,
            }
        )
        for ep in (
            e for e in (1, 2, 4, 8) if tp * cp * dp % e == 0 and (tp * cp % e == 0 or e % (tp * cp) == 0)
        ):
            s = make_strategies(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, **strides)
            groups, where = layer_groups(CLUSTER, s), state_spans(CLUSTER, s)
            assert groups["expert"].sizes.prod() == ep
            assert where.shards.sizes.prod() == cp * dp
            assert where.expert_shards.sizes.prod() == tp * cp * dp // ep
            assert where.pipeline.sizes.prod() == pp


def test_experts_around_a_pipeline_dimension_cross_nodes_sooner():
    """With pp laid inside dp, neighbours of an expert group are pp x inner devices apart."""
    outside = make_strategies(dp=8, pp=8, ep=8)
    inside = make_strategies(dp=8, pp=8, ep=8, data_stride=8, pipeline_stride=1, inner=1)
    assert layer_groups(CLUSTER, outside)["expert"].sizes.tolist() == [[8, 1]]
    assert layer_groups(CLUSTER, inside)["expert"].sizes.tolist() == [[1, 8]]


@given(st.floats(0.1, 1.0), stages)
def test_a_backend_that_scatters_slowly_slows_scatters_alone(rate, stage):
    slow = replace(DENSE, profile=replace(DENSE.profile, scatter_rate=rate, overlap_parameters=0.0))
    plain = replace(DENSE, profile=replace(DENSE.profile, scatter_rate=1.0, overlap_parameters=0.0))
    strategies = make_strategies(dp=8, zero_stage=stage)
    before, after = (build_tables(s, strategies) for s in (plain, slow))
    part = BACKWARD.index("gradient_reduction")
    ratio = 1 / rate if stage >= 2 else 1.0
    assert after.backward_parts[..., part] == pytest.approx(ratio * before.backward_parts[..., part])
    assert after.forward_s == pytest.approx(before.forward_s)
    assert after.gather_s == pytest.approx(before.gather_s)


@given(st.integers(0, 2), stages, st.integers(2, 8))
def test_gradients_that_are_reduced_whole_take_two_passes_over_the_ring(last, stage, dp):
    """A scatter is half an all-reduce; stages beyond the last that reduces them whole scatter as ever.

    Hops take no time here: no tree is faster.
    """
    tiers = tuple(replace(tier, latency_s=0.0) for tier in DENSE.cluster.tiers)
    quiet = replace(DENSE.profile, overlap_parameters=0.0, reduce_whole_stage=0)
    plain = replace(DENSE, cluster=replace(DENSE.cluster, tiers=tiers), profile=quiet)
    whole = replace(plain, profile=replace(quiet, reduce_whole_stage=last))
    strategies, part = make_strategies(dp=dp, zero_stage=stage), BACKWARD.index("gradient_reduction")
    scattered, got = (build_tables(s, strategies) for s in (plain, whole))
    ratio = 2.0 if 1 <= stage <= last else 1.0
    assert got.reduce_s == pytest.approx(ratio * scattered.reduce_s, rel=0.05)
    parts = (each.backward_parts[..., part] for each in (got, scattered))
    assert next(parts) == pytest.approx(ratio * next(parts), rel=0.05)


@given(st.sampled_from([8, 16, 32]), st.integers(1, 3), st.integers(1, 4))
def test_what_zero_moves_beyond_a_host_leaves_offloaded_activations_less_time(dp, stage, size):
    """Within a host it moves over links of its own; a stage that gathers less leaves more time."""
    every = make_strategies(dp=dp, zero_stage=[0, stage], micro_batch_size=size)
    tables = build_tables(DENSE, every)
    waits = tables.backward_parts[..., MODES.index("offload"), BACKWARD.index("activation_offload")]
    if dp <= DENSE.cluster.devices_per_host:
        assert waits[1] == pytest.approx(waits[0])
    assert np.all(waits[1] >= waits[0] * (1 - 1e-9))


@given(st.integers(1, 64))
def test_more_devices_on_a_host_never_offload_faster(devices):
    hosts = [replace(DENSE.cluster, devices_per_host=n) for n in (devices, 2 * devices)]
    few, many = map(activation_bytes_per_s, hosts)
    assert many <= few <= host_link_bytes_per_s(DENSE.cluster)


@given(st.integers(1, 64))
def test_a_superchip_has_memory_for_its_link_however_many_share_a_host(devices):
    """A link that outruns a socket's memory is a CPU of its own; slower ones share the socket."""
    grace = replace(load_cluster("gb200-nvl72"), devices_per_host=devices)
    assert activation_bytes_per_s(grace) == host_link_bytes_per_s(grace)
    assert host_memory_bytes_per_s(DENSE.cluster) < host_link_bytes_per_s(grace)


def test_sharding_inside_a_scale_up_domain_leaves_the_hosts_ports_alone():
    """The hosts of a rack are joined by the devices' own links, nodes of eight by the ports of hosts."""
    away, part = MODES.index("offload"), BACKWARD.index("activation_offload")
    waits = {}
    for name in ("gb200-nvl72", "dgx-h100:9"):
        setting = replace(DENSE, cluster=load_cluster(name))
        tables = build_tables(setting, make_strategies(dp=72, zero_stage=[0, 3], micro_batch_size=4))
        waits[name] = tables.backward_parts[..., away, part]
    rack, nodes = waits.values()
    assert rack[1] == pytest.approx(rack[0])
    assert np.any(nodes[1] > nodes[0])
