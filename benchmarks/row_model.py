"""The model of a published run: its row's sizes in the words of a configuration file, read by the importers.

A row prints sizes; what it leaves open (biases, norms, positions, tied heads) follows from the model's name:
:data:`STYLES` says which ``model_type`` a name belongs to and what that type's file would say beside the
sizes. The planner's own importers then build the graph.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from benchmarks.row_preset import mixes_without_attention, public_config, public_sizes
from benchmarks.rows import Row
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import GIGA
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.families import FAMILIES

UNNAMED: Final = "unnamed-mixture"
"""A ``model_type`` that no family has: Llama's layers, with experts and latent attention as the file says."""
VOCABULARIES: Final = ((2023, 51_200), (2025, 32_000))
"""Where nothing says how many words a model knows: before 2023 GPT-2's, padded; before 2025 Llama's."""
LATEST_VOCABULARY: Final = 128_256
"""Llama 3's; from then on those of public models lie between 100,000 and 260,000."""
USUAL_WORDS: Final = (*(words for _, words in VOCABULARIES), LATEST_VOCABULARY)


def usual_vocabulary(row: Row) -> int:
    """Return the words of a usual model of a row's time (without a year Llama's), GPT-2's of a GPT."""
    if "gpt" in row.model_name.lower():
        return VOCABULARIES[0][1]
    year = row.year or VOCABULARIES[-1][0] - 1
    return next((words for before, words in VOCABULARIES if year < before), LATEST_VOCABULARY)


