"""Files of hybrids, state-space and searched models: counts, patterns, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshwright.costmodels.attention import Attention
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers import load_model
from meshwright.planner.importers.config import Config, ModelConfigError
from meshwright.planner.importers.families_nas import multiplied_width
from meshwright.planner.importers.hf import model_from_config

DATA = Path(__file__).parents[2] / "data"
FILES = DATA / "hf_configs"
COUNTS = json.loads((DATA / "hybrid_counts.json").read_text())["cases"]
NEMOTRON_H = json.loads((FILES / "Nemotron-H-56B.json").read_text())
NAS = json.loads((FILES / "Llama-3.3-Nemotron-Super-49B.json").read_text())
SMALL = {"hidden_size": 64, "vocab_size": 160, "num_hidden_layers": 4, "intermediate_size": 96}


def graph_of(values: dict[str, Any]) -> ModelGraph:
    return model_from_config(Config("test", values), "test")


def layers(graph: ModelGraph) -> Counter[str]:
    return Counter(graph.kinds[graph.layer_kinds[i]].name for i in graph.block_layers)


def block(attention: dict[str, Any], ffn: dict[str, Any]) -> dict[str, Any]:
    return {"attention": attention, "ffn": ffn}


def searched(*blocks: dict[str, Any], **others: Any) -> ModelGraph:
    sizes = {"hidden_size": 64, "vocab_size": 160, "num_attention_heads": 4, "num_hidden_layers": len(blocks)}
    return graph_of({"model_type": "nemotron-nas", **sizes, "block_configs": list(blocks), **others})


@pytest.mark.parametrize(
    "case", COUNTS, ids=lambda c: f"{c['model_type']}-{len(c['config'])}-{c['parameters']}"
)
def test_count_equals_the_one_seen_in_the_framework(case: dict[str, Any]) -> None:
    graph = graph_of({"model_type": case["model_type"], **case["config"]})
    assert graph.parameters == case["parameters"]
    assert graph.block_class == case["block"]


# Published files -----------------------------------------------------------------------------------------


def test_jamba_has_its_total_and_active_parameters() -> None:
    graph = load_model(FILES / "Jamba-v0.1.json")
    assert (graph.parameters, graph.active_parameters) == (51_570_323_328, 12_110_311_296)
    assert layers(graph) == {
        "decoder.mamba.dense": 12,
        "decoder.mamba.moe": 16,
        "decoder.attention.dense": 4,
    }


def test_nemotron_h_follows_its_pattern_of_letters() -> None:
    graph = load_model(FILES / "Nemotron-H-56B.json")
    assert graph.parameters == 56_324_350_464
    assert layers(graph) == {"decoder.mamba2": 54, "decoder.dense": 54, "decoder.attention": 10}
    letters = Counter(NEMOTRON_H["hybrid_override_pattern"])
    assert (letters["M"], letters["-"], letters["*"]) == (54, 54, 10)


def test_nemotron_super_has_its_published_size() -> None:
    # 49.9 billion on its model card.
    graph = load_model(FILES / "Llama-3.3-Nemotron-Super-49B.json")
    assert round(graph.parameters / 1e9, 1) == 49.9
    assert len(graph.block_layers) == 80


def test_nemotron_super_is_the_sum_of_its_blocks_by_hand() -> None:
    h, head, vocab = 8192, 128, 128256
    total = 2 * vocab * h + h
    for entry in NAS["block_configs"]:
        attention, ffn = entry["attention"], entry["ffn"]
        if not attention["no_op"]:
            kv = 64 // attention["n_heads_in_group"]
            total += h + 2 * h * h + 2 * h * kv * head
        total += h + 3 * h * multiplied_width(ffn["ffn_mult"], h)
    assert load_model(FILES / "Llama-3.3-Nemotron-Super-49B.json").parameters == total


def test_phi3_small_attends_to_all_tokens_on_every_other_layer() -> None:
    values = json.loads((FILES / "Phi-3-small-8k.json").read_text())
    graph = graph_of(values)
    cores = [
        next(op for op in graph.kinds[graph.layer_kinds[i]].operators if isinstance(op, Attention))
        for i in graph.block_layers
    ]
    assert [core.stride for core in cores] == [8, None] * 16
    assert graph.parameters == graph_of({"model_type": "phi3small"}).parameters
    assert sum(c.pairs(8192) for c in cores) < 0.7 * len(cores) * cores[1].pairs(8192)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("minimax-text-01", 456, 45.9 + 2 * 200064 * 6144 / 1e9),  # arXiv 2501.08313, embeddings not active
        ("nemotron-3-nano-30b-a3b", 31.6, 3.6),  # its report: 3.2 and the embeddings
        ("qwen3-next-80b-a3b", 79.7, 3.9),
        ("kimi-linear-48b-a3b", 49.1, 3.5),
        ("nemotron-h-8b", 8.1, 8.1),
    ],
)
def test_presets_have_their_published_billions(name: str, total: float, active: float) -> None:
    graph = load_model(name)
    assert graph.parameters / 1e9 == pytest.approx(total, rel=0.005)
    assert graph.active_parameters / 1e9 == pytest.approx(active, rel=0.015)


# Searched models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "hidden", "width"),
    [(5.25, 8192, 28672), (2.625, 8192, 14336), (1.3125, 8192, 7168), (1.0, 8192, 5632), (0.5, 8192, 2816)],
)
def test_multipliers_round_up_to_a_multiple_of_256(multiplier: float, hidden: int, width: int) -> None:
    assert multiplied_width(multiplier, hidden) == width
    assert 2 * multiplier * hidden / 3 - 1 < width < 2 * multiplier * hidden / 3 + 256


def test_left_out_sublayers_take_their_norm_with_them() -> None:
    whole = block({"n_heads_in_group": 2}, {"ffn_mult": 1.0})
    without_attention = block({"no_op": True}, {"ffn_mult": 1.0})
    without_ffn = block({"n_heads_in_group": 2}, {"no_op": True})
    base = searched(whole, whole).parameters
    attention = 64 + 2 * 64 * 64 + 2 * 64 * 32
    assert base - searched(whole, without_attention).parameters == attention
    assert base - searched(whole, without_ffn).parameters == 64 + 3 * 64 * 256


def test_an_empty_block_costs_nothing_and_stays_a_layer() -> None:
    whole = block({"n_heads_in_group": 2}, {"ffn_mult": 1.0})
    graph = searched(whole, block({"no_op": True}, {"no_op": True}))
    assert graph.parameters == searched(whole).parameters
    assert len(graph.block_layers) == 2


def test_a_replaced_sublayer_is_one_square_product() -> None:
    linear = {"replace_with_linear": True}
    both = searched(block(linear, linear))
    assert both.parameters == 2 * 160 * 64 + 64 + 2 * (64 + 64 * 64)


def test_windows_and_direct_sizes_are_read() -> None:
    graph = searched(block({"num_key_value_heads": 1, "window_length": 8}, {"intermediate_size": 100}))
    (core,) = (op for op in graph.kinds[1].operators if isinstance(op, Attention))
    assert (core.window, core.kv_heads) == (8, 1)
    assert graph.attributes["ffn"] == 100


def test_key_value_heads_may_be_listed_by_layer() -> None:
    values = {**SMALL, "model_type": "deci", "num_attention_heads": 4}
    graph = graph_of({**values, "num_key_value_heads_per_layer": [4, 2, 2, 1]})
    same = graph_of({**values, "num_key_value_heads": 4})
    assert same.parameters - graph.parameters == (0 + 2 + 2 + 3) * 2 * 16 * 64


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        ([{"attention": {}}], "block_configs"),
        ([block({"n_heads_in_group": 3}, {"ffn_mult": 1.0})], "n_heads_in_group"),
        ([block({"n_heads_in_group": 2}, {})], "ffn_mult"),
        ([block({}, {"ffn_mult": 1.0})], "num_key_value_heads"),
        ([block({"n_heads_in_group": 2, "sparsify": ["2:4"]}, {"ffn_mult": 1.0})], "sparsify"),
        ("all", "block_configs"),
        ([], "block_configs"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(blocks: Any, complaint: str) -> None:
    values = {"hidden_size": 64, "vocab_size": 160, "num_attention_heads": 4}
    with pytest.raises(ModelConfigError, match=complaint):
        graph_of({"model_type": "nemotron-nas", **values, "block_configs": blocks})


def test_more_layers_than_blocks_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="one for each of 80 layers"):
        graph_of({**NAS, "block_configs": NAS["block_configs"][:-1]})


# Patterns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "M-X", 7, ["M", "-"]])
def test_letters_that_mean_nothing_are_refused(pattern: Any) -> None:
    with pytest.raises(ModelConfigError, match="hybrid_override_pattern"):
        graph_of({**NEMOTRON_H, "hybrid_override_pattern": pattern})


@pytest.mark.parametrize(
    "names", [["full_attention"] * 3, ["full_attention"] * 3 + ["mystery"], [1, 2, 3, 4], 5]
)
def test_layer_types_that_make_no_sense_are_refused(names: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"layer.type"):
        graph_of({"model_type": "qwen3_next", **SMALL, "layer_types": names})


def test_every_fourth_layer_of_qwen3_next_attends_to_all_tokens() -> None:
    graph = graph_of({"model_type": "qwen3_next"})
    assert layers(graph) == {"decoder.delta": 36, "decoder.attention": 12}
    kinds = [graph.kinds[graph.layer_kinds[i]].name for i in graph.block_layers]
    assert [i for i, name in enumerate(kinds) if name == "decoder.attention"] == list(range(3, 48, 4))


def test_scans_know_no_square_of_the_sequence() -> None:
    from meshwright.planner.model_summary import summarise

    short, long = (summarise(graph_of({"model_type": "mamba2"}), n) for n in (4096, 65536))
    assert long.forward_flops_per_token == short.forward_flops_per_token


def test_a_shared_block_is_counted_once_and_works_in_every_layer_that_uses_it() -> None:
    from meshwright.planner.model_summary import summarise

    sizes = {**SMALL, "num_hidden_layers": 4, "num_attention_heads": 4, "n_mamba_heads": 4, "adapter_rank": 8}
    names = ["mamba", "hybrid", "mamba", "hybrid"]
    once = graph_of({"model_type": "zamba2", **sizes, "layers_block_type": names})
    twice = graph_of({"model_type": "zamba2", **sizes, "layers_block_type": names, "num_mem_blocks": 2})
    block = 128 + 3 * 128 * 128 + 128 * 64 + 64 + 3 * 64 * 96
    assert twice.parameters - once.parameters == block
    assert summarise(once).forward_flops_per_token == summarise(twice).forward_flops_per_token


@pytest.mark.parametrize("names", [["mamba", "hybrid", "conv", "mamba"], ["mamba"] * 3])
def test_zambas_layer_types_are_checked(names: list[str]) -> None:
    with pytest.raises(ModelConfigError, match=r"layer.type|layers_block_type"):
        graph_of({"model_type": "zamba2", **SMALL, "n_mamba_heads": 4, "layers_block_type": [*names, "x"]})
