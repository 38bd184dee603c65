"""One call prices one plan or a hundred thousand, and says the same of each."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.published import gpt
from meshwright.costmodels.step import Price, price
from meshwright.costmodels.strategy import Strategies
from meshwright.costmodels.tables import Tables, build_tables
from tests.costmodels.cases import SMALL, even_counts, make_setting, make_strategies
from tests.strategies import cost_settings, degrees

some = settings(max_examples=25)


def flat(got: Price, row: int, pp: int) -> np.ndarray:
    """Return everything that a price says of one plan, ranks that it lacks left out."""
    wide = [item[row, :pp] for item in (*got.memory.values(), got.flops)]
    single = [got.step_time_s[row], *(v[row] for v in (*got.breakdown.values(), *got.hidden.values()))]
    return np.concatenate([single, *wide, [got.critical_rank[row]]])


def joined(batch: list[Strategies]) -> Strategies:
    columns = {f.name: np.concatenate([getattr(s, f.name) for s in batch]) for f in fields(Strategies)}
    schedule = tuple(columns.pop("schedule").tolist())
    return Strategies(**columns, schedule=schedule)


@st.composite
def batches(draw):
    """A setting and a few strategies of different degrees and schedules, with their counts."""
    setting = draw(cost_settings(spec=SMALL))
    devices, layers = setting.cluster.num_devices, SMALL.layers + 2
    batch = [make_strategies(**c) for c in draw(st.lists(degrees(devices, layers), min_size=1, max_size=5))]
    width = max(int(s.chunks[0]) for s in batch)
    modes = st.sampled_from(("none", "selective", "full"))
    counts = [even_counts(SMALL, int(s.chunks[0]), draw(modes), width) for s in batch]
    return setting, joined(batch), np.concatenate(counts)


@some
@given(batches())
def test_a_plan_costs_the_same_alone_or_in_a_batch(batch):
    setting, strategies, counts = batch
    together = price(setting, strategies, counts)
    for row in range(len(strategies)):
        pp = int(strategies.pp[row])
        alone = price(setting, strategies.take([row]), counts[row : row + 1])
        assert flat(together, row, pp) == pytest.approx(flat(alone, 0, pp), rel=1e-12, abs=1e-15)
        assert not any(item[row, pp:].any() for item in together.memory.values())


@some
@given(batches(), st.randoms())
def test_tables_of_some_strategies_are_rows_of_the_tables(batch, random):
    setting, strategies, counts = batch
    rows = np.array(random.choices(range(len(strategies)), k=3))
    taken, built = build_tables(setting, strategies).take(rows), build_tables(setting, strategies.take(rows))
    for name in (f.name for f in fields(Tables) if f.name != "states"):
        assert np.array_equal(getattr(taken, name), getattr(built, name)), name
    assert np.array_equal(taken.state_bytes, built.state_bytes)
    given_tables = price(setting, strategies.take(rows), counts[rows], taken)
    whole = price(setting, strategies, counts).step_time_s
    assert given_tables.step_time_s == pytest.approx(whole[rows], rel=1e-12)


@some
@given(cost_settings(spec=SMALL), st.lists(st.floats(1e12, 1e16), min_size=3, max_size=3))
def test_hardware_rates_broadcast_over_strategies(setting, peaks):
    """One strategy on three devices that differ in their peak: three prices in one call."""
    strategies = make_strategies(micro_batch_size=[1, 2, 3])
    counts = np.concatenate([even_counts(SMALL, 1)] * 3)
    rates = replace(setting.rates, peak_flops_per_s=np.array(peaks))
    together = price(replace(setting, rates=rates), strategies, counts)
    for row, peak in enumerate(peaks):
        one = replace(setting, rates=replace(setting.rates, peak_flops_per_s=peak))
        alone = price(one, strategies.take([row]), counts[:1])
        assert together.step_time_s[row] == pytest.approx(alone.step_time_s[0], rel=1e-12)


def test_a_hundred_thousand_meshes_in_one_call():
    """All degrees of 128 devices, ZeRO stages, schedules and placements; 200 agree with the scalar path."""
    size, spec, chance = 100_000, gpt(1024, 14, 16), np.random.default_rng(7)
    setting = make_setting(spec, "dgx-h100:16")
    tp, pp = chance.choice([1, 2, 4, 8], size), chance.choice([1, 2, 4, 8, 16], size)
    dp, vpp = 128 // (tp * pp), np.where((pp > 1) & (pp < 16), chance.integers(1, 3, size), 1)
    outer = chance.integers(0, 2, size)
    strategies = make_strategies(
        np.where(vpp > 1, "interleaved", chance.choice(["1f1b", "gpipe"], size)).tolist(),
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        zero_stage=chance.integers(0, 4, size),
        micro_batch_size=chance.choice([1, 2, 4, 8], size),
        num_microbatches=pp * chance.integers(1, 4, size),
        sequence_parallel=chance.integers(0, 2, size) * (tp > 1),
        data_stride=tp * np.where(outer, 1, pp),
        pipeline_stride=tp * np.where(outer, dp, 1),
    )
    widest = int(strategies.chunks.max())
    cut = {c: even_counts(spec, c, "selective", widest)[0] for c in set(strategies.chunks.tolist())}
    counts = np.stack([cut[c] for c in strategies.chunks.tolist()])
    got = price(setting, strategies, counts)
    assert got.step_time_s.shape == (size,)
    assert np.all(np.isfinite(got.step_time_s) & (got.step_time_s > 0))
    assert sum(got.breakdown.values()) == pytest.approx(got.step_time_s, rel=1e-9)
    for row in chance.choice(size, 200, replace=False).tolist():
        alone = price(setting, strategies.take([row]), counts[row : row + 1])
        pp_here = int(strategies.pp[row])
        assert flat(got, row, pp_here) == pytest.approx(flat(alone, 0, pp_here), rel=1e-12, abs=1e-15)