class NotExpressibleError(MeshwrightError):
    """A row that cannot be written as a problem and a strategy; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Style:
    """What a model's name tells beside the sizes in its row.

    Attributes
    ----------
    model_type
        As in a Hugging Face ``config.json``.
    keys
        Further keys of such a file.
    sizes
        Sizes that stand in for those that a row does not print, by the row's field names.
    gated_columns
        Branches that ``intermediate_size`` counts (Qwen's first family: both).
    """

    model_type: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    gated_columns: int = 1


_PLAIN_GPT: Final = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
_MLA: Final = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_FALCON: Final = {"parallel_attn": True, "bias": False, "alibi": False}
_NANO_PATTERN: Final = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_NANO: Final = {
    "hybrid_override_pattern": _NANO_PATTERN,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
    "mlp_hidden_act": "relu2",
    "head_dim": 128,
}
_FALCON_180B: Final = _FALCON | {"new_decoder_architecture": True}
_T5_3B: Final = {
    "d_model": 1024,
    "d_ff": 16384,
    "d_kv": 128,
    "num_heads": 32,
    "num_layers": 24,
    "vocab_size": 32128,
}


def _known(
    layers: int, hidden: int, heads: int, ffn: int, vocab: int, kv: int | None = None
) -> dict[str, int]:
    names = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    return dict(zip(names, (layers, hidden, heads, kv or heads, ffn, vocab), strict=True))


STYLES: Final[tuple[tuple[str, Style], ...]] = (
    (r"deepseek-v3-16b", Style("deepseek_v3", {**_MLA, "q_lora_rank": None})),
    (r"deepseek.?v2", Style("deepseek_v2", {**_MLA, "q_lora_rank": 1536})),
    (r"distill.?qwen", Style("qwen2")),
    (r"deepseek[ _-]?(v?3|r1(?!.*distill))|kimi", Style("deepseek_v3", {**_MLA, "q_lora_rank": 1536})),
    (r"gpt.oss", Style("gpt_oss", {"attention_bias": True})),
    (r"llama[ _-]?4(?![\db])", Style("llama4_text")),
    (r"qwen3.*a\d+b", Style("qwen3_moe")),
    (r"qwen2-57b", Style("qwen2_moe")),
    (r"mixtral|8x70b", Style("mixtral")),
    (r"nemotron_3_nano", Style("nemotron_h", _NANO, _known(52, 2688, 32, 1856, 131072, 2))),
    (r"nemotron_3", Style("nemotron_h")),
    (r"nemotron", Style("nemotron")),
    (r"mpt", Style("gpt2", _PLAIN_GPT)),
    (r"gpt-j", Style("gptj", {}, _known(28, 4096, 16, 16384, 50400))),
    (r"gpt-neox", Style("gpt_neox")),
    (r"stablelm.*alpha", Style("gpt_neox", {}, {"vocab": 50688})),
    (r"stablelm-2", Style("stablelm", {}, _known(24, 2048, 32, 5632, 100352))),
    (r"gpt ~7b", Style("gpt2", _PLAIN_GPT, _known(32, 4096, 32, 16384, 51200))),
    (r"gpt", Style("gpt2")),
    (r"bloom-560m", Style("bloom", {}, _known(24, 1024, 16, 4096, 250880))),
    (r"bloom-1.1b", Style("bloom", {}, _known(24, 1536, 16, 6144, 250880))),
    (r"falcon-7b", Style("falcon", {**_FALCON, "multi_query": True, "new_decoder_architecture": False})),
    (r"falcon.?180b", Style("falcon", _FALCON_180B, _known(80, 14848, 232, 59392, 65024, 8))),
    (r"falcon", Style("falcon", _FALCON_180B)),
    (r"palm", Style("cohere")),
    (r"^t5-3b", Style("t5", _T5_3B)),
    (r"gemma", Style("gemma", {}, {"head_dim": 256})),
    (r"phi-3", Style("phi3")),
    (r"phi-2", Style("phi")),
    (r"qwen3", Style("qwen3", {}, {"head_dim": 128})),
    (r"qwen2", Style("qwen2")),
    (r"qwen", Style("qwen", gated_columns=2)),
    (r"mistral", Style("mistral")),
    (r"internlm", Style("internlm")),
    (r"^(22|52)b$", Style("nemotron", {"tie_word_embeddings": True}, {"head_dim": 256, "vocab": 32000})),
    (r"^\d+b$", Style("llama", {}, {"head_dim": 128})),
    (r"llama-3.2-[13]b$", Style("llama", {"tie_word_embeddings": True})),
    (r"llama-2-70b lora", Style("llama", {}, _known(80, 8192, 64, 28672, 32000, 8))),
    (r"34b model", Style("llama", {}, _known(60, 7168, 56, 20480, 64000, 8))),
)
"""Name patterns, the first that matches counts. Sizes stand in public configuration files of these models;
those of the Nemotron 3 Nano hybrid come from its published file and are not in the rows."""

SIZES: Final = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_hidden": "intermediate_size",
    "vocab": "vocab_size",
}
EXPERTS: Final = {
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "topk": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_dim": ("qk_nope_head_dim",),
    "qk_rope_dim": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "sliding_window": ("sliding_window",),
    "moe_every_n_layers": ("interleave_moe_layer_step",),
}
"""Keys of configuration files, by the words of a row's ``moe``."""
_SYNONYMS: Final = {
    "num_experts": "experts",
    "n_experts": "experts",
    "num_local_experts": "experts",
    "routed_experts": "experts",
    "n_routed_experts": "experts",
    "top_k": "topk",
    "k": "topk",
    "active_experts": "topk",
    "experts_per_token": "topk",
    "num_experts_per_tok": "topk",
    "moe_ffn": "expert_ffn",
    "moe_ffn_hidden": "expert_ffn",
    "expert_ffn_hidden": "expert_ffn",
    "moe_intermediate_size": "expert_ffn",
    "shared": "shared_experts",
    "n_shared_experts": "shared_experts",
    "num_shared_experts": "shared_experts",
    "first_k_dense": "dense_layers",
    "first_k_dense_replace": "dense_layers",
    "num_dense_layers": "dense_layers",
    "attn": "attention",
}
"""Other names of an entry of ``moe``: those of configuration files and of sources."""


_UNGATED: Final = ("gpt2", "gpt_neox", "gptj", "bloom", "falcon", "nemotron", "phi", "t5")
"""Types whose feed-forward part has one branch, four times as wide as the model unless told."""


def style_of(row: Row) -> Style:
    """Return the style that a row's model name belongs to; Llama's where no pattern matches.

    A mixture of experts under a name that nobody knows has Llama's layers with experts in them. A row that
    prints another number of branches in its feed-forward part than its name has is believed: layers are
    Llama's or GPT's.
    """
    found = _style(row.model_name.lower())
    if found.model_type == "gemma" and row.layers in (26, 42):  # Gemma 2 under its older sibling's name
        return Style("gemma2", found.keys, found.sizes)
    if row.moe is not None and not reads_experts(found.model_type):
        return Style(UNNAMED, sizes=found.sizes)
    if row.moe is None and row.gated_mlp is not None and row.gated_mlp is (found.model_type in _UNGATED):
        return Style("llama" if row.gated_mlp else "gpt2", sizes=found.sizes)
    return found


def reads_experts(model_type: str) -> bool:
    """Return whether layers of a model type may hold experts."""
    family = FAMILIES.get(model_type)
    return family is not None and "feeds" in family.rules


@lru_cache(maxsize=1024)
def _style(name: str) -> Style:
    return next((style for pattern, style in STYLES if re.search(pattern, name)), Style("llama"))


def experts_of(row: Row) -> dict[str, Any]:
    """Return the row's expert sizes under one set of names; what is null counts as not stated."""
    return {_SYNONYMS.get(k, k): v for k, v in (row.moe or {}).items() if v is not None}


def _expert_keys(row: Row, model_type: str) -> dict[str, Any]:
    """Return the keys that a configuration file would say about experts and latent attention."""
    said = experts_of(row)
    keys = {key: said[name] for name, spelt in EXPERTS.items() if name in said for key in spelt}
    if model_type in ("mixtral", "gpt_oss"):
        keys["intermediate_size"] = said.get("expert_ffn", row.ffn_hidden)
    if model_type == "qwen2_moe":
        keys["shared_expert_intermediate_size"] = said.get("shared_ffn", 0)
    if model_type == "llama4_text":
        keys |= {"intermediate_size": said.get("expert_ffn", row.ffn_hidden)}
        keys |= {"intermediate_size_mlp": row.ffn_hidden}
    if said.get("sliding_window_every_other_layer") and row.layers:
        pair = ("sliding_attention", "full_attention")
        keys["layer_types"] = [pair[i % 2] for i in range(row.layers)]
    return keys


_WIDTHS: Final = ("intermediate_size", "moe_intermediate_size")


def _of_two_thirds(width: int) -> int:
    """Return the width of two branches with the parameters of one: three products for two, in tiles of 64."""
    return max(round(width * 2 / 3 / 64), 1) * 64


def config_of(row: Row) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the configuration of a row's model, and what was assumed about it.

    Raises
    ------
    NotExpressibleError
        If sizes are missing that the name does not tell either.
    """
    style = style_of(row)
    printed = {name: getattr(row, name) for name in SIZES}
    known = style.sizes and any(printed.values()) and not mixes_without_attention(row.model_name)
    public = None if row.moe is not None or known else public_config(row)
    if public is not None and (not any(printed.values()) or _untold(row, public[0], style)):
        positions = max(public[0].get("max_position_embeddings", 0), row.seq_len or 2048)
        return public[0] | {"max_position_embeddings": positions}, public[1]
    sizes = {n: v if v is not None else style.sizes.get(n) for n, v in printed.items()}
    named, about = public_sizes(replace(row, **sizes))
    sizes |= named
    if style.model_type not in ("t5",):
        usual, told = _usual_sizes(row, style, sizes)
        sizes, about = sizes | usual, (*about, *told)
        lacking = [n for n in ("layers", "hidden", "heads", "ffn_hidden", "vocab") if sizes[n] is None]
        if lacking not in ([], ["vocab"]):
            raise NotExpressibleError(f"model sizes not stated: {', '.join(lacking)}")
        sizes["vocab"] = sizes["vocab"] or usual_vocabulary(row)
    ffn = sizes["ffn_hidden"]
    sizes["ffn_hidden"] = None if ffn is None else ffn * style.gated_columns
    keys: dict[str, Any] = {SIZES[n]: v for n, v in sizes.items() if v is not None}
    keys |= {"model_type": style.model_type, "max_position_embeddings": row.seq_len or 2048}
    if style.model_type == "gpt2" and row.flash_attention:
        keys |= _PLAIN_GPT  # attention dropout went with the unfused kernels
    if style.model_type == "falcon" and sizes["kv_heads"] is not None:
        keys["num_kv_heads"] = sizes["kv_heads"]
    keys |= style.keys
    if row.moe is None and (same := public_config(row)) is not None and "tie_word_embeddings" in same[0]:
        keys["tie_word_embeddings"] = same[0]["tie_word_embeddings"]
    if row.moe is not None:
        keys |= _expert_keys(row, style.model_type)
    single = row.moe is not None and row.gated_mlp is False and style.model_type == UNNAMED
    if single:
        keys |= {name: _of_two_thirds(keys[name]) for name in _WIDTHS if isinstance(keys.get(name), int)}
    assumed = tuple(
        f"{n} is not stated: {sizes[n]:,} as in {row.model_name}'s public configuration"
        for n in SIZES
        if printed[n] is None and n in style.sizes
    )
    assumed += about
    assumed += ("experts of one branch: priced as two of two thirds of the width",) if single else ()
    if row.vocab is None and sizes["vocab"] is not None and "vocab" not in {*style.sizes, *named}:
        assumed += (f"vocabulary not stated: {sizes['vocab']:,}",)
    return keys, assumed


def _usual_sizes(
    row: Row, style: Style, sizes: Mapping[str, int | None]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return usual sizes of what nothing tells: heads of 128 (64 in small models), widths of four times the
    model's or as many parameters in two branches, and the layers that the printed parameters leave.
    """
    hidden, found = sizes["hidden"], dict[str, int]()
    if hidden is None:
        return {}, ()
    if sizes["heads"] is None:
        kv, large = sizes["kv_heads"] or 1, hidden % 128 == 0 and hidden >= _LARGE
        able = (hidden // h for h in (sizes["head_dim"], 128 if large else 64, 64) if h)
        found["heads"] = next((n for n in able if n and n % kv == 0), kv)
    if sizes["ffn_hidden"] is None:
        plain = row.gated_mlp is False or (row.gated_mlp is None and style.model_type in _UNGATED)
        found["ffn_hidden"] = 4 * hidden if plain else -(-8 * hidden // (3 * 256)) * 256
    if sizes["layers"] is None and row.params_b is not None and row.moe is None:
        ffn = sizes["ffn_hidden"] or found["ffn_hidden"]
        ends = 2 * hidden * (sizes["vocab"] or usual_vocabulary(row))
        block = 4 * hidden**2 + (2 if ffn == 4 * hidden else 3) * hidden * ffn
        found["layers"] = max(round((row.params_b * GIGA - ends) / block), 1)
    return found, tuple(f"{n} is not stated: {v:,}, the usual" for n, v in found.items())


def _untold(row: Row, public: Mapping[str, Any], style: Style) -> bool:
    """Return whether sizes and a name's style do not tell a public model: other layers than Llama's under a
    name without a style, or blocks without attention.
    """
    unnamed = style.model_type == "llama" and public["model_type"] != "llama"
    return unnamed or mixes_without_attention(row.model_name)


_LARGE: Final = 2048
"""Hidden size from which heads are usually of 128."""


def graph_of(row: Row) -> tuple[ModelGraph, tuple[str, ...]]:
    """Return the graph of a row's model, and what was assumed about it.

    Raises
    ------
    NotExpressibleError
        If sizes are missing.
    MeshwrightError
        If the importers do not read the model.
    """
    keys, assumed = config_of(row)
    mtp = predicts_ahead(row)
    if mtp:
        keys["num_nextn_predict_layers"] = 1
    keys, assumed = _counted_words(row, keys, assumed, mtp)
    graph = _graph(json.dumps(keys, sort_keys=True), mtp)
    if _untied(row) and any(graph.tied):
        apart = _graph(json.dumps(keys | {"tie_word_embeddings": False}, sort_keys=True), mtp)
        return apart, (*assumed, "head apart from the embedding, as LitGPT loads every model it fine-tunes")
    if row.params_b is None or _off(row, graph) < 0.03:
        return graph, assumed
    flipped = keys | {"tie_word_embeddings": not any(graph.tied)}
    other = _graph(json.dumps(flipped, sort_keys=True), mtp)
    rounded = not _counted(row)
    if not rounded and _off(row, other) < _off(row, graph):
        said = "apart from" if any(graph.tied) else "shared with"
        return other, (*assumed, f"head {said} the embedding: so the printed parameters are met")
    if rounded and _off(row, graph) < 0.15:
        return graph, assumed
    return graph, (*assumed, f"parameters are off the {row.params_b} B printed by {_off(row, graph):.1%}")


def _counted(row: Row) -> bool:
    """Return whether a row prints a count of parameters: "13B" is a name, 12.85 is a count."""
    return row.params_b is not None and not float(row.params_b).is_integer()


def _printed(row: Row, graph: ModelGraph) -> bool:
    """Return whether a model's parameters are those that a row prints, to its last digit."""
    digits = -int(Decimal(str(row.params_b)).as_tuple().exponent)
    return round(graph.parameters / GIGA, digits) == row.params_b


def _counted_words(
    row: Row, keys: dict[str, Any], assumed: tuple[str, ...], mtp: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys with the usual vocabulary that meets a printed count best, where nothing tells one.

    Only one that meets it to the last digit tells it: what is further off has other reasons. Where the count
    already told the layers it tells nothing more.
    """
    said = f"vocabulary not stated: {keys.get('vocab_size', 0):,}"
    if said not in assumed or not _counted(row) or row.layers is None:
        return keys, assumed

    def graph(words: int) -> ModelGraph:
        """Return the model if it knows so many words."""
        return _graph(json.dumps(keys | {"vocab_size": words}, sort_keys=True), mtp)

    best = min((keys["vocab_size"], *USUAL_WORDS), key=lambda words: _off(row, graph(words)))
    if best == keys["vocab_size"] or not _printed(row, graph(best)):
        return keys, assumed
    told = f"vocabulary not stated: {best:,}, of the usual ones nearest to the printed parameters"
    return keys | {"vocab_size": best}, (*(a for a in assumed if a != said), told)


def _untied(row: Row) -> bool:
    """Return whether a framework keeps the head apart whatever the model's file says.

    LitGPT converts a tied head into a weight of its own and ties them again only in pre-training
    (``litgpt/scripts/convert_hf_checkpoint.py``, ``litgpt/pretrain.py``).
    """
    return "litgpt" in row.framework.lower() and row.tuning is not None


def predicts_ahead(row: Row) -> bool:
    """Return whether the run trains the multi-token-prediction layer of DeepSeek-V3 (its notes say so)."""
    name = row.model_name.lower()
    said = re.search(r"mtp layer (probably )?on", row.notes.lower()) or "w/ mtp" in name
    return bool(said) and "w/o mtp" not in name


def _off(row: Row, graph: ModelGraph) -> float:
    """Return by how much the graph's parameters differ from the printed ones, as a fraction of these."""
    return 0.0 if row.params_b is None else abs(graph.parameters / (row.params_b * GIGA) - 1)


@lru_cache(maxsize=512)
def _graph(text: str, mtp: bool) -> ModelGraph:
    from meshwright.planner.importers.config import Config
    from meshwright.planner.importers.hf import model_from_config

    values = json.loads(text)
    return model_from_config(Config("row", values), values["model_type"], mtp=mtp)
