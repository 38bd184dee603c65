"""Published files and framework classes agree with the tables, to the last parameter."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import Pointwise
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.config import Config, ModelConfigError
from meshwright.planner.importers.families import FAMILIES
from meshwright.planner.importers.hf import model_from_config

DATA = Path(__file__).parents[2] / "data"
FILES = DATA / "hf_configs"
COUNTS = json.loads((DATA / "parameter_counts.json").read_text())["cases"]
OTHER_COUNTS = [
    case
    for file in sorted(DATA.glob("*_counts.json"))
    for case in json.loads(file.read_text())["cases"]
    if file.name != "parameter_counts.json"
]
LLAMA = json.loads((FILES / "Llama-3.1-8B.json").read_text())


def graph_of(values: dict[str, Any]) -> ModelGraph:
    return model_from_config(Config("test", values), "test")


def windows_of(graph: ModelGraph) -> list[int | None]:
    """Return the attention window of each block, in order."""
    kinds = [graph.kinds[graph.layer_kinds[i]] for i in graph.block_layers]
    return [op.window for kind in kinds for op in kind.operators if isinstance(op, Attention)]


@pytest.mark.parametrize(
    "case", COUNTS, ids=lambda c: f"{c['model_type']}-{len(c['config'])}-{c['parameters']}"
)
def test_count_equals_the_one_seen_in_the_framework(case: dict[str, Any]) -> None:
    graph = graph_of({"model_type": case["model_type"], **case["config"]})
    assert graph.parameters == case["parameters"]
    assert graph.active_parameters == case.get("active", case["parameters"])
    assert graph.block_class == case["block"]


def test_each_family_is_counted_from_defaults_and_altered() -> None:
    # These exist only as code beside a model: published files or presets count them instead.
    beside = {"qwen", "chatglm", "baichuan", "internlm", "internlm2", "internlm3", "phi3small"}
    beside |= {"deci", "nemotron-nas", "mistral4", "deepseek", "bailing_moe", "bailing_moe_v2"}
    seen = {t: [c for c in (*COUNTS, *OTHER_COUNTS) if c["model_type"] == t] for t in FAMILIES}
    assert {t for t, cases in seen.items() if len(cases) < 2} == beside


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 8), ("kv_lora_rank", 512), ("is_encoder_decoder", True), ("vision_config", {"a": 1})],
)
def test_a_marker_turns_even_a_known_family_away(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=key):
        graph_of({**LLAMA, key: value})


@pytest.mark.parametrize(("key", "value"), [("num_experts", 0), ("num_experts", 1), ("kv_lora_rank", None)])
def test_a_marker_that_says_no_is_no_marker(key: str, value: object) -> None:
    assert graph_of({**LLAMA, key: value}).parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention", "linear_attention"]),
        ("architectures", ["NovelForMaskedLM"]),
        ("num_kv_shared_layers", 4),
    ],
)
def test_unknown_family_with_other_layers_is_not_read_as_dense(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=key):
        graph_of({**LLAMA, "model_type": "brandnew", key: value})


@pytest.mark.parametrize("model_type", ["jetmoe", "diffllama", "modernbert-decoder"])
def test_a_model_that_only_looks_like_llama_is_not_guessed(model_type: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"{model_type}.*YAML.*from_module"):
        graph_of({**LLAMA, "model_type": model_type})


def test_unknown_family_slides_where_its_file_says_so() -> None:
    types = ["sliding_attention", "full_attention"] * 16
    graph = graph_of({**LLAMA, "model_type": "brandnew", "sliding_window": 64, "layer_types": types})
    assert windows_of(graph) == [64, None] * 16
    assert windows_of(graph_of({**LLAMA, "model_type": "brandnew", "sliding_window": 64})) == [None] * 32


def test_unknown_family_has_experts_and_latent_attention_where_its_keys_say_so() -> None:
    plain = graph_of({**LLAMA, "model_type": "brandnew"})
    experts = {
        "n_experts": 16,
        "experts_per_token": 4,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 2,
    }
    graph = graph_of({**LLAMA, "model_type": "brandnew", **experts, "num_shared_experts": 1})
    dense, routed = 3 * 4096 * 14336, 3 * 4096 * 512
    assert graph.parameters - plain.parameters == 30 * (17 * routed + 16 * 4096 - dense)
    assert graph.active_parameters - graph.parameters == -30 * 12 * routed
    assert [k.name for k in graph.kinds[1:3]] == ["decoder.dense", "decoder.moe"]
    assert any("experts as its keys say" in note for note in graph.notes)
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    latent = graph_of({**LLAMA, "model_type": "brandnew", **sizes})
    attention = 4096 * 32 * 192 + 4096 * (512 + 64) + 512 + 512 * 32 * 256 + 32 * 128 * 4096
    assert latent.parameters - plain.parameters == 32 * (attention - 2 * 4096 * (4096 + 1024))


@pytest.mark.parametrize(
    ("keys", "routed"),
    [
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, [1, 3]),
        ({"moe_layers": [0, 2]}, [0, 2]),
        ({"moe_layer_freq": [0, 1, 1, 0]}, [1, 2]),
        ({"moe_layer_freq": 2}, [0, 2]),
        ({"first_k_dense_replace": 3}, [3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"interleave_moe_layer_step": 4}, [3]),
        ({"mlp_only_layers": [1]}, [0, 2, 3]),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 2}, [1, 2]),
    ],
    ids=lambda v: str(v)[:50],
)
def test_layers_with_experts_are_told_in_many_ways(keys: dict[str, Any], routed: list[int]) -> None:
    # Three layers or less without experts, so that both kinds exist.
    base = {**LLAMA, "model_type": "brandnew", "num_hidden_layers": 4, "num_experts": 4, "moe_topk": 2}
    graph = graph_of({**base, **keys})
    kinds = [graph.kinds[graph.layer_kinds[i]] for i in graph.block_layers]
    assert [i for i, k in enumerate(kinds) if any(isinstance(op, ExpertGemm) for op in k.operators)] == routed


@pytest.mark.parametrize(
    "keys",
    [
        {"mlp_layer_types": ["dense"]},
        {"mlp_layer_types": ["dense", "other", "dense", "dense"]},
        {"mlp_layer_types": "dense"},
        {"moe_layers": 3},
        {"moe_layer_freq": [1]},
        {"moe_topk": 5},
        {"moe_topk": [2, 2]},
        {"moe_topk": None},
    ],
    ids=str,
)
def test_routing_that_makes_no_sense_is_refused(keys: dict[str, Any]) -> None:
    base = {**LLAMA, "model_type": "brandnew", "num_hidden_layers": 4, "num_experts": 4, "moe_topk": 2}
    with pytest.raises(ModelConfigError, match=f"{next(iter(keys))}|experts of a token"):
        graph_of({**base, **keys})


def test_layers_that_do_not_rotate_have_no_rotation() -> None:
    graph = graph_of({"model_type": "smollm3", "num_hidden_layers": 4})
    rotated = [any(op.name == "rotary" for op in graph.kinds[k].operators) for k in graph.layer_kinds[1:-1]]
    assert rotated == [True, True, True, False]


def test_a_share_of_the_head_is_rotated_where_the_file_says_so() -> None:
    def width(**keys: object) -> float:
        kind = graph_of({"model_type": "gpt_neox", **keys}).kinds[1]
        return next(float(op.reads) for op in kind.operators if op.name == "rotary")  # type: ignore[attr-defined]

    assert width() == 0.25 * 2 * 6144
    assert width(rotary_pct=1.0) == 4 * width() == 2 * width(rotary_pct=0.5)


def test_unknown_family_with_all_keys_is_planned_as_llama_and_says_so() -> None:
    graph = graph_of({**LLAMA, "model_type": "brandnew"})
    assert graph.parameters == 8_030_261_248
    assert any("brandnew" in note and "Llama-like" in note for note in graph.notes)


def test_other_spellings_of_the_keys_suffice() -> None:
    spelled = {"d_model": 64, "n_layers": 2, "n_heads": 4, "ffn_dim": 128, "vocab_size": 100}
    plain = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert (
        graph_of(spelled).parameters
        == graph_of({**plain, "intermediate_size": 128, "vocab_size": 100}).parameters
    )


def test_unknown_family_names_all_missing_keys_at_once() -> None:
    with pytest.raises(ModelConfigError) as caught:
        graph_of({"model_type": "brandnew", "num_attention_heads": 8})
    for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"):
        assert key in str(caught.value)
    assert "num_attention_heads" not in str(caught.value)


def test_sizes_taken_from_class_defaults_are_noted() -> None:
    graph = graph_of({k: v for k, v in LLAMA.items() if k != "vocab_size"})
    assert graph.vocab_size == 32_000
    assert any("vocab_size" in note and "32,000" in note for note in graph.notes)
    assert graph_of(LLAMA).notes == ()


def test_null_key_value_heads_mean_one_for_each_head() -> None:
    # Absent, the class default of Mistral is 8.
    base = {"model_type": "mistral", "num_attention_heads": 16}
    assert graph_of({**base, "num_key_value_heads": None}).attributes["kv_heads"] == 16
    assert graph_of(base).attributes["kv_heads"] == 8


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, [64] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "gemma2", "sliding_window": 64}, [64, None, 64, None]),
        (
            {"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 3},
            [64, 64, None, 64],
        ),
        ({"model_type": "cohere2", "sliding_window": 64}, [64, 64, 64, None]),
        ({"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 3}, [None] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 3, "use_sliding_window": True},
            [None, None, None, 64],
        ),
        (
            {"model_type": "smollm3", "sliding_window": 64, "use_sliding_window": True},
            [None, None, None, 64],
        ),
        (
            {
                "model_type": "gemma2",
                "sliding_window": 64,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
            },
            [None, 64, None, None],
        ),
        ({"model_type": "gpt_neo", "num_layers": 4, "window_size": 64}, [None, 64, None, 64]),
        (
            {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["local"], 4]], "window_size": 9},
            [9] * 4,
        ),
    ],
    ids=lambda v: str(v)[:60],
)
def test_windows_follow_the_family(values: dict[str, Any], expected: list[int | None]) -> None:
    assert windows_of(graph_of({"num_hidden_layers": 4, **values})) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention"]),
        ("layer_types", ["mamba"] * 26),
        ("layer_types", "full_attention"),
        ("sliding_window", -1),
    ],
)
def test_windows_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=key):
        graph_of({"model_type": "gemma2", key: value})


@pytest.mark.parametrize("types", [7, [["global"]], [[["global"], "x"]], [[3, 4]]])
def test_attention_types_that_make_no_sense_are_refused(types: object) -> None:
    with pytest.raises(ModelConfigError, match="attention_types"):
        graph_of({"model_type": "gpt_neo", "attention_types": types})


def test_every_sixth_layer_of_gemma3_sees_all_tokens() -> None:
    graph = graph_of({"model_type": "gemma3_text"})
    assert [graph.kinds[k].name for k in graph.layer_kinds[1:8]] == ["decoder.sliding"] * 5 + [
        "decoder.global",
        "decoder.sliding",
    ]


def test_yi_and_its_like_are_read_as_llama() -> None:
    graph = graph_of({**LLAMA, "model_type": "Yi"})
    assert (graph.family, graph.block_class, graph.notes) == ("llama", "LlamaDecoderLayer", ())


SHORT = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)


@pytest.mark.parametrize(
    ("model_type", "sizes", "experts", "more", "billions"),
    [
        # DeepSeek-MoE-16B and Ling-lite, Ling-mini-2.0: their model cards.
        ("deepseek", (2048, 28, 16, 16, 10944), (64, 6, 2, 1408), {"first_k_dense_replace": 1}, (16.4, 2.8)),
        ("bailing_moe", (2048, 28, 16, 4, 5632), (64, 6, 2, 1408), {"vocab_size": 126464}, (16.8, 2.75)),
        (
            "bailing_moe_v2",
            (2048, 20, 16, 4, 5120),
            (256, 8, 1, 512),
            {"vocab_size": 157184, "first_k_dense_replace": 1, "head_dim": 128},
            (16.26, 1.43),
        ),
    ],
)
def test_families_beside_their_models_have_the_published_sizes(
    model_type: str,
    sizes: tuple[int, ...],
    experts: tuple[int, ...],
    more: dict[str, int],
    billions: tuple[float, float],
) -> None:
    routed = ("num_experts", "num_experts_per_tok", "num_shared_experts", "moe_intermediate_size")
    values = {**dict(zip(SHORT, sizes, strict=True)), **dict(zip(routed, experts, strict=True)), **more}
    graph = graph_of({"model_type": model_type, **values})
    assert graph.parameters / 1e9 == pytest.approx(billions[0], rel=0.01)
    assert graph.active_parameters / 1e9 == pytest.approx(billions[1], rel=0.03)


def test_qwen_counts_half_its_intermediate_size_for_each_branch() -> None:
    # Qwen-7B, 7,721,324,544 parameters on its model card.
    assert graph_of({"model_type": "qwen"}).parameters == 7_721_324_544


def test_phi3_small_has_its_published_size() -> None:
    graph = graph_of({"model_type": "phi3small"})
    assert graph.parameters == 7_392_272_384
    assert any("block-sparse" in note for note in graph.notes)


def test_internlm_has_biases_on_attention_and_internlm3_only_where_told() -> None:
    # InternLM-7B: 32 x 4 x 4,096 bias parameters more than a Llama of its shape.
    bias = graph_of({"model_type": "internlm", "vocab_size": 103168}).parameters
    assert (
        bias - graph_of({"model_type": "internlm", "vocab_size": 103168, "bias": False}).parameters
        == 32 * 4 * 4096
    )
    plain = graph_of({"model_type": "internlm3"}).parameters
    assert graph_of({"model_type": "internlm3", "qkv_bias": True}).parameters - plain == 32 * 3 * 4096


def test_baichuan_positions_follow_the_key_that_13b_lacks() -> None:
    assert graph_of({"model_type": "baichuan", "model_max_length": 4096}).attributes["positions"] == "alibi"
    with_key = graph_of({"model_type": "baichuan", "max_position_embeddings": 4096})
    assert with_key.attributes["positions"] == "rotary"


@pytest.mark.parametrize("values", [{}, {"num_experts_per_tok": None}])
def test_deepseek_v2_without_experts_of_a_token_is_refused(values: dict[str, Any]) -> None:
    """Its class has no default: None reaches torch.topk, which takes integers alone."""
    with pytest.raises(ModelConfigError, match=r"deepseek_v2.*missing: num_experts_per_tok"):
        graph_of({"model_type": "deepseek_v2", **values})
    assert graph_of({"model_type": "deepseek_v2", "num_experts_per_tok": 6}).parameters > 0


@pytest.mark.parametrize(
    ("block", "scaled"),
    [
        ({}, False),
        ({"rope_scaling": None}, False),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, False),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, True),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 32.0}}, True),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1.0}}, False),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "attention_factor": 1.0}}, False),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}}, False),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.7}}, True),
        ({"rope_scaling": {"type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7}}, False),
    ],
)
def test_a_stretch_by_yarn_scales_what_is_turned_unless_its_factor_is_one(
    block: dict[str, Any], scaled: bool
) -> None:
    assert rotations_are_scaled({**LLAMA, "rope_scaling": None, **block}) == scaled


def test_gpt_oss_is_stretched_unless_its_file_says_otherwise() -> None:
    file = json.loads((FILES / "gpt-oss-20b.json").read_text())
    silent = {key: value for key, value in file.items() if key != "rope_scaling"}
    assert rotations_are_scaled(file) and rotations_are_scaled(silent)
    assert not rotations_are_scaled(silent | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}})


def rotations_are_scaled(values: dict[str, Any]) -> bool:
    """Return whether every rotation of a model is."""
    operators = [op for kind in graph_of(values).kinds for op in kind.operators]
    (scaled,) = {op.scaled for op in operators if isinstance(op, Pointwise) and op.group == "rotary"}
    return scaled
