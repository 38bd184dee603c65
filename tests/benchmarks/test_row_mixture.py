"""A row that names a public mixture and leaves its experts open is priced as one that prints them."""

from dataclasses import replace

import pytest

from benchmarks.accuracy_groups import kind_of
from benchmarks.measured_prices import express, price_rows
from benchmarks.row_mixture import with_experts
from benchmarks.rows import read_rows
from meshwright.planner.importers import load_model

NAMED = ("DeepSeekV3", "Qwen3_30B_a3B", "Qwen3_235B_a22B", "Kimi_K2", "Llama 4 Maverick 400B")
PUBLIC = (*NAMED, "GPT OSS 120B", "mixtral-8x22b", "qwen2-57b-a14b")
FIRST = {row.model_name: row for row in reversed(read_rows())}
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")


@pytest.mark.parametrize("name", PUBLIC)
def test_experts_that_are_not_printed_are_the_public_ones(name: str) -> None:
    row = replace(FIRST[name], moe=None)
    printed, silent = price_rows([FIRST[name], row])
    assert printed.step_time_s is not None
    assert silent.step_time_s == printed.step_time_s
    assert silent.memory == printed.memory
    assert kind_of(silent.row) == "moe"
    assert any("experts are not stated" in note for note in express(row).assumptions)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3", "llama-4-scout"])
def test_a_name_alone_is_a_whole_mixture(name: str) -> None:
    silent = {"params_b": None, "moe": None, "notes": ""} | dict.fromkeys(SIZES)
    row = replace(FIRST["DeepSeekV3"], model_name=name, **silent)
    assert express(row).problem.model.parameters == load_model(name).parameters


@pytest.mark.parametrize(
    "changes",
    [{"hidden": 2048}, {"ffn_hidden": 1000}, {"model_name": "our own"}, {"model_name": "llama-3.1-8b"}],
)
def test_another_model_has_no_public_experts(changes: dict[str, object]) -> None:
    row = replace(FIRST["mixtral-8x22b"], moe=None, **changes)  # type: ignore[arg-type]
    assert with_experts(row) == (row, ())
