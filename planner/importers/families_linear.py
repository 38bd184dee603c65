"""Families with linear attention, recurrences or short convolutions among attention layers."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.decoder import PRE_NORMS, Sublayer
from meshwright.planner.gated_mixers import RecurrentBlock, ShortConvolution
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.families_mamba import attention, hybrid
from meshwright.planner.importers.family import (
    ATTENTION_BIAS,
    DROPOUT,
    FOUR_NORMS,
    ROTARY_SHARE,
    YES,
    Family,
    biases,
    sizes,
    tied,
)
from meshwright.planner.importers.layer_types import (
    FULL,
    LINEAR,
    Make,
    Names,
    by_arithmetic,
    chosen,
    listed,
)
from meshwright.planner.importers.mixing import head_dim
from meshwright.planner.importers.routing import experts, node_limit, routed_layers, shared_experts
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    amount,
    choose,
    constant,
    flag,
    optional_size,
    same_as,
    share,
    size,
)
from meshwright.planner.latent import LatentAttention
from meshwright.planner.linear_attention import GatedDeltaNet, KimiDelta, LightningAttention
from meshwright.planner.mixers import SelfAttention

SLIDING: Final = "sliding_attention"


def _every(interval: Rule) -> Names:
    """Return names where every n-th layer attends to all tokens."""
    return by_arithmetic(lambda r, i: FULL if (i + 1) % interval(r) == 0 else LINEAR)


# Mixers --------------------------------------------------------------------------------------------------


def _delta_net(reading: Reading) -> Sublayer:
    return GatedDeltaNet(
        size("linear_num_key_heads", default=16, what="heads")(reading),
        size("linear_num_value_heads", default=32, what="heads")(reading),
        size("linear_key_head_dim", default=128)(reading),
        size("linear_value_head_dim", default=128)(reading),
        size("linear_conv_kernel_dim", default=4)(reading),
    )


def _olmo_delta_net(reading: Reading) -> Sublayer:
    hidden, heads = reading.fields["hidden"], same_as("heads")
    keys = size("linear_num_key_heads", default=heads, what="heads")(reading)
    dim = size("linear_key_head_dim", default=lambda r: max(1, int(0.75 * hidden / keys)))(reading)
    return GatedDeltaNet(
        keys,
        size("linear_num_value_heads", default=heads, what="heads")(reading),
        dim,
        size("linear_value_head_dim", default=lambda r: 2 * dim)(reading),
        size("linear_conv_kernel_dim", default=4)(reading),
    )


def _gated_attention(reading: Reading) -> Sublayer:
    return SelfAttention(gate="feature")


def _kimi_delta(reading: Reading) -> Sublayer:
    inner = "linear_attn_config."
    return KimiDelta(
        size(f"{inner}num_heads", "linear_num_heads", default=32, what="heads")(reading),
        size(f"{inner}head_dim", "linear_head_dim", default=128)(reading),
        size(f"{inner}short_conv_kernel_size", "linear_conv_kernel_dim", default=4)(reading),
    )


def _kimi_latent(reading: Reading) -> Sublayer:
    return LatentAttention(
        kv_rank=size("kv_lora_rank", default=512)(reading),
        nope=size("qk_nope_head_dim", default=128)(reading),
        rope=size("qk_rope_head_dim", default=64)(reading),
        value=size("v_head_dim", default=128)(reading),
        q_rank=optional_size("q_lora_rank")(reading),
    )


def _lightning(reading: Reading) -> Sublayer:
    block = size("block_size", default=256)(reading)
    return LightningAttention(reading.fields["heads"], reading.fields["head_dim"], block)


def _recurrent(reading: Reading) -> Sublayer:
    width = size("lru_width", default=same_as("hidden"))(reading)
    return RecurrentBlock(width, reading.fields["heads"], size("conv1d_width", default=4)(reading))


def _griffin_attention(reading: Reading) -> Sublayer:
    names = ("attention_window_size", "sliding_window")
    return SelfAttention(window=size(*names, default=2048, what="rows")(reading))


def _convolution(width: int) -> Make:
    def read(reading: Reading) -> Sublayer:
        """Read the convolution."""
        return ShortConvolution(size("conv_L_cache", default=width)(reading), flag("conv_bias")(reading))

    return read


def _lfm3_attention(window: bool) -> Make:
    def read(reading: Reading) -> Sublayer:
        """Read the attention."""
        reach = optional_size("sliding_window", default=256, what="rows")(reading) if window else None
        gated = flag("use_attention_gate", default=True)(reading)
        return SelfAttention(window=reach, gate="head" if gated else None)

    return read


# Which layer is what -------------------------------------------------------------------------------------


def _kimi_names(reading: Reading) -> tuple[str, ...]:
    """Return the layers that the file numbers from 1, else every fourth from the fifth on."""
    _, numbers = reading.config.find(("linear_attn_config.full_attn_layers",))
    if isinstance(numbers, list):
        return tuple(FULL if i + 1 in numbers else LINEAR for i in range(reading.fields["layers"]))
    return tuple(FULL if i and i % 4 == 0 else LINEAR for i in range(reading.fields["layers"]))


def _olmo_names(reading: Reading) -> tuple[str, ...]:
    names = _every(constant(4))(reading)
    return names if FULL in names else (*names[:-1], FULL)


def _griffin_names(reading: Reading) -> tuple[str, ...]:
    """Return the pattern of ``block_types`` repeated."""
    _, pattern = reading.config.find(("block_types",))
    if pattern is MISSING or pattern is None:
        pattern = ["recurrent", "recurrent", "attention"]
    if not isinstance(pattern, list) or not pattern or not all(isinstance(n, str) for n in pattern):
        reading.config.refuse("block_types", pattern, "a list of recurrent and attention")
    return tuple(pattern[i % len(pattern)] for i in range(reading.fields["layers"]))


def _lfm2_names(reading: Reading) -> tuple[str, ...]:
    """Return attention on the layers that ``full_attn_idxs`` names, without it on all."""
    _, at = reading.config.find(("full_attn_idxs",))
    layers = range(reading.fields["layers"])
    return tuple(FULL if not isinstance(at, list) or i in at else "conv" for i in layers)


def _lfm3_name(reading: Reading, layer: int) -> str:
    return FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 and layer else "conv"


def lfm2_width(reading: Reading) -> int:
    """Return LFM2's MLP width: two thirds, times a factor, rounded up to a multiple."""
    width = int(size("block_ff_dim", "intermediate_size", default=12288)(reading))
    if not flag("block_auto_adjust_ff_dim", default=True)(reading):
        return width
    width = int(2 * width / 3)
    name, factor = reading.config.find(("block_ffn_dim_multiplier",))
    if factor is None:
        return width
    factor = 1.0 if factor is MISSING else factor
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 100:
        reading.config.refuse(name, factor, "a number above 0, at most 100")
    multiple = int(size("block_multiple_of", default=256)(reading))
    return -(-int(factor * width) // multiple) * multiple


def _qwen_experts(number: int, topk: int) -> Rule:
    return experts(
        number=number,
        topk=topk,
        default_width=512,
        shared=amount("shared_expert_intermediate_size", default=512),
        shared_gate=YES,
    )


_QWEN_MIXERS: Final = {
    "mixers": chosen(
        listed("layer_types", otherwise=_every(size("full_attention_interval", default=4, what="layers"))),
        {FULL: _gated_attention, LINEAR: _delta_net},
    ),
    "rotary_share": share(*ROTARY_SHARE, default=0.25),
    "qk_norm": constant("head"),
}
_TIE_LFM: Final = {"tied": flag("tie_embedding", "tie_word_embeddings", default=True)}

LINEAR_FAMILIES: Final[Mapping[str, Family]] = {
    "qwen3_next": hybrid(
        "Qwen3NextDecoderLayer",
        {
            **sizes(2048, 48, 16, 5632, 151936, 2, 256, 32768),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            **_QWEN_MIXERS,
            "feeds": _qwen_experts(512, 10),
        },
    ),
    "qwen3_5_text": hybrid(
        "Qwen3_5DecoderLayer",
        {
            **sizes(4096, 32, 16, 12288, 248320, 4, 256, 32768),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            **_QWEN_MIXERS,
        },
    ),
    "qwen3_5_moe_text": hybrid(
        "Qwen3_5MoeDecoderLayer",
        {
            **sizes(2048, 40, 16, 512, 248320, 2, 256, 32768),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            **_QWEN_MIXERS,
            "feeds": _qwen_experts(256, 8),
        },
    ),
    "minimax": hybrid(
        "MiniMaxDecoderLayer",
        {
            **sizes(4096, 32, 32, 14336, 32000, 8, length=131072),
            **tied(False),
            **DROPOUT,
            "rotary_share": share(*ROTARY_SHARE),
            "mixers": chosen(
                listed("layer_types", otherwise=by_arithmetic(lambda r, i: FULL if (i + 1) % 2 else LINEAR)),
                {FULL: attention, LINEAR: _lightning},
            ),
            "feeds": experts(number=8, topk=2, width=same_as("ffn")),
        },
    ),
    "kimi_linear": hybrid(
        "KimiLinearDecoderLayer",
        {
            **sizes(2304, 27, 32, 9216, 163840, length=1_048_576),
            "kv_heads": same_as("heads"),
            "head_dim": head_dim(128, 64),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            "positions": constant("none"),
            "mixers": chosen(
                listed("layer_types", otherwise=_kimi_names), {FULL: _kimi_latent, LINEAR: _kimi_delta}
            ),
            "feeds": experts(
                number=256,
                topk=8,
                default_width=1024,
                routed=routed_layers(1),
                shared=shared_experts(1),
                limit=node_limit(),
            ),
        },
    ),
    "olmo_hybrid": hybrid(
        "OlmoHybridAttentionDecoderLayer",
        {
            **sizes(3840, 32, 30, 11008, 100352, length=65536),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            "qk_norm": constant("full"),
            "mixers": chosen(
                listed("layer_types", otherwise=_olmo_names), {FULL: attention, LINEAR: _olmo_delta_net}
            ),
        },
        ("the attention layers' norms stand behind their sublayers and are priced before them",),
    ),
    "recurrent_gemma": hybrid(
        "RecurrentGemmaDecoderLayer",
        {
            **sizes(2560, 26, 10, 7680, 256000),
            "ffn": lambda r: max(1, int(size("intermediate_size", default=7680)(r)) // 2),
            "max_sequence_length": constant(None),
            **tied(True),
            **DROPOUT,
            **biases(flag("attention_bias"), YES, YES),
            "rotary_share": share(*ROTARY_SHARE, default=0.5),
            "mixers": chosen(_griffin_names, {"recurrent": _recurrent, "attention": _griffin_attention}),
        },
    ),
    "lfm2": hybrid(
        "Lfm2DecoderLayer",
        {
            **sizes(2560, 32, 32, None, 65536, 8, length=128000),
            "ffn": lfm2_width,
            **_TIE_LFM,
            "qk_norm": constant("head"),
            "mixers": chosen(
                listed("layer_types", otherwise=_lfm2_names), {FULL: attention, "conv": _convolution(3)}
            ),
        },
    ),
    "lfm2_moe": hybrid(
        "Lfm2MoeDecoderLayer",
        {
            **sizes(2048, 32, 32, 7168, 65536, 8, length=128000),
            **_TIE_LFM,
            "qk_norm": constant("head"),
            "mixers": chosen(
                listed("layer_types", otherwise=_lfm2_names), {FULL: attention, "conv": _convolution(3)}
            ),
            "feeds": experts(number=32, topk=4, default_width=1792, routed=routed_layers(2)),
        },
    ),
    "lfm3": hybrid(
        "Lfm3DecoderLayer",
        {
            **sizes(2048, 24, 16, 7680, 128000, 4, 128, 128000),
            **_TIE_LFM,
            **ATTENTION_BIAS,
            "qk_norm": constant("head"),
            "norms": choose(flag("use_sandwich_norm", default=True), FOUR_NORMS, PRE_NORMS),
            "mixers": chosen(
                listed("layer_types", otherwise=by_arithmetic(_lfm3_name)),
                {
                    FULL: _lfm3_attention(False),
                    SLIDING: _lfm3_attention(True),
                    "conv": _convolution(7),
                },
            ),
        },
    ),
}
