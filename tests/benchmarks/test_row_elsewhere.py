"""What a row says in another field than its own is read there."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.measured_prices import express
from benchmarks.row_elsewhere import filled
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
