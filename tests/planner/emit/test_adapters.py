"""The script is told to train what the plan was priced for: rank, targets, frozen parts, stored weights."""

from dataclasses import replace

import pytest

from meshwright.costmodels.precision import PRECISIONS
from meshwright.planner.emit.adapters import TORCH, tuning_notes
from meshwright.planner.emit.write import render
from meshwright.planner.tuning import BASES, Tuning
from tests.planner.emit.cases import FULL_ZERO3, case

_, PLAN = case("fsdp", "dgx-h100:1", **FULL_ZERO3)


def notes(tuning: Tuning | str, precision: str = "bf16") -> list[str]:
    return tuning_notes(replace(PLAN, tuning=str(tuning), precision=precision))


def test_full_training_needs_no_word() -> None:
    assert notes("full") == []


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_four_bit_weights_are_stored_in_the_compute_dtype(precision: str, dtype: str) -> None:
    found = notes("qlora:r=64", precision)
    for word in (
        'quant_type="nf4"',
        f"quant_storage=torch.{dtype}",
        "LoraConfig(r=64)",
        "every linear layer",
    ):
        assert sum(word in note for note in found) == 1, word
    assert f"compute_dtype=torch.{dtype}" in "\n".join(found)


@pytest.mark.parametrize("base", BASES)
def test_every_base_but_the_models_own_is_told(base: str) -> None:
    told = set(notes(Tuning("lora", base=base))) - set(notes(Tuning("lora")))
    assert bool(told) is (base != "model")
    assert any("use_double_quant=False" in note for note in told) is (base == "nf4-single")
    assert any("quant_storage" in note for note in told) is base.startswith("nf4")


def test_targets_dropout_and_frozen_parts_are_told() -> None:
    tuning = Tuning("lora", rank=7, targets=("q", "mlp"), dropout=0.1, train_embeddings=True, frozen_layers=3)
    said = "\n".join(notes(tuning))
    for word in (
        "r=7, lora_dropout=0.1",
        "`q`, the products of the MLP",
        "none in the first 3 blocks",
        "head",
    ):
        assert word in said
    frozen = notes(Tuning("freeze", frozen_layers=3, frozen_streams=("patches",)))
    assert len(frozen) == 1
    assert "Freeze the first 3 blocks and the stream `patches`" in frozen[0]


def test_every_recipe_has_a_dtype_of_torch() -> None:
    assert {recipe.compute for recipe in PRECISIONS.values()} <= set(TORCH)


@pytest.mark.parametrize("target", ["any", "fsdp", "deepspeed"])
def test_the_readme_carries_the_notes(target: str) -> None:
    problem, plan = case(target, "dgx-h100:1", {"tuning": "qlora"}, **FULL_ZERO3)
    readme = " ".join(render(problem, plan)["README.md"].split())
    assert all(" ".join(note.split()) in readme for note in tuning_notes(plan))
