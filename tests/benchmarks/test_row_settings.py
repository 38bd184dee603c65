"""What a row says of its training becomes the planner's words; what it leaves open is told."""

from dataclasses import replace

import pytest

from benchmarks.measured_prices import express, price_rows
from benchmarks.row_settings import DEFAULT_DROPOUT, precision_of, sharding_of, tuning_of
from benchmarks.rows import read_rows
from tests.benchmarks.cases import PLAIN

ADAPTED = next(r for r in read_rows() if r.tuning == "lora")


@pytest.mark.parametrize(
    ("framework", "dropout"),
    [
        ("HF Trainer + PEFT", DEFAULT_DROPOUT),
        ("litgpt", DEFAULT_DROPOUT),
        ("torchtune", 0.0),
        ("Unsloth", 0.0),
    ],
)
def test_adapters_drop_inputs_as_their_framework_does(framework: str, dropout: float) -> None:
    tuning, assumed = tuning_of(replace(ADAPTED, framework=framework))
    assert tuning.dropout == dropout
    assert any("dropout" in note for note in assumed)


@pytest.mark.parametrize(
    ("accelerator", "recipe"),
    [("h100-sxm-80gb", "fp8-block"), ("gb200", "mxfp8-weights"), ("b300-sxm", "mxfp8-weights")],
)
def test_fp8_mx_means_tiles_where_no_product_knows_microscaling(accelerator: str, recipe: str) -> None:
    row = next(r for r in read_rows() if r.stated("precision_label") == "FP8-MX")
    assert precision_of(replace(row, accelerator=accelerator))[0] == recipe


def test_full_training_has_no_adapters() -> None:
    tuning, assumed = tuning_of(replace(ADAPTED, tuning="full"))
    assert tuning.kind == "full"
    assert not assumed


def test_layers_that_a_row_says_are_trained_whole_are_trained() -> None:
    said = replace(ADAPTED, notes="rank printed; embedding and output layers trainable")
    assert tuning_of(said)[0].train_embeddings
    assert not tuning_of(replace(ADAPTED, notes="rank printed"))[0].train_embeddings


@pytest.mark.parametrize(("model", "targets"), [("gemma-2b", ("all-linear",)), ("llama-2-7b", ("q", "v"))])
def test_adapters_stand_where_the_recipe_of_a_model_has_them(model: str, targets: tuple[str, ...]) -> None:
    tuning, assumed = tuning_of(replace(ADAPTED, framework="LitGPT (Fabric)", model_name=model))
    assert tuning.targets == targets
    assert any("adapted products not printed" in note for note in assumed)


def test_modules_that_a_row_names_are_those_that_run_again() -> None:
    rows = {row.id: row for row in read_rows()}
    named, plain = (
        rows[f"bridge260401_{name}_256"] for name in ("deepseekv3_gb300_mxfp8", "llama31405b_gb300_fp8")
    )
    assert express(named).plan.recompute_modules == ("mla_up_proj",)
    assert express(plain).plan.recompute_modules == ()
    longer = replace(
        named,
        id="longer",
        extra={**(named.extra or {}), "recompute_modules": ["mla_up_proj", "moe", "spiral"]},
    )
    assert express(longer).plan.recompute_modules == ("mla_up_proj", "moe")
    again = [p.breakdown["recompute"] for p in price_rows([named, longer]) if p.breakdown]
    assert again[0] < again[1]


@pytest.mark.parametrize(
    ("framework", "recompute", "modules"),
    [
        ("Megatron-LM", "selective", ("core_attn",)),
        ("Megatron-LM", "full", ()),
        ("HF Trainer", "selective", ()),
    ],
)
def test_megatrons_own_selective_recomputation_is_of_the_attention_core(
    framework: str, recompute: str, modules: tuple[str, ...]
) -> None:
    row = replace(PLAIN, framework=framework, recompute=recompute, extra=None)
    assert express(row).plan.recompute_modules == modules


@pytest.mark.parametrize(
    ("said", "stage", "replicas"),
    [
        ("zero-1", 1, 1),
        ("ZeRO-2", 2, 1),
        ("ZeRO stage 3 + offload", 3, 1),
        ("stage2", 2, 1),
        ("zero3", 3, 1),
        ("ZeRO-Infinity", 3, 1),
        ("ddp", 0, 1),
        ("NO_SHARD", 0, 1),
        ("SHARD_GRAD_OP", 2, 1),
        ("FULL_SHARD", 3, 1),
        ("FSDP1 hybrid shard", 3, 4),
        ("hsdp", 3, 4),
        ("HYBRID_SHARD", 3, 4),
        ("zero1 sharded within 8 GPUs (hybrid)", 1, 4),
        ("distributed optimizer", 1, 1),
    ],
)
def test_sharding_in_any_spelling_is_a_stage_and_copies(said: str, stage: int, replicas: int) -> None:
    row = replace(PLAIN, sharding=said, sharding_as_printed=None, gpus_per_node=8, tp=1, pp=1)
    assert sharding_of(row, 32)[:2] == (stage, replicas)


def test_a_stage_may_stand_in_the_name_of_the_framework() -> None:
    row = replace(PLAIN, sharding=None, sharding_as_printed=None, framework="HF Trainer + DeepSpeed ZeRO-3")
    assert sharding_of(row, 8) == (3, 1, ())


@pytest.mark.parametrize(
    ("accelerator", "printed", "recipe"),
    [
        ("NVIDIA V100 SXM2 32GB", "bf16", "fp16"),
        ("Tesla T4", None, "fp16"),
        ("TPU v4", "fp16", "bf16"),
        ("A100-SXM4-80GB", "fp8 hybrid", "bf16"),
        ("A100-SXM4-80GB", "tf32", "tf32"),
        ("A100-SXM4-80GB", "float16", "fp16"),
        ("H100 SXM5", "fp8 blockwise", "fp8-block"),
    ],
)
def test_a_recipe_is_one_that_the_accelerator_computes(
    accelerator: str, printed: str | None, recipe: str
) -> None:
    row = replace(PLAIN, accelerator=accelerator, precision=printed, extra=None)
    assert precision_of(row)[0] == recipe


def test_a_recipe_that_is_replaced_is_told() -> None:
    row = replace(PLAIN, accelerator="Tesla V100", precision="bf16", extra=None)
    assert any("fp16 is taken" in note for note in precision_of(row)[1])


def test_a_precision_may_stand_in_a_name() -> None:
    row = replace(PLAIN, precision=None, extra=None)
    assert precision_of(row)[0] == "bf16"
    assert precision_of(replace(row, model_name="Llama 3 8B (FP8)"))[0].startswith("fp8")
    assert precision_of(replace(row, framework="TE fp16 stack"))[0] == "fp16"


@pytest.mark.parametrize("model", ["GPT-NeoX 20B", "Qwen-7B", "DeepSeek-V3", "Falcon-40B", "Llama 3 8B"])
def test_adapters_stand_beside_products_that_the_model_has(model: str) -> None:
    row = replace(ADAPTED, model_name=model, framework="LitGPT", gated_mlp=None)
    assert tuning_of(row)[0].targets == (("q", "v") if "Llama" in model else ("attention",))
