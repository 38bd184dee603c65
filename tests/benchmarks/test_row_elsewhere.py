"""What a row says in another field than its own is read there."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.measured_prices import OUTSIDE_ALLOCATOR, express, price_rows
from benchmarks.row_elsewhere import filled
from benchmarks.rows import read_rows
from meshwright.hardware.units import GB
from tests.benchmarks.cases import PLAIN

BARE = replace(
    PLAIN, year=None, source="a table", ref="a page", framework="Megatron-LM", flash_attention=None
)


@pytest.mark.parametrize(
    ("changes", "year"),
    [
        ({"framework": "NeMo 24.07"}, 2024),
        ({"framework": "NeMo (release v24.11.1)"}, 2024),
        ({"ref": "arXiv:2104.04473 table 1"}, 2021),
        ({"source": "blog, 2023-05"}, 2023),
        ({"framework": "NeMo 25.04", "ref": "arXiv 2104.04473"}, 2025),
        ({"flash_attention": False}, 2022),
        ({"flash_attention": False, "source": "table of 2024"}, 2022),
        ({"flash_attention": True}, None),
    ],
)
def test_a_year_is_that_of_the_stack_before_that_of_the_table(
    changes: dict[str, Any], year: int | None
) -> None:
    assert filled(replace(BARE, **changes))[0].year == year


@pytest.mark.parametrize(
    ("changes", "tuning"),
    [
        ({"lora": 8}, "lora"),
        ({"model_name": "Llama-2-70b LoRA"}, "lora"),
        ({"framework": "axolotl QLoRA"}, "qlora"),
        ({"precision": "bf16 + nf4 base"}, "qlora"),
        ({"precision": "int4 (GPTQ) base"}, "lora"),
        ({}, None),
    ],
)
def test_adapters_are_told_by_their_rank_their_name_and_their_base(
    changes: dict[str, Any], tuning: str | None
) -> None:
    row, notes = filled(replace(PLAIN, tuning=None, **changes))
    assert row.tuning == tuning
    assert bool(notes) == (tuning is not None)


def test_what_is_stated_stays() -> None:
    row = replace(PLAIN, tuning="full", lora=8, year=2025, framework="NeMo 24.07")
    assert filled(row) == (row, ())


def test_what_was_read_elsewhere_is_told() -> None:
    assert any(n.startswith("year not stated") for n in express(replace(PLAIN, year=None)).assumptions)


@pytest.mark.parametrize(
    ("framework", "year", "read"),
    [
        ("Megatron-LM fork (somebody/something)", 2024, (2023, False)),
        ("Megatron-LM fork (somebody/something)", 2026, (2025, None)),
        ("Megatron-LM", 2023, (2023, False)),
        ("Megatron-LM", 2024, (2024, None)),
        ("Megatron-Core r0.8.0", 2023, (2023, None)),
        ("Megatron-LLaMA", 2023, (2023, None)),
    ],
)
def test_a_fork_is_of_the_year_before_and_plain_layers_had_no_flash_attention_unless_told(
    framework: str, year: int, read: tuple[int, bool | None]
) -> None:
    row = replace(BARE, framework=framework, year=year)
    found, notes = filled(row)
    assert (found.year, found.flash_attention) == read
    assert bool(notes) == (found != row)
    assert filled(replace(row, flash_attention=True))[0].flash_attention is True


@pytest.mark.parametrize(("year", "recompute"), [(2021, None), (2023, "none"), (2024, None)])
def test_recomputation_was_off_unless_asked_for_after_the_years_whose_scripts_asked_for_it(
    year: int, recompute: str | None
) -> None:
    row = replace(BARE, framework="Megatron-LM", year=year, flash_attention=None, recompute=None)
    assert filled(row)[0].recompute == recompute
    assert filled(replace(row, recompute="full"))[0].recompute == "full"


def test_peaks_of_runs_with_scores_in_memory_tell_their_kernel() -> None:
    rows = [r for r in read_rows() if r.family == "zero-bubble"]
    assert rows
    for priced in price_rows(rows):
        assert priced.row.peak_memory_gib is not None
        assert priced.memory is not None
        allocated = sum(v for item, v in priced.memory.items() if item not in OUTSIDE_ALLOCATOR)
        printed = priced.row.peak_memory_gib * GB  # the column is in GB
        assert allocated == pytest.approx(printed, rel=0.12)
