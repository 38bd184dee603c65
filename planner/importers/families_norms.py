"""Families with gated or squared-ReLU MLPs whose norms, residuals or heads depart from Llama's."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.decoder import PRE_NORMS
from meshwright.planner.importers import windows
from meshwright.planner.importers.family import (
    ATTENTION_BIAS,
    DROPOUT,
    FOUR_NORMS,
    GEMMA,
    LAYER_NORM,
    LLAMA,
    LLAMA_BIAS,
    NO,
    ONE_NORM,
    PLAIN_MLP,
    POST_NORMS,
    YES,
    Family,
    biases,
    rotary,
    sizes,
    tied,
)
from meshwright.planner.importers.mixing import attention, sliding_only, sliding_or_alone
from meshwright.planner.importers.rules import (
    Rule,
    choose,
    constant,
    dropout,
    either,
    flag,
    inverse,
    quotient,
    same_as,
    size,
)
from meshwright.planner.importers.sparse_blocks import block_sparse


def _cohere(head_norm: Rule, length: int) -> dict[str, Rule]:
    """Command-R: one norm without shift, parallel, tied."""
    return {
        **sizes(8192, 40, 64, 22528, 256000, length=length),
        **tied(True),
        **DROPOUT,
        **ATTENTION_BIAS,
        "parallel": YES,
        "norms": constant(ONE_NORM),
        "qk_norm": choose(head_norm, "full", None),
    }


def _glm(norms: tuple[str, ...]) -> dict[str, Rule]:
    return {
        **sizes(4096, 40, 32, 13696, 151552, 2, 128, 131072),
        **tied(False),
        **DROPOUT,
        **biases(flag("attention_bias", default=True), NO, NO),
        **rotary(0.5),
        "norms": constant(norms),
    }


NORM_FAMILIES: Final[Mapping[str, Family]] = {
    "gemma": Family("GemmaDecoderLayer", {**sizes(3072, 28, 16, 24576, 256000, 16, 256, 8192), **GEMMA}),
    "gemma2": Family(
        "Gemma2DecoderLayer",
        {
            **sizes(2304, 26, 8, 9216, 256000, 4, 256, 8192),
            **GEMMA,
            "norms": constant(FOUR_NORMS),
            "windows": windows.windowed(windows.all_but_every(default=2), 4096),
        },
    ),
    "gemma3_text": Family(
        "Gemma3DecoderLayer",
        {
            **sizes(2304, 26, 8, 9216, 262208, 4, 256, 131072),
            **GEMMA,
            "norms": constant(FOUR_NORMS),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=6), 4096),
        },
    ),
    "vaultgemma": Family(
        "VaultGemmaDecoderLayer",
        {
            **sizes(2304, 26, 8, 9216, 256000, 4, 256, 8192),
            **GEMMA,
            "windows": windows.windowed(windows.all_but_every(default=2), 4096),
        },
    ),
    "phi3": Family(
        "Phi3DecoderLayer",
        {
            **LLAMA,
            **sizes(3072, 32, 32, 8192, 32064, length=4096),
            "windows": windows.windowed(windows.all_layers),
        },
    ),
    "phi3small": Family(  # modeling_phi3_small.py
        "Phi3SmallDecoderLayer",
        {
            **sizes(4096, 32, 32, 14336, 100352, 8, length=8192),
            "ffn": size("ff_intermediate_size", default=14336),
            **tied(True),
            **LAYER_NORM,
            **biases(YES),
            "hidden_dropout": dropout("ffn_dropout_prob", default=0.1),
            "embedding_dropout": dropout("embedding_dropout_prob", default=0.1),
            "mixers": block_sparse,
        },
        ("block-sparse attention is priced by the number of keys that a query sees",),
    ),
    "olmo": Family(
        "OlmoDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 11008, 50304, length=2048),
            **ATTENTION_BIAS,
            "norm_weight": NO,
        },
    ),
    "olmo2": Family(
        "Olmo2DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 11008, 50304, length=2048),
            **ATTENTION_BIAS,
            "norms": constant(POST_NORMS),
            "qk_norm": constant("full"),
        },
    ),
    "olmo3": Family(
        "Olmo3DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 11008, 50304, length=2048),
            **ATTENTION_BIAS,
            "norms": constant(POST_NORMS),
            "qk_norm": constant("full"),
            "windows": windows.windowed(windows.all_but_every(default=4), 4096),
        },
    ),
    "cohere": Family("CohereDecoderLayer", _cohere(flag("use_qk_norm"), 8192)),
    "cohere2": Family(
        "Cohere2DecoderLayer",
        {
            **_cohere(NO, 8192),
            "head_dim": quotient("hidden", "heads"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
            "mixers": attention(sliding_only),
        },
    ),
    "glm": Family("GlmDecoderLayer", _glm(PRE_NORMS)),
    "glm4": Family("Glm4DecoderLayer", _glm(FOUR_NORMS)),
    "chatglm": Family(  # modeling_chatglm.py of ChatGLM2/3 and GLM-4-9B
        "GLMBlock",
        {
            **sizes(4096, 28, 32, 13696, 65024, length=2048),
            "vocab": size("padded_vocab_size", "vocab_size", default=65024, what="vocab"),
            "kv_heads": choose(
                flag("multi_query_attention"),
                size("multi_query_group_num", default=1, what="heads"),
                same_as("heads"),
            ),
            "head_dim": size("kv_channels", default=128),
            **tied(False),
            **DROPOUT,
            **biases(
                either(flag("add_qkv_bias"), flag("add_bias_linear")),
                flag("add_bias_linear"),
                flag("add_bias_linear"),
            ),
            "norm_bias": inverse(flag("rmsnorm", default=True)),
            "final_norm": flag("post_layer_norm", default=True),
            **rotary(0.5),
        },
    ),
    "stablelm": Family(
        "StableLmDecoderLayer",
        {
            **LAYER_NORM,
            **sizes(2560, 32, 32, 6912, 50304, 32, length=4096),
            **tied(False),
            **DROPOUT,
            **biases(flag("use_qkv_bias"), NO, NO),
            "parallel": flag("use_parallel_residual"),
            "norms": choose(flag("use_parallel_residual"), ONE_NORM, PRE_NORMS),
            "qk_norm": choose(flag("qk_layernorm"), "full", None),
            **rotary(0.25),
        },
    ),
    "nemotron": Family(
        "NemotronDecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **LAYER_NORM,
            **PLAIN_MLP,
            **sizes(6144, 32, 48, 24576, 256000, length=4096),
            **rotary(0.5),
        },
    ),
    "exaone4": Family(
        "Exaone4DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 16384, 102400, 32, length=2048),
            "norms": constant(POST_NORMS),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
            "mixers": attention(sliding_or_alone),
        },
    ),
    "hunyuan_v1_dense": Family(
        "HunYuanDenseV1DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 32, 11008, 290943, length=2048),
            "qk_norm": constant("head"),
        },
    ),
    "jais2": Family(
        "Jais2DecoderLayer",
        {
            **LAYER_NORM,
            **PLAIN_MLP,
            **sizes(3328, 32, 26, 26624, 150272, length=8192),
            **tied(False),
            **DROPOUT,
            **biases(flag("attention_bias", default=True), mlp=flag("mlp_bias", default=True)),
        },
    ),
    "hyperclovax": Family(
        "HyperCLOVAXDecoderLayer",
        {**LLAMA, **LLAMA_BIAS, "norms": choose(flag("use_post_norm", default=True), FOUR_NORMS, PRE_NORMS)},
    ),
    "nanochat": Family(  # norms without weights
        "NanoChatDecoderLayer",
        {
            **PLAIN_MLP,
            **sizes(768, 12, 6, 8192, 50304, length=2048),
            **tied(False),
            **DROPOUT,
            **ATTENTION_BIAS,
            "norm_weight": NO,
            "qk_norm": constant("plain"),
        },
    ),
    "apertus": Family(
        "ApertusDecoderLayer",
        {
            **LLAMA,
            **PLAIN_MLP,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 32, 14336, 131072, length=65536),
            "activation_weights": constant(2),
            "qk_norm": constant("head"),
        },
    ),
}
