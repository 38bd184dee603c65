"""Families with standard attention and a mixture of experts."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers import windows
from meshwright.planner.importers.family import (
    ATTENTION_BIAS,
    DROPOUT,
    LAYER_NORM,
    LLAMA,
    NO,
    POST_NORMS,
    YES,
    Family,
    biases,
    mtp_layers,
    rotary,
    rotary_width,
    scaled_rotary,
    sizes,
    tied,
)
from meshwright.planner.importers.mixing import attention, no_rope_layers
from meshwright.planner.importers.routing import (
    SHARED_WIDTH,
    experts,
    node_limit,
    routed_layers,
    shared_experts,
)
from meshwright.planner.importers.rules import (
    Rule,
    amount,
    choose,
    constant,
    dropout,
    flag,
    floor,
    optional_size,
    same_as,
    size,
)

FFN_WIDE: Final = same_as("ffn")


def _granite(shared: Rule) -> dict[str, Rule]:
    return {
        **LLAMA,
        **ATTENTION_BIAS,
        "feeds": experts(number=8, topk=2, width=FFN_WIDE, shared=shared),
    }


def _olmo(norms: tuple[str, ...] | None, number: int, topk: int) -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        **LLAMA,
        **ATTENTION_BIAS,
        "qk_norm": constant("full"),
        "feeds": experts(number=number, topk=topk, width=FFN_WIDE),
    }
    return rules if norms is None else {**rules, "norms": constant(norms)}


def grouped(
    groups: int, visited: int, first: int, shared: int, norm: bool = False, **defaults: int | None
) -> Rule:
    """Return the feeds of DeepSeek's line: dense first layers, shared experts, groups of experts."""
    return experts(
        routed=routed_layers(first),
        shared=shared_experts(shared),
        limit=node_limit(groups, visited),
        number=defaults.get("number"),
        topk=defaults.get("topk"),
        default_width=defaults.get("width"),
        output_norm=constant(norm),
    )


