"""A model's totals agree with the field's rules of thumb."""

import pytest

from meshwright.costmodels.attention import Attention
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.importers import load_model, preset_names
from meshwright.planner.model_summary import summarise


def test_llama_needs_two_flops_a_weight_and_attention() -> None:
    # 2 (N - embedding) for the products; 2 s h a layer for causal attention (arXiv 2204.02311, appendix B).
    graph = load_model("llama-3.1-8b")
    embedding = 128_256 * 4096
    norms = 65 * 4096
    products = 2 * (graph.parameters - embedding - norms)
    expected = products + 32 * 2 * (4096 + 1) * 4096
    assert summarise(graph, 4096).forward_flops_per_token == expected


def test_training_counts_three_forward_passes() -> None:
    summary = summarise(load_model("gpt2"), 512)
    assert summary.training_flops_per_token == 3 * summary.forward_flops_per_token


def test_gpt3_training_flops_equal_megatrons_formula() -> None:
    # arXiv 2104.04473, equation 3 without recomputation and with causal attention halved:
    # 72 b s l h^2 (1 + (s + 1) / (12 h) + V / (12 l h)).
    h, layers, v, s = 12288, 96, 51200, 2048
    expected = 72 * layers * h**2 * (1 + (s + 1) / (12 * h) + v / (12 * layers * h))
    assert summarise(load_model("gpt3-175b"), s).training_flops_per_token == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("name", preset_names())
def test_totals_are_sums_over_layers_and_recompute_keeps_less(name: str) -> None:
    graph = load_model(name)
    reads_images = any(stream.source == "image" for stream in graph.streams)
    summary = summarise(graph, image_tokens=1024 if reads_images else None)
    assert sum(k.layers * k.parameters for k in summary.kinds) == summary.graph.parameters
    assert sum(k.layers for k in summary.kinds) == summary.graph.num_layers
    attending = {k.name for k in graph.kinds if any(isinstance(op, Attention) for op in k.operators)}
    for kind in summary.kinds:
        kept = kind.activation_bytes_per_token
        none, selective, moe, full = (kept[mode] for mode in ("none", "selective", "moe", "full"))
        # A norm or a projector between two parts may keep nothing but its input.
        assert none >= selective >= moe >= full > 0 if kind.role == "block" else none == selective == full > 0
        assert kind.name not in attending or none > selective >= moe > full
        assert kept["offload"] == (0 if kind.role == "block" else none)


def test_attention_scores_in_memory_grow_with_the_sequence_and_flash_does_not() -> None:
    graph = load_model("llama-2-7b")
    short, long = (summarise(graph, s).activation_bytes_per_token["none"] for s in (1024, 4096))
    assert short == long
    short, long = (
        summarise(graph, s, flash_attention=False).activation_bytes_per_token["none"] for s in (1024, 4096)
    )
    assert long - short == 32 * 32 * 2 * (4096 - 1024)


def test_sliding_windows_bound_the_flops_a_token() -> None:
    graph = load_model("mistral-7b")
    per_token = [summarise(graph, s).forward_flops_per_token for s in (8192, 32_768)]
    whole = [summarise(load_model("llama-2-7b"), s).forward_flops_per_token for s in (8192, 32_768)]
    assert per_token[1] / per_token[0] < 1.1 < whole[1] / whole[0]


def test_default_length_fits_the_positions() -> None:
    assert summarise(load_model("gpt2")).sequence_length == 1024
    assert summarise(load_model("llama-3.1-8b")).sequence_length == 4096
    assert summarise(load_model("bloom-3b")).sequence_length == 4096


def test_length_must_be_positive() -> None:
    with pytest.raises(MeshwrightError, match="sequence length"):
        summarise(load_model("gpt2"), 0)


def test_lengths_that_nobody_gave_are_told() -> None:
    graph = load_model("tests/data/hf_configs/Qwen2-VL-7B.json")
    assert any("image_tokens is not given" in note for note in summarise(graph).notes)
    assert not any("image_tokens" in note for note in summarise(graph, image_tokens=1024).notes)
