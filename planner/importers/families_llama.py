"""Families with Llama's block: they differ in sizes, biases, windows and the norm of queries and keys."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers import windows
from meshwright.planner.importers.family import (
    DROPOUT,
    LLAMA,
    LLAMA_BIAS,
    NO,
    PLAIN_MLP,
    YES,
    Family,
    biases,
    sizes,
    tied,
)
from meshwright.planner.importers.mixing import attention, no_rope_layers
from meshwright.planner.importers.rules import Rule, choose, constant, flag, inverse, optional_size, size


def _qwen(qkv_bias: Rule, o_bias: Rule) -> dict[str, Rule]:
    return {
        **LLAMA,
        **sizes(4096, 32, 32, 22016, 151936, 32, length=32768),
        **biases(qkv_bias, o_bias, NO),
        "windows": windows.switched(windows.behind_max_window_layers, "use_sliding_window", 4096),
    }


LLAMA_FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("LlamaDecoderLayer", {**LLAMA, **LLAMA_BIAS}),
    "granite": Family("GraniteDecoderLayer", {**LLAMA, **LLAMA_BIAS}),
    "mistral": Family(
        "MistralDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 14336, 32000, 8, length=131072),
            "windows": windows.windowed(windows.all_layers, 4096),
        },
    ),
    "ministral": Family(
        "MinistralDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 14336, 32000, 8, length=131072),
            "windows": windows.windowed(windows.all_layers, 4096),
        },
    ),
    "qwen2": Family("Qwen2DecoderLayer", _qwen(YES, NO)),
    "qwen3": Family(
        "Qwen3DecoderLayer",
        {
            **_qwen(flag("attention_bias"), flag("attention_bias")),
            **sizes(4096, 32, 32, 22016, 151936, 32, 128, 32768),
            "qk_norm": constant("head"),
        },
    ),
    "qwen": Family(  # modeling_qwen.py: intermediate_size counts both branches, c_attn always has a bias
        "QWenBlock",
        {
            **sizes(4096, 32, 32, None, 151936, length=8192),
            "head_dim": size("kv_channels", default=128),
            "ffn": lambda reading: size("intermediate_size", default=22016)(reading) // 2,
            **tied(False),
            **DROPOUT,
            **biases(YES, inverse(flag("no_bias", default=True)), inverse(flag("no_bias", default=True))),
        },
    ),
    "smollm3": Family(
        "SmolLM3DecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **sizes(2048, 36, 16, 11008, 128256, 4, length=32768),
            **tied(True),
            "windows": windows.windowed(windows.without_rotary),
            "mixers": attention(no_rope_layers()),
        },
    ),
    "baichuan": Family(  # modeling_baichuan.py: 13B has alibi and no max_position_embeddings
        "BaichuanLayer",
        {
            **sizes(4096, 32, 32, 11008, 125696, length=4096),
            **tied(False),
            "positions": choose(
                lambda reading: optional_size("max_position_embeddings", what="rows")(reading) is None,
                "alibi",
                "rotary",
            ),
        },
    ),
    "internlm": Family("InternLMDecoderLayer", {**LLAMA, **biases(flag("bias", default=True), mlp=NO)}),
    "internlm2": Family(
        "InternLM2DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 11008, 103168, length=2048),
            **biases(flag("bias", default=True), mlp=NO),
        },
    ),
    "internlm3": Family(
        "InternLM3DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 11008, 128512, length=32768),
            **biases(flag("qkv_bias"), flag("bias"), flag("bias")),
        },
    ),
    "exaone": Family("LlamaDecoderLayer", {**LLAMA, **sizes(4096, 32, 32, 14336, 102400, 8, length=4096)}),
    "seed_oss": Family(
        "SeedOssDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 64, 80, 27648, 155136, 8, 128, 524288),
            **biases(flag("attention_bias", default=True), flag("attention_out_bias"), flag("mlp_bias")),
        },
    ),
    "arcee": Family(
        "ArceeDecoderLayer",
        {**LLAMA, **LLAMA_BIAS, **PLAIN_MLP, **sizes(2560, 32, 32, 18432, 32000, length=4096)},
    ),
    "helium": Family(
        "HeliumDecoderLayer",
        {
            **LLAMA,
            **biases(flag("attention_bias"), NO, flag("mlp_bias")),
            **sizes(2560, 24, 20, 7040, 48000, 20, 128, 4096),
        },
    ),
    "ernie4_5": Family(
        "Ernie4_5DecoderLayer",
        {
            **LLAMA,
            **tied(True),
            **biases(flag("use_bias")),
            **sizes(1024, 18, 16, 3072, 103424, 2, 128, 131072),
        },
    ),
    "cwm": Family(
        "CwmDecoderLayer",
        {
            **LLAMA,
            **biases(NO, mlp=flag("mlp_bias")),
            **sizes(6144, 64, 48, 21504, 128256, 8, 128, 131072),
            "windows": windows.windowed(windows.all_but_first_of(4), 8192),
        },
    ),
    "granite_swa": Family(
        "GraniteSWADecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **tied(True),
            **sizes(2560, 24, 20, 8192, 100352, 4, length=8192),
            "windows": windows.windowed(windows.all_but_first_of(4), 128),
            "mixers": attention(sinks=True),
        },
    ),
    "ministral3": Family(
        "Ministral3DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 34, 32, 14336, 131072, 8, 128, 262144),
            "windows": windows.windowed(windows.all_layers),
        },
    ),
    "iquestcoder": Family(
        "LlamaDecoderLayer",
        {**LLAMA, **LLAMA_BIAS, **sizes(5120, 80, 40, 27648, 76800, 8, 128, 131072)},
    ),
}
