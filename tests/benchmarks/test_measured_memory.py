"""What a run's memory counter sees of a predicted peak."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy_memory import memory_error
from benchmarks.measured_prices import OUTSIDE_ALLOCATOR, Priced, price_rows
from meshwright.hardware.units import gib_to_bytes
from tests.benchmarks.cases import PLAIN, ROWS

GRAPHS = "torchtitan GraphTrainer"


def test_what_is_allocated_holds_no_gradients_that_are_still_to_come() -> None:
    one = replace(ROWS["litgpt-086"], memory_metric="max_memory_allocated")
    once, often = price_rows([one, replace(one, id="often", global_batch=4 * (one.global_batch or 0))])
    assert 0 < once.idle_bytes == once.memory["gradients"]
    assert often.idle_bytes == 0
    assert once.comparable_bytes == pytest.approx(_allocated(once) - once.idle_bytes)
    assert replace(once, row=replace(one, memory_metric="peak reserved")).comparable_bytes == pytest.approx(
        _allocated(once) + once.memory["fragmentation"] + once.cached_bytes
    )
    traced = price_rows([replace(one, id="traced", memory_metric="peak reserved", framework=GRAPHS)])[0]
    assert traced.comparable_bytes == pytest.approx(
        _allocated(traced) + traced.memory["fragmentation"] + traced.cached_bytes - traced.idle_bytes
    )


@given(st.integers(0, 10**12))
def test_an_allocator_keeps_empty_blocks_only_while_the_device_has_room(cached: int) -> None:
    (priced,) = price_rows([replace(ROWS["litgpt-086"], memory_metric="peak reserved")])
    assert priced.expressed is not None and priced.peak_bytes is not None
    least = replace(priced, cached_bytes=0.0).comparable_bytes
    seen = replace(priced, cached_bytes=float(cached)).comparable_bytes
    room = priced.expressed.problem.cluster.accelerator.memory_bytes - priced.peak_bytes
    assert seen is not None and least is not None and room > 0
    assert seen - least == pytest.approx(min(cached, room), abs=1)


def test_runs_that_print_what_is_reserved_beside_what_is_allocated_bear_empty_blocks_out() -> None:
    both = [row for row in ROWS.values() if row.peak_memory_gib and row.stated("real_reserved_gib")]
    errors = [
        abs((got.comparable_bytes or 0.0) / gib_to_bytes(got.row.stated("real_reserved_gib")) - 1)
        for got in price_rows([replace(row, memory_metric="peak reserved") for row in both])
    ]
    assert len(errors) >= 14 and sum(errors) / len(errors) < 0.02 and max(errors) < 0.05


def test_outputs_that_keep_keys_and_values_are_what_atorchs_peaks_hold_beside_its_shards() -> None:
    """Of full training and adapters alike, over 8 to 64 devices."""
    told = [row for row in ROWS.values() if "ATorch FSDP" in row.framework and row.peak_memory_gib]
    errors = [memory_error(got) for got in price_rows(told)]
    assert len(errors) >= 8
    assert all(error is not None and abs(error) < 0.05 for error in errors)


def _allocated(priced: Priced) -> float:
    return sum(v for item, v in priced.memory.items() if item not in (*OUTSIDE_ALLOCATOR, "fragmentation"))


def test_a_metric_sees_what_it_can() -> None:
    (priced,) = price_rows([PLAIN])

    def compared(metric: str) -> float:
        got = replace(priced, row=replace(PLAIN, memory_metric=metric), cached_bytes=0.0)
        assert got.comparable_bytes is not None
        return got.comparable_bytes

    assert priced.peak_bytes == compared("nvidia-smi")
    assert compared("nvidia-smi") > compared("peak reserved GiB") > compared("max_memory_allocated")


def test_a_person_reads_one_node_and_a_framework_every_rank() -> None:
    last = replace(ROWS["bs13-009"], id="last")  # stages 0 and 1 lie on its first node, the head does not
    near, whole, asked = price_rows(
        [
            last,
            replace(last, id="whole", gpus_per_node=last.num_gpus),
            replace(last, id="asked", memory_metric="peak reserved"),
        ]
    )
    assert near.counted is not None and near.memory is not None and asked.counted == asked.memory
    assert sum(near.counted.values()) < sum(near.memory.values()) == near.peak_bytes
    assert whole.counted == whole.memory