MOE_FAMILIES: Final[Mapping[str, Family]] = {
    "mixtral": Family(
        "MixtralDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 14336, 32000, 8, length=131072),
            "windows": windows.windowed(windows.all_layers),
            "feeds": experts(number=8, topk=2, width=FFN_WIDE),
        },
    ),
    "qwen2_moe": Family(
        "Qwen2MoeDecoderLayer",
        {
            **LLAMA,
            **sizes(2048, 24, 16, 5632, 151936, 16, length=32768),
            **biases(flag("qkv_bias", default=True), NO, NO),
            "windows": windows.switched(windows.alternate_up_to_max, "use_sliding_window", 4096),
            "feeds": experts(
                number=60,
                topk=4,
                default_width=1408,
                shared=amount(*SHARED_WIDTH, default=5632),
                shared_gate=YES,
            ),
        },
    ),
    "qwen3_moe": Family(
        "Qwen3MoeDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2048, 24, 32, 6144, 151936, 4, length=32768),
            "qk_norm": constant("head"),
            "windows": windows.switched(windows.all_layers, "use_sliding_window", 4096),
            "feeds": experts(number=128, topk=8, default_width=768),
        },
    ),
    "dbrx": Family(
        "DbrxBlock",
        {
            **sizes(2048, 24, 16, None, 32000, length=2048),
            "kv_heads": size("attn_config.kv_n_heads", default=1, what="heads"),
            "ffn": size("ffn_config.ffn_hidden_size", default=3584),
            **tied(False),
            "attention_dropout": dropout("attn_config.attn_pdrop"),
            "hidden_dropout": dropout("resid_pdrop"),
            "feeds": experts(number=4, topk=1, width=FFN_WIDE),
        },
    ),
    "llama4_text": Family(  # intermediate_size is an expert's width, intermediate_size_mlp the dense one
        "Llama4TextDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(5120, 48, 40, None, 202048, 8, 128, 131072),
            "ffn": size("intermediate_size_mlp", default=16384),
            "qk_norm": choose(flag("use_qk_norm", default=True), "plain", None),
            "mixers": attention(no_rope_layers(), chunk=optional_size("attention_chunk_size", default=8192)),
            "feeds": experts(
                number=16,
                topk=1,
                width=size("intermediate_size", default=8192),
                shared=size("intermediate_size", default=8192),
            ),
        },
    ),
    "gpt_oss": Family(
        "GptOssDecoderLayer",
        {
            **LLAMA,
            **sizes(2880, 36, 64, 2880, 201088, 8, 64, 131072),
            **biases(flag("attention_bias", default=True), mlp=NO),
            "gate": constant("clamped_offset"),
            "rotary_scaled": scaled_rotary(True),
            "windows": windows.windowed(windows.all_but_every(default=2), 128),
            "mixers": attention(sinks=True),
            "feeds": experts(number=128, topk=4, width=FFN_WIDE, bias=YES, router_bias=YES),
        },
    ),
    "phimoe": Family(
        "PhimoeDecoderLayer",
        {
            **LLAMA,
            **LAYER_NORM,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 32, 6400, 32064, 8, length=131072),
            "head_bias": flag("lm_head_bias"),
            "windows": windows.windowed(windows.all_layers),
            "feeds": experts(number=16, topk=2, width=FFN_WIDE),
        },
    ),
    "glm4_moe": Family(
        "Glm4MoeDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 46, 96, 10944, 151552, 8, length=131072),
            "head_dim": size("head_dim", default=floor("hidden", "heads"), null=floor("hidden", "heads")),
            **biases(flag("attention_bias"), NO, NO),
            **rotary(0.5),
            "qk_norm": choose(flag("use_qk_norm"), "head", None),
            "feeds": grouped(1, 1, first=1, shared=1, number=128, topk=8, width=1408),
            **mtp_layers(),
        },
    ),
    "olmoe": Family(
        "OlmoeDecoderLayer",
        {**_olmo(None, 64, 8), **sizes(2048, 16, 16, 2048, 50304, length=4096)},
    ),
    "flex_olmo": Family(
        "FlexOlmoDecoderLayer",
        {**_olmo(POST_NORMS, 7, 5), **sizes(4096, 32, 32, 11008, 100352, length=4096)},
    ),
    "granitemoe": Family("GraniteMoeDecoderLayer", _granite(constant(0))),
    "granitemoeshared": Family("GraniteMoeSharedDecoderLayer", _granite(amount("shared_intermediate_size"))),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeDecoderLayer",
        {
            **LLAMA,
            **tied(True),
            **biases(flag("use_bias")),
            **sizes(2560, 28, 20, 12288, 103424, 4, length=131072),
            "head_bias": flag("use_bias"),
            "feeds": experts(
                number=64,
                topk=6,
                default_width=1536,
                routed=routed_layers(1),
                shared=shared_experts(2),
                router_bias=YES,
            ),
            **mtp_layers(),
        },
    ),
    "hunyuan_v1_moe": Family(
        "HunYuanMoEV1DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 32, 11008, 290943, length=2048),
            "qk_norm": constant("head"),
            "feeds": experts(number=1, topk=1, width=FFN_WIDE, shared=FFN_WIDE, single=True),
        },
    ),
    "dots1": Family(
        "Dots1DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4608, 62, 32, 10944, 152064, 32, length=2048),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.behind_first(62), 4096),
            "feeds": grouped(1, 1, first=0, shared=0, width=1408),
        },
    ),
    "minimax_m2": Family(
        "MiniMaxM2DecoderLayer",
        {
            **sizes(3072, 62, 48, 1536, 200064, 8, 128, 196608),
            **tied(False),
            **DROPOUT,
            "rotary_share": rotary_width(None),
            "qk_norm": constant("full"),
            "feeds": experts(number=256, topk=8, width=FFN_WIDE),
            **mtp_layers(),
        },
    ),
}
