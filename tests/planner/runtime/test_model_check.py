"""A model that is not the planned one is refused before anything is allocated."""

from dataclasses import replace
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.runtime.architecture import COLUMNS, NORM, ROWS, Architecture
from meshwright.planner.runtime.model_check import Facts, check_model
from tests.planner.emit.cases import case

LLAMA = Architecture(tensor={"mlp.up_proj": COLUMNS, "mlp.down_proj": ROWS, "input_layernorm": NORM})
FACTS = Facts(
    blocks=32,
    hidden_size=4096,
    logits=128256,
    parameters=8_030_261_248,
    tied=False,
    dtypes=frozenset({"float32"}),
    frozen=0,
    splits={"mlp.up_proj": 14336, "mlp.down_proj": 14336},
    heads={"num_attention_heads": 32, "num_key_value_heads": 8},
)


def told(facts: Facts, architecture: Architecture = LLAMA, **strategy: Any) -> str:
    """Return what is refused, nothing if all is well."""
    try:
        check_model(case("native", **strategy)[1], facts, architecture)
    except MeshwrightError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("strategy", [{}, {"tp": 4, "pp": 2, "zero_stage": 2}, {"tp": 8, "zero_stage": 3}])
def test_the_planned_model_is_taken(strategy: dict) -> None:
    assert told(FACTS, **strategy) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 31}, "it has 31 decoder layers, the plan is for 32"),
        ({"hidden_size": 2048}, "it has 2048 hidden_size, the plan is for 4096"),
        ({"parameters": 7_000_000_000}, "it has 7000000000 parameters, the plan is for 8030261248"),
        ({"dtypes": frozenset({"bfloat16"})}, "parameters are bfloat16, precision bf16 keeps float32"),
        ({"dtypes": frozenset({"bfloat16", "float32"})}, "parameters are bfloat16, float32"),
        ({"frozen": 7}, "7 parameters are frozen"),
    ],
)
def test_another_model_is_refused_by_what_differs(change: dict, message: str) -> None:
    assert message in told(replace(FACTS, **change))


def test_a_recipe_without_fp32_copies_wants_a_model_in_bf16() -> None:
    half = replace(FACTS, dtypes=frozenset({"bfloat16"}))
    assert told(half, job={"precision": "pure-bf16"}) == ""
    assert "keeps bfloat16" in told(FACTS, job={"precision": "pure-bf16"})


def test_a_pipeline_would_part_a_tied_weight() -> None:
    tied = replace(FACTS, tied=True)
    assert told(tied, tp=2) == ""
    assert "plan with pp=1" in told(tied, pp=2, zero_stage=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": {"mlp.up_proj": 14332}}, "mlp.up_proj=14332 is not divisible by tp=8"),
        ({"heads": {"num_key_value_heads": 4}}, "num_key_value_heads=4 is not divisible by tp=8"),
    ],
)
def test_what_tensor_ranks_cannot_share_is_named(change: dict, message: str) -> None:
    facts = replace(FACTS, **change)
    assert message in told(facts, tp=8)
    assert told(facts, tp=1) == ""


def test_without_a_tensor_plan_there_is_no_tensor_parallelism() -> None:
    bare = Architecture(tensor={"input_layernorm": NORM})
    assert "give tensor=" in told(FACTS, bare, tp=2)
    assert told(FACTS, bare) == ""
    assert "knows no 'packed_colwise'" in told(FACTS, Architecture(tensor={"mlp": "packed_colwise"}), tp=2)


def test_a_plan_of_before_the_facts_were_recorded_is_compared_by_its_layers() -> None:
    plan = replace(case("native")[1], parameters=None, hidden_size=None)
    check_model(plan, replace(FACTS, hidden_size=1), LLAMA)
    with pytest.raises(MeshwrightError, match="decoder layers"):
        check_model(plan, replace(FACTS, blocks=1), LLAMA)
