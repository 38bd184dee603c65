"""Refuse by name what a family's rules do not read, before any of them could misread it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from meshwright.planner.importers.config import MISSING, Config, ModelConfigError

Test: TypeAlias = Callable[[Any], bool]


def _is_true(value: Any) -> bool:
    return value is True


def _is_set(value: Any) -> bool:
    return value not in (None, False, 0, [], {}, "")


def _more_than_one(value: Any) -> bool:
    return _is_set(value) and value != 1


def _names_other_layers(value: Any) -> bool:
    attention = {"full_attention", "sliding_attention", "chunked_attention"}
    return isinstance(value, list) and any(name not in attention for name in map(str, value))


def _names_masked_lm(value: Any) -> bool:
    return isinstance(value, list) and any("MaskedLM" in str(name) for name in value)


MARKERS: Final[Mapping[str, tuple[Test, str]]] = {
    "is_encoder_decoder": (_is_true, "an encoder-decoder model"),
    "encoder_layers": (_is_set, "an encoder-decoder model"),
    "num_decoder_layers": (_is_set, "an encoder-decoder model"),
    "type_vocab_size": (_is_set, "an encoder"),
    "architectures": (_names_masked_lm, "an encoder"),
    "relative_attention": (_is_set, "an encoder"),
    "vision_config": (_is_set, "a vision-language model"),
    "audio_config": (_is_set, "an audio model"),
    "text_config": (_is_set, "a model with several parts"),
    "image_size": (_is_set, "a vision model"),
    "num_experts": (_more_than_one, "a mixture of experts"),
    "num_local_experts": (_more_than_one, "a mixture of experts"),
    "n_routed_experts": (_more_than_one, "a mixture of experts"),
    "n_experts": (_more_than_one, "a mixture of experts"),
    "moe_num_experts": (_more_than_one, "a mixture of experts"),
    "moe_intermediate_size": (_is_set, "a mixture of experts"),
    "num_experts_per_tok": (_more_than_one, "a mixture of experts"),
    "ffn_config.moe_num_experts": (_more_than_one, "a mixture of experts"),
    "kv_lora_rank": (_is_set, "multi-head latent attention"),
    "mamba_d_state": (_is_set, "a state-space model"),
    "mamba_expand": (_is_set, "a state-space model"),
    "ssm_state_size": (_is_set, "a state-space model"),
    "state_size": (_is_set, "a state-space model"),
    "ssm_cfg": (_is_set, "a state-space model"),
    "layer_types": (_names_other_layers, "a hybrid of attention and other layers"),
    "layers_block_type": (_is_set, "a hybrid of attention and other layers"),
    "block_types": (_is_set, "a hybrid of attention and other layers"),
    "attn_layer_period": (_is_set, "a hybrid of attention and other layers"),
    "hybrid_override_pattern": (_is_set, "a hybrid of attention and other layers"),
    "conv_L_cache": (_is_set, "a hybrid of attention and convolutions"),
    "linear_num_key_heads": (_is_set, "linear attention"),
    "attention_hidden_size": (_is_set, "a recurrent model"),
    "lru_width": (_is_set, "a recurrent hybrid"),
    "block_configs": (_is_set, "a model whose layers differ (searched by NAS)"),
    "hidden_size_per_layer_input": (_is_set, "a model with embeddings in every layer"),
    "num_kv_shared_layers": (_is_set, "a model whose layers share keys and values"),
    "cross_attention_layers": (_is_set, "a decoder with cross attention"),
    "add_cross_attention": (_is_true, "a decoder with cross attention"),
    "add_swiglu": (_is_set, "a vision tower"),
    "zero_expert_num": (_is_set, "a mixture of experts of which some do nothing"),
    "output_vocab_size": (_is_set, "a model whose head has fewer rows than its embedding"),
    "attention_k_eq_v": (_is_true, "a model whose keys are its values"),
}
"""Keys that tell an architecture the planner has no layers for yet, and what they tell."""

UNREAD: Final[Mapping[str, str]] = {
    "beam": "a decoder with memory beside its attention",
    "bert-generation": "a decoder with BERT's blocks",
    "bitnet": "a decoder with norms inside attention and MLP",
    "diffllama": "a decoder with differential attention",
    "doge": "a decoder with dynamic masks and product-key experts",
    "flint": "a decoder with gates of its own",
    "gemma4_unified_text": "a decoder whose global layers have heads of their own",
    "hrm_text": "a hierarchical recurrent model",
    "jetmoe": "a model whose attention heads are experts",
    "minimax_m3_vl_text": "a decoder with norms a head and its own indexer",
    "modernbert-decoder": "a decoder with ModernBERT's blocks",
    "moshi": "a speech model",
}
"""Model types whose keys look like Llama's and whose layers are others: not to be guessed."""

TEXT_ALONE: Final[Mapping[str, str]] = {"llama4": "Llama4ForCausalLM", "mllama": "MllamaForCausalLM"}
"""Classes that load only the text part of a vision-language model's file."""

TRY: Final = (
    "no rules of this family read that; describe its layers in YAML (mixers, feeds), or build the graph from "
    "code with meshwright.from_module"
)

EXPERTS: Final = "a mixture of experts"
LATENT: Final = "multi-head latent attention"
HYBRID: Final = "a hybrid of attention and other layers"


def refuse_text_alone(config: Config) -> None:
    """Raise ModelConfigError where the file of several parts names a class that takes its text part alone."""
    names, alone = config.values.get("architectures"), TEXT_ALONE.get(config.model_type)
    if isinstance(names, list) and alone in names:
        raise ModelConfigError(
            f"{config.source}: architectures is {names}, which leaves the vision tower out; give its "
            "text_config as a file of its own"
        )


def refuse_unsupported(config: Config, reads: Collection[str] = ()) -> None:
    """Raise ModelConfigError naming the architecture and the key that tells it.

    Parameters
    ----------
    config
        The file.
    reads
        What the family's rules read themselves: markers that tell it are none (the words of
        :data:`MARKERS`).
    """
    kind = config.model_type or "none"
    if kind in UNREAD:
        raise ModelConfigError(f"{config.source}: model_type {kind!r} is {UNREAD[kind]}; {TRY}")
    for name, (tells, what) in MARKERS.items():
        if what in reads:
            continue
        _, value = config.find((name,))
        if value is not MISSING and tells(value):
            raise ModelConfigError(f"{config.source}: model_type {kind!r} is {what} ({name} is set); {TRY}")
