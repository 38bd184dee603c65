"""The price of whole steps: sums, limits, conservation, and time that falls with every hardware rate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.costmodels.memory import ITEMS
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.step import CAUSES, price
from meshwright.costmodels.tables import build_tables
from tests.costmodels.cases import SMALL, even_counts, make_setting, make_strategies
from tests.strategies import cost_settings, decoders, plans

ROUNDING = 1 + 1e-9
some = settings(max_examples=20)
few = settings(max_examples=8)


def changed(strategies, **columns):
    """Return strategies with some columns replaced, as arrays of one entry."""
    return replace(strategies, **{k: np.array([v], dtype=np.int64) for k, v in columns.items()})


# Sums ----------------------------------------------------------------------------------------------------


@some
@given(plans())
def test_causes_are_never_negative_and_add_up_to_the_step(plan):
    got = price(*plan)
    step = got.step_time_s
    assert set(got.breakdown) == set(CAUSES)
    assert np.all(step > 0)
    assert sum(got.breakdown.values()) == pytest.approx(step, rel=1e-9)
    for cause, seconds in got.breakdown.items():
        assert np.all(seconds >= -1e-9 * step), cause
    for cause, seconds in got.hidden.items():
        assert np.all(seconds >= -1e-9 * step), cause


@some
@given(plans())
def test_memory_items_are_never_negative_and_add_up_to_the_peak(plan):
    got = price(*plan)
    assert set(got.memory) == set(ITEMS)
    assert sum(got.memory.values()) == pytest.approx(got.peak_bytes, rel=1e-12)
    assert all(np.all(item >= 0) for item in got.memory.values())


@some
@given(plans())
def test_states_over_pipeline_ranks_sum_to_the_whole_model(plan):
    setting, strategies, counts = plan
    got, tables = price(*plan), build_tables(setting, strategies)
    layers = counts.sum(axis=(1, 3))
    expected = float((layers * tables.state_bytes).sum())
    items = ("weights", "gradients", "master_weights", "optimizer_moments")
    assert sum(got.memory[item].sum() for item in items) == pytest.approx(expected)


@some
@given(plans(modes=("none",)), st.integers(1, 6))
def test_flops_do_not_depend_on_how_layers_are_staged(plan, pp):
    setting, strategies, counts = plan
    one = make_strategies(
        tp=strategies.tp,
        micro_batch_size=strategies.micro_batch_size,
        num_microbatches=strategies.num_microbatches,
    )
    together = counts.sum(axis=1, keepdims=True)
    staged = price(setting, strategies, counts).flops.sum()
    assert staged == pytest.approx(price(setting, one, together).flops.sum())


# Lower bounds --------------------------------------------------------------------------------------------


@some
@given(plans())
def test_no_step_is_faster_than_the_busiest_rank_at_the_peak(plan):
    setting, got = plan[0], price(*plan)
    flops = got.flops.max(axis=1) / setting.rates.peak_flops_per_s
    states = got.memory["master_weights"] + got.memory["optimizer_moments"]
    update = states.max(axis=1) / setting.rates.memory_bytes_per_s
    updates_what_it_holds = setting.profile.working_copy
    assert np.all(got.step_time_s * ROUNDING >= flops + updates_what_it_holds * update)


# Hardware ------------------------------------------------------------------------------------------------


def faster_rate(name):
    def apply(setting, factor):
        value = getattr(setting.rates, name)
        return replace(setting, rates=replace(setting.rates, **{name: value * factor}))

    return apply


def faster_tier(name, power):
    def apply(setting, factor):
        tiers = tuple(
            replace(
                tier,
                pair_bandwidth_bytes_per_s=_times(
                    tier.pair_bandwidth_bytes_per_s, factor if power > 0 else 1
                ),
                **{name: getattr(tier, name) * factor**power},
            )
            for tier in setting.cluster.tiers
        )
        return replace(setting, cluster=replace(setting.cluster, tiers=tiers))

    return apply


def _times(value, factor):
    return None if value is None else value * factor


HARDWARE = {
    "peak": faster_rate("peak_flops_per_s"),
    "memory bandwidth": faster_rate("memory_bytes_per_s"),
    "launches": lambda setting, factor: faster_rate("kernel_launch_s")(setting, 1 / factor),
    "link bandwidth": faster_tier("bandwidth_bytes_per_s", 1),
    "link latency": faster_tier("latency_s", -1),
    "oversubscription": faster_tier("oversubscription", -1),
}
"""Ways in which a machine can be better."""


@pytest.mark.parametrize("better", HARDWARE)
@some
@given(plan=plans(), factor=st.floats(1, 20))
def test_no_step_is_slower_on_better_hardware(better, plan, factor):
    setting, strategies, counts = plan
    now = price(setting, strategies, counts)
    then = price(HARDWARE[better](setting, factor), strategies, counts)
    assert then.step_time_s[0] <= now.step_time_s[0] * ROUNDING


def _compute(parts, seconds):
    """Return parts of passes that are all compute, the first of their causes."""
    return np.broadcast_to(seconds, parts.shape) * (np.arange(parts.shape[-1]) == 0)


of_kinds = st.lists(st.floats(0, 4), min_size=3, max_size=3)


@some
@given(
    pp=st.sampled_from((2, 4)),
    m=st.integers(1, 8),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seconds=st.tuples(of_kinds, of_kinds, of_kinds),
    quick=st.tuples(st.integers(0, 2), st.floats(0, 1)),
)
@example(pp=2, m=2, shares=(1, 0), seconds=([1, 0, 1], [1, 0, 0], [0, 0, 1]), quick=(2, 0))
def test_no_step_is_slower_when_one_kind_of_layer_is_faster(pp, m, shares, seconds, quick):
    """Parameters to gather are harder to hide beside a shorter pass: by no more than it is shorter.

    Nor where the step waits for another rank: one kind may be slow, another have much to gather.
    """
    setting = make_setting(overlap_parameters=shares[0], overlap_cost=shares[1])
    strategies, counts = make_strategies(pp=pp, num_microbatches=m), even_counts(SMALL, pp)
    tables, (kind, factor) = build_tables(setting, strategies), quick
    forward, backward, gather = (np.array(each, dtype=np.float64) for each in seconds)
    tables = replace(
        tables,
        gather_s=gather[None],
        forward_parts=_compute(tables.forward_parts, forward[:, None]),
        backward_parts=_compute(tables.backward_parts, backward[:, None, None]),
    )
    faster = replace(
        tables, forward_parts=tables.forward_parts * np.where(np.arange(3) == kind, factor, 1)[:, None]
    )
    now, then = (price(setting, strategies, counts, t).step_time_s[0] for t in (tables, faster))
    assert then <= now * ROUNDING


@few
@given(plans(), st.floats(1.1, 10))
def test_hardware_rates_change_no_memory_and_no_flops(plan, factor):
    setting, strategies, counts = plan
    now = price(setting, strategies, counts)
    for better in HARDWARE.values():
        then = price(better(setting, factor), strategies, counts)
        assert np.array_equal(then.peak_bytes, now.peak_bytes)
        assert np.array_equal(then.flops, now.flops)


# Limits --------------------------------------------------------------------------------------------------


@some
@given(plans())
def test_degrees_of_one_have_no_communication(plan):
    strategies, got = plan[1], price(*plan)
    told = {
        "tensor_parallel": strategies.tp,
        "pipeline_transfer": strategies.pp,
        "bubble": strategies.pp,
        "parameter_gather": strategies.dp,
        "gradient_reduction": strategies.dp * strategies.pp,  # a tied weight's copies are reduced too
    }
    for cause, degree in told.items():
        if degree[0] == 1:
            assert abs(got.breakdown[cause][0]) <= 1e-12 * got.step_time_s[0], cause
            assert abs(got.hidden.get(cause, np.zeros(1))[0]) <= 1e-12 * got.step_time_s[0], cause


@some
@given(cost_settings(), st.integers(1, 4), st.integers(0, 3), st.integers(1, 5))
def test_one_device_takes_the_time_of_its_layers(setting, micro, zero, m):
    one = make_strategies(micro_batch_size=micro, zero_stage=zero, num_microbatches=m)
    tables = build_tables(setting, one)
    counts = np.zeros((1, 1, len(setting.kinds), len(MODES)), dtype=np.int64)
    counts[:, :, :, 0] = 1
    got = price(setting, one, counts, tables)
    layers = m * (tables.forward_s.sum() + tables.backward_s[:, :, 0].sum())
    expected = layers + tables.optimizer_s.sum() + setting.profile.step_fixed_s
    assert got.step_time_s[0] == pytest.approx(expected)


@some
@given(plans())
def test_a_step_takes_as_long_however_finely_it_is_told(plan):
    setting, strategies, counts = plan
    fine, coarse = (price(setting, strategies, counts, detail=d).step_time_s for d in (True, False))
    assert fine.tolist() == pytest.approx(coarse.tolist(), rel=1e-9)


@some
@given(plans())
def test_without_a_pipeline_each_micro_batch_adds_the_same_time(plan):
    setting, strategies, counts = plan
    alone = changed(strategies, pp=1, vpp=1, pipeline_stride=1, data_stride=strategies.tp[0])
    alone, together = replace(alone, schedule=("1f1b",)), counts.sum(axis=1, keepdims=True)
    times = [price(setting, changed(alone, num_microbatches=m), together).step_time_s[0] for m in (2, 3, 4)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])
    assert times[0] < times[1]


# Trades --------------------------------------------------------------------------------------------------


@some
@given(decoders(), st.data())
def test_recompute_trades_time_for_memory(spec, data):
    setting, strategies, _ = data.draw(plans(spec=spec))
    chunks = int(strategies.chunks[0])
    got = [price(setting, strategies, even_counts(spec, chunks, m)) for m in ("none", "selective", "full")]
    for less, more in ((0, 1), (1, 2)):
        assert got[more].step_time_s[0] >= got[less].step_time_s[0] / ROUNDING
        assert np.all(got[more].memory["activations"] <= got[less].memory["activations"])
        assert np.all(got[more].flops >= got[less].flops)
    states = ("weights", "gradients", "master_weights", "optimizer_moments")
    assert all(np.array_equal(got[0].memory[item], got[2].memory[item]) for item in states)
    # gathered weights are told of the layer that needs most while it runs, which the mode may choose
    fetched = build_tables(setting, strategies).gathered_bytes[0]
    assert all(np.isin(one.memory["gathered_parameters"], [0.0, *fetched]).all() for one in got)


@some
@given(plans())
def test_zero_stages_only_shrink_the_states(plan):
    setting, strategies, counts = plan
    got = [price(setting, changed(strategies, zero_stage=z), counts) for z in range(4)]
    assert all(np.array_equal(g.memory["activations"], got[0].memory["activations"]) for g in got)
    gradients = np.stack([g.memory["gradients"] for g in got])
    gradients[1] /= 1 + setting.profile.flat_gradients  # stage 1 alone flattens a copy of them
    assert np.all(np.diff(gradients, axis=0) <= 0)
    assert np.all(np.diff([g.memory["optimizer_moments"] for g in got], axis=0) <= 0)
    assert all(np.array_equal(g.flops, got[0].flops) for g in got)


@some
@given(plans(), st.sampled_from(("micro_batch_size", "num_microbatches")))
def test_more_sequences_never_take_less_time_or_memory(plan, what):
    setting, strategies, counts = plan
    more = changed(strategies, **{what: 2 * getattr(strategies, what)[0]})
    now, then = price(setting, strategies, counts), price(setting, more, counts)
    assert then.step_time_s[0] * ROUNDING >= now.step_time_s[0]
    assert np.all(then.peak_bytes * ROUNDING >= now.peak_bytes)
    assert np.all(then.flops >= now.flops)


@some
@given(plans(), st.integers(0, 2))
def test_one_more_layer_never_takes_less_time_or_memory(plan, mode):
    setting, strategies, counts = plan
    more = counts.copy()
    more[0, -1, 1, mode] += 1
    now, then = price(setting, strategies, counts), price(setting, strategies, more)
    assert then.step_time_s[0] * ROUNDING >= now.step_time_s[0]
    assert np.all(then.peak_bytes * ROUNDING >= now.peak_bytes)
