"""Arguments say a decoder as far as they can, and what they leave open is told trait by trait."""

from dataclasses import replace

import pytest

from meshwright.planner.emit.megatron_model import missing, model_flags, unsaid
from meshwright.planner.importers import load_model, preset_names
from tests.planner.emit.cases import model

COMPLETE = (
    "llama-2-7b",
    "llama-3.1-8b",
    "llama-3.1-405b",
    "mistral-7b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "deepseek-v3",
)


@pytest.mark.parametrize("name", COMPLETE)
def test_these_models_need_no_editing(name: str) -> None:
    assert missing(load_model(name)) == []


@pytest.mark.parametrize(
    ("name", "trait"),
    [
        ("gemma-2-9b", "norms at pre_attention, post_attention, pre_mlp, post_mlp"),
        ("bloom-176b", "alibi"),
        ("gpt-j-6b", "attention and MLP side by side"),
        ("gpt-oss-20b", "biases of experts"),
        ("llama-4-scout", "attention in chunks"),
        ("phi-2", "the head's bias"),
        ("olmo-7b", "norms without a scale"),
        ("yi-6b", "`--rotary-base` (not in the model's file)"),
    ],
)
def test_what_no_flag_says_is_named(name: str, trait: str) -> None:
    graph = load_model(name)
    assert trait in unsaid(graph)
    assert trait in missing(graph)[0]


def test_all_presets_have_flags_without_an_error() -> None:
    graphs = [load_model(name) for name in preset_names()]
    for graph in graphs:
        assert "--num-layers" in model_flags(graph, 512)


def test_a_graph_without_a_specification_says_only_its_sizes() -> None:
    bare = replace(model(), spec=None)
    assert "--normalization" not in model_flags(bare, 512)
    assert "all but its sizes" in missing(bare)[0]


def test_biases_of_queries_alone() -> None:
    flags = model_flags(load_model("qwen2.5-7b"), 512)
    assert {"--disable-bias-linear", "--add-qkv-bias"} <= set(flags)
    assert not {"--disable-bias-linear", "--add-qkv-bias"} & set(model_flags(load_model("gpt3-175b"), 512))


def test_a_window_counts_the_tokens_before_the_query() -> None:
    assert model_flags(load_model("mistral-7b"), 512)["--window-size"] == "(4095,0)"
    mixed = model_flags(load_model("gpt-oss-20b"), 512)
    assert mixed["--window-size"] == "(127,0)"
    assert str(mixed["--window-attn-skip-freq"]).startswith("([1]*1+[0]*1+")
    assert mixed["--softmax-type"] == "learnable"


def test_latent_attention_rotates_as_its_file_says() -> None:
    graph = load_model("deepseek-v2-lite")
    flags = model_flags(graph, 512)
    assert (flags["--rope-type"], flags["--rotary-scaling-factor"], flags["--mscale"]) == (
        "yarn",
        "40",
        "0.707",
    )
    assert "--kv-channels" not in flags and "--q-lora-rank" not in flags
    plain = replace(graph, attributes={k: v for k, v in graph.attributes.items() if k != "rope_scaling"})
    assert model_flags(plain, 512)["--rope-type"] == "rope"
    assert "--no-rope-fusion" in model_flags(plain, 512)


def test_routers_take_the_softmax_of_all_experts_only_where_it_is_not_normalised() -> None:
    assert "--moe-router-pre-softmax" in model_flags(load_model("deepseek-v2-lite"), 512)
    for name in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"):
        assert "--moe-router-pre-softmax" not in model_flags(load_model(name), 512)


def test_a_word_of_another_base_is_said_or_told() -> None:
    graph = model()
    odd = replace(graph, attributes={**graph.attributes, "rope_low_frequency": 2.0})
    assert unsaid(odd) == ["positions stretched by llama3"]
    assert unsaid(replace(graph, attributes={**graph.attributes, "activation": "gelu"})) == [
        "the activation gelu"
    ]
