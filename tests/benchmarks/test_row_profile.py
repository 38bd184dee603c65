"""A row's words name a profile and the switches by which the run differs from it."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.row_profile import ASYNC_TENSOR, FUSED_NORMS, base_profile, profile_of
from benchmarks.rows import read_rows
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import find_profile

EAGER = next(r for r in read_rows() if r.framework == "torchtitan (FSDP2)" and r.torch_compile is False)


def profile(**changes: Any) -> Profile:
    return find_profile(profile_of(replace(EAGER, **changes)))


def test_a_compiled_stack_fuses_what_an_eager_one_does_not() -> None:
    compiled = profile(torch_compile=True)
    assert set(compiled.fusions.values()) == {"fused"}
    assert "eager" in profile(torch_compile=False).fusions.values()


def test_an_eager_norm_is_one_kernel_from_the_generation_on_that_has_it() -> None:
    assert profile(year=FUSED_NORMS - 1).norm == "eager"
    assert profile(year=FUSED_NORMS).norm == "fused"
    assert profile(year=FUSED_NORMS).activation == "eager"


@pytest.mark.parametrize("year", [2023, FUSED_NORMS])
def test_torchtitan_turns_complex_numbers_where_others_turn_halves(year: int) -> None:
    assert profile(year=year).rotary == "complex"
    assert profile(year=year, torch_compile=None).rotary == "complex"
    assert profile(year=year, torch_compile=True).rotary == "fused"
    for other in ("transformers Trainer", "PyTorch FSDP2", "NeMo Automodel"):
        assert profile(year=year, framework=other).rotary == "eager"


def test_asynchronous_tensor_parallelism_is_read_from_a_rows_notes() -> None:
    assert profile(notes="vanilla TP").overlap_tensor == 0
    assert profile(notes="1F1B, AsyncTP").overlap_tensor == ASYNC_TENSOR


@pytest.mark.parametrize(
    "framework", ["torchtitan GraphTrainer (graph passes)", "torchtitan compiler_toolkit"]
)
def test_captured_graphs_run_eager_kernels_unless_a_compiler_makes_code_of_them(framework: str) -> None:
    captured = profile(framework=framework, torch_compile=True, notes="20 steps")
    compiled = profile(framework=framework, torch_compile=True, notes="full inductor")
    assert captured.activation == "eager"
    assert compiled.activation == "fused"


@pytest.mark.parametrize(
    ("executors", "how"), [("sdpa,torchcompile", "fused"), ("sdpa,torchcompile_cat,nvfuser", "eager")]
)
def test_thunder_compiles_where_its_executors_say_so(executors: str, how: str) -> None:
    got = profile(framework="LitGPT + thunder", torch_compile=None, notes=f"executors {executors}; seq 2048")
    assert got.activation == how
    assert not got.gradient_buckets


def test_a_fused_cross_entropy_of_megatron_is_read_from_a_rows_notes() -> None:
    assert profile(framework="Megatron-LM", notes="grad overlap off, fused CE.").loss == "jit"
    assert profile(framework="Megatron-LM", notes="fused CE, grad overlap off.").loss == "jit"
    for other in ("grad overlap off.", "no fused CE", "without fused cross-entropy.", "fused CE off"):
        assert profile(framework="Megatron-LM", notes=other).loss == "full"
    assert profile(framework="torchtitan", notes="fused CE").loss == "torch"


@pytest.mark.parametrize(
    ("framework", "loss"),
    [
        ("llm-foundry/Composer (PyTorch FSDP1)", "metrics"),
        ("LLM Foundry", "metrics"),
        ("torchtitan FSDP1", "torch"),
        ("FastChat FSDP", "torch"),
        ("llama-recipes FSDP", "torch"),
    ],
)
def test_train_metrics_are_those_of_the_stack_that_takes_them(framework: str, loss: str) -> None:
    found = profile(framework=framework, year=2023)
    assert found.name.startswith("fsdp1")
    assert found.loss == loss


def test_a_chunked_cross_entropy_is_read_from_a_rows_notes() -> None:
    assert profile(notes="chunked cross entropy loss saves 7.3 GiB").loss == "chunked"
    assert profile(notes="plain").loss != "chunked"


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("InternEvo", "internevo"),
        ("Megatron-DeepSpeed (Habana)", "megatron-gaudi"),
        ("torchtitan (FSDP2)", "fsdp2-eager"),
        ("HF Trainer + DeepSpeed", "hf-trainer"),
        ("Accelerate + DeepSpeed ZeRO-3", "hf-trainer"),
        ("LLaMA-Factory", "hf-trainer"),
        ("LLM Foundry", "fsdp1-early"),
        ("Levanter (JAX)", "maxtext"),
        ("PyTorch/XLA FSDP", "maxtext"),
        ("PyTorch FSDP", "fsdp2-eager"),
        ("OLMo-core", "fsdp2-eager"),
        ("torchtune", "torchtune"),
        ("ATorch FSDP", "atorch"),
        ("ATorch + DeepSpeed pipeline", "deepspeed"),
        ("Unsloth", "unsloth"),
        ("MindSpeed", "megatron-core"),
        ("Primus", "megatron-core"),
        ("Hugging Face nanotron", "generic"),
    ],
)
def test_a_framework_has_its_own_profile(framework: str, name: str) -> None:
    assert base_profile(replace(EAGER, framework=framework)) == name


def test_a_stack_is_that_of_its_time() -> None:
    names = {y: base_profile(replace(EAGER, framework="PyTorch FSDP", year=y)) for y in (2023, 2024)}
    assert names == {2023: "fsdp1-early", 2024: "fsdp2-eager"}
    assert base_profile(replace(EAGER, framework="GPT-NeoX", year=2022)) == "megatron-deepspeed"


def test_scripts_of_litgpt_that_compare_executors_pre_train_with_a_whole_loss() -> None:
    assert profile(framework="LitGPT + eager", tuning="full").loss == "torch"
    assert profile(framework="LitGPT (Fabric)", tuning="full").loss == "sliced"


def test_a_pipeline_of_deepspeed_calls_its_own_loss_on_logits_that_each_tensor_rank_has() -> None:
    engine = profile(framework="Anything + DeepSpeed pipeline", torch_compile=None)
    assert (engine.loss, engine.loss_parallel) == (find_profile("deepspeed").pipeline_loss, False)
    plain = profile(framework="DeepSpeed", torch_compile=None)
    assert (plain.loss, plain.pipeline_loss) == ("eager", engine.loss)


def test_torchtitan_compiles_the_loss_of_mixtures_alone() -> None:
    rows = {row.id: row for row in read_rows()}
    mixture, dense = rows["titanlog-069"], rows["titanlog-001"]
    assert find_profile(profile_of(mixture)).loss == "compiled"
    assert find_profile(profile_of(dense)).loss == find_profile("fsdp2-eager").loss
    traced = replace(mixture, framework="torchtitan GraphTrainer")
    assert find_profile(profile_of(traced)).loss == "traced"


@pytest.mark.parametrize(("tuning", "loss"), [("lora", "pieces"), (None, "torch")])
def test_litgpt_fine_tunes_with_a_loss_in_pieces(tuning: str | None, loss: str) -> None:
    assert profile(framework="LitGPT (Fabric)", torch_compile=None, tuning=tuning).loss == loss


def test_a_dense_model_has_no_dispatcher() -> None:
    rows = {row.id: row for row in read_rows()}
    mixture = replace(rows["bridge2604_qwen330ba3b_gb300_mxfp8_8"], extra=None)
    assert base_profile(mixture) == "megatron-bridge-hybridep"
    assert base_profile(replace(mixture, moe=None)) == "megatron-bridge"


def test_what_a_row_says_does_not_overlap_is_waited_for() -> None:
    apart = profile(sharding_as_printed="distributed optimizer (zero1), no comm overlap")
    assert (apart.overlap_gradients, apart.overlap_parameters) == (0.0, 0.0)
    beside = profile(sharding_as_printed="dist-opt, overlap grad sync + param sync")
    assert min(beside.overlap_gradients, beside.overlap_parameters) > 0


@pytest.mark.parametrize(
    ("notes", "hides"), [("TP overlap, P2P overlap, grad overlap all off", False), ("TP overlap on", True)]
)
def test_tensor_parallel_traffic_that_by_a_row_does_not_overlap_is_waited_for(
    notes: str, hides: bool
) -> None:
    got = profile(framework="Megatron-LM", year=2025, notes=notes)
    assert got.overlap_backward is hides
    assert got.overlap_tensor == 0


@pytest.mark.parametrize(
    ("framework", "year", "generation"),
    [
        ("NeMo 24.07", 2024, "nemo-2024"),
        ("NeMo 24.09", 2024, "megatron-bridge"),
        ("NeMo (release v24.11.1)", 2024, "megatron-bridge"),
        ("NeMo", 2024, "nemo-2024"),
        ("NeMo", 2025, "megatron-bridge"),
    ],
)
def test_a_release_tells_a_generation_before_its_year_does(
    framework: str, year: int, generation: str
) -> None:
    assert base_profile(replace(EAGER, framework=framework, year=year)) == generation
