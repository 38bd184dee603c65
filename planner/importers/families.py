"""The families: for each ``model_type`` a table of rules, one for each field that differs from Llama.

The defaults are those of the configuration classes in transformers 5.24 (``PreTrainedConfig``
subclasses), so that a file which omits a key means here what it means there; families that exist only as
code beside a model (Baichuan, ChatGLM, InternLM, Qwen) follow their published ``modeling_*.py``. To add a
family, add a row; ``tests/frameworks/test_parameter_counts.py`` compares it with the framework's class.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.planner.blocks import PRE_NORMS
from meshwright.planner.importers import windows
from meshwright.planner.importers.rules import (
    Default,
    Rule,
    choose,
    constant,
    dropout,
    either,
    every,
    flag,
    inverse,
    optional_size,
    plus,
    quotient,
    same_as,
    size,
    times,
)

HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN: Final = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff")
LENGTH: Final = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
POST_NORMS: Final = ("post_attention", "post_mlp")
FOUR_NORMS: Final = ("pre_attention", "post_attention", "pre_mlp", "post_mlp")
ONE_NORM: Final = ("pre_attention",)

YES: Final = constant(True)
NO: Final = constant(False)


@dataclass(frozen=True, slots=True)
class Family:
    """How a ``model_type`` is read: its rules, the framework's block class, and what reading leaves out."""

    block_class: str | None
    rules: Mapping[str, Rule]
    notes: tuple[str, ...] = ()


def sizes(
    hidden: int | None,
    layers: int | None,
    heads: int | None,
    ffn: Default,
    vocab: int | None,
    kv_heads: Default = None,
    head_dim: int | None = None,
    length: int | None = None,
) -> dict[str, Rule]:
    """Return rules for the sizes with a class's defaults; None: the key is required (or derived)."""
    heads_alike, even = same_as("heads"), quotient("hidden", "heads")
    return {
        "hidden": size(*HIDDEN, default=hidden),
        "layers": size(*LAYERS, default=layers, what="layers"),
        "heads": size(*HEADS, default=heads, what="heads"),
        "kv_heads": size(*KV_HEADS, default=kv_heads or heads_alike, null=heads_alike, what="heads"),
        "head_dim": size("head_dim", default=head_dim or even, null=even),
        "ffn": size(*FFN, default=ffn, null=ffn if callable(ffn) else None),
        "vocab": size("vocab_size", default=vocab, what="vocab"),
        "max_sequence_length": optional_size(*LENGTH, default=length, what="rows"),
    }


def biases(qkv: Rule, o: Rule | None = None, mlp: Rule | None = None) -> dict[str, Rule]:
    """Return rules for the biases; without ``o`` and ``mlp`` one switch is meant for all."""
    return {"qkv_bias": qkv, "o_bias": o or qkv, "mlp_bias": mlp or qkv}


def tied(default: bool) -> dict[str, Rule]:
    """Return the rule for tied embeddings."""
    return {"tied": flag("tie_word_embeddings", default=default)}


def learned(extra_rows: int = 0) -> dict[str, Rule]:
    """Return the rules for learned positions, ``extra_rows`` more than there are tokens (OPT: 2)."""
    return {
        "positions": constant("learned"),
        "position_rows": plus(same_as("max_sequence_length"), extra_rows),
    }


DROPOUT: Final[dict[str, Rule]] = {
    "attention_dropout": dropout("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
    "hidden_dropout": dropout("hidden_dropout", "resid_pdrop", "residual_dropout", "dropout"),
    "embedding_dropout": dropout("embd_pdrop", "embedding_dropout", "emb_pdrop"),
}
GPT2_DROPOUT: Final[dict[str, Rule]] = {
    "attention_dropout": dropout("attn_pdrop", default=0.1),
    "hidden_dropout": dropout("resid_pdrop", default=0.1),
    "embedding_dropout": dropout("embd_pdrop", default=0.1),
}
LAYER_NORM: Final[dict[str, Rule]] = {"norm_bias": YES}
PLAIN_MLP: Final[dict[str, Rule]] = {"gated": NO}
ATTENTION_BIAS: Final = biases(flag("attention_bias"), mlp=NO)
LLAMA_BIAS: Final = biases(flag("attention_bias"), mlp=flag("mlp_bias"))
FOUR_TIMES: Final = times(same_as("hidden"), 4)

LLAMA: Final = {**sizes(4096, 32, 32, 11008, 32000, length=2048), **tied(False), **DROPOUT}
GEMMA: Final = {**tied(True), **DROPOUT, **ATTENTION_BIAS}
GPT: Final = {**LAYER_NORM, **PLAIN_MLP, **DROPOUT, **biases(YES)}


def _qwen(qkv_bias: Rule, o_bias: Rule) -> dict[str, Rule]:
    return {
        **LLAMA,
        **sizes(4096, 32, 32, 22016, 151936, 32, length=32768),
        **biases(qkv_bias, o_bias, NO),
        "windows": windows.switched(windows.behind_max_window_layers, "use_sliding_window", 4096),
    }


def _gptj() -> dict[str, Rule]:
    """GPT-J, CodeGen: one norm, parallel, rotary, products without biases but for MLP and head."""
    return {
        **GPT,
        **sizes(4096, 28, 16, FOUR_TIMES, 50400, length=2048),
        **tied(False),
        **biases(NO, NO, YES),
        "head_bias": YES,
        "parallel": YES,
        "norms": constant(ONE_NORM),
    }


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
        "norms": constant(norms),
    }


_FALCON_NEW: Final = flag("new_decoder_architecture")
_FALCON_PARALLEL: Final = flag("parallel_attn", default=True)
_FALCON_NORMS: Final = optional_size("num_ln_in_parallel_attn", default=choose(_FALCON_NEW, 2, 1))

FAMILIES: Final[Mapping[str, Family]] = {
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
    "phi": Family(
        "PhiDecoderLayer",
        {
            **GPT,
            **sizes(2048, 24, 32, 8192, 51200, length=2048),
            **tied(False),
            "head_bias": YES,
            "parallel": YES,
            "norms": constant(ONE_NORM),
            "qk_norm": choose(flag("qk_layernorm"), "head", None),
            "qk_norm_bias": YES,
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
        },
        ("block-sparse attention is priced as attention to all tokens",),
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
    "smollm3": Family(
        "SmolLM3DecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **sizes(2048, 36, 16, 11008, 128256, 4, length=32768),
            **tied(True),
            "windows": windows.windowed(windows.without_rotary),
        },
    ),
    "starcoder2": Family(
        "Starcoder2DecoderLayer",
        {
            **GPT,
            **sizes(3072, 30, 24, 12288, 49152, 2, length=4096),
            **tied(True),
            **biases(flag("use_bias", default=True)),
            "windows": windows.windowed(windows.all_layers),
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
    "cohere": Family("CohereDecoderLayer", _cohere(flag("use_qk_norm"), 8192)),
    "cohere2": Family(
        "Cohere2DecoderLayer",
        {
            **_cohere(NO, 8192),
            "head_dim": quotient("hidden", "heads"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
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
        },
    ),
    "persimmon": Family(
        "PersimmonDecoderLayer",
        {
            **GPT,
            **sizes(4096, 36, 64, 16384, 262144, length=16384),
            **tied(False),
            "qk_norm": choose(flag("qk_layernorm", default=True), "head", None),
            "qk_norm_bias": YES,
        },
    ),
    "exaone": Family("LlamaDecoderLayer", {**LLAMA, **sizes(4096, 32, 32, 14336, 102400, 8, length=4096)}),
    "exaone4": Family(
        "Exaone4DecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 16384, 102400, 32, length=2048),
            "norms": constant(POST_NORMS),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
        },
    ),
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
    "hunyuan_v1_dense": Family(
        "HunYuanDenseV1DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 32, 11008, 290943, length=2048),
            "qk_norm": constant("head"),
        },
    ),
    "gpt2": Family(
        "GPT2Block",
        {
            **GPT,
            **GPT2_DROPOUT,
            **sizes(768, 12, 12, FOUR_TIMES, 50257, length=1024),
            **tied(True),
            **learned(),
        },
    ),
    "gpt_bigcode": Family(
        "GPTBigCodeBlock",
        {
            **GPT,
            **GPT2_DROPOUT,
            **sizes(768, 12, 12, FOUR_TIMES, 50257, length=1024),
            "kv_heads": choose(flag("multi_query", default=True), 1, same_as("heads")),
            **tied(True),
            **learned(),
        },
    ),
    "gpt_neo": Family(
        "GPTNeoBlock",
        {
            **GPT,
            **sizes(2048, 24, 16, FOUR_TIMES, 50257, length=2048),
            **tied(True),
            **biases(NO, YES, YES),
            **learned(),
            "windows": windows.gpt_neo,
            "hidden_dropout": dropout("resid_dropout"),
            "embedding_dropout": dropout("embed_dropout"),
        },
    ),
    "gpt_neox": Family(
        "GPTNeoXLayer",
        {
            **GPT,
            **sizes(6144, 44, 64, 24576, 50432, length=2048),
            **tied(False),
            **biases(flag("attention_bias", default=True), mlp=YES),
            "parallel": flag("use_parallel_residual", default=True),
        },
    ),
    "gptj": Family("GPTJBlock", _gptj()),
    "codegen": Family("CodeGenBlock", _gptj()),
    "opt": Family(
        "OPTDecoderLayer",
        {
            **GPT,
            **sizes(768, 12, 12, 3072, 50272, length=2048),
            **tied(True),
            **biases(flag("enable_bias", default=True)),
            **learned(extra_rows=2),
            "norms": choose(flag("do_layer_norm_before", default=True), PRE_NORMS, POST_NORMS),
            "norm_weight": flag("layer_norm_elementwise_affine", default=True),
            "norm_bias": flag("layer_norm_elementwise_affine", default=True),
            "embedding_dim": optional_size("word_embed_proj_dim"),
            "final_norm": every(
                flag("do_layer_norm_before", default=True), inverse(flag("_remove_final_layer_norm"))
            ),
            "hidden_dropout": dropout("dropout", default=0.1),
        },
    ),
    "biogpt": Family(
        "BioGptDecoderLayer",
        {
            **GPT,
            **sizes(1024, 24, 16, 4096, 42384, length=1024),
            **tied(True),
            **learned(extra_rows=2),
            "hidden_dropout": dropout("hidden_dropout_prob", default=0.1),
            "attention_dropout": dropout("attention_probs_dropout_prob", default=0.1),
        },
    ),
    "xglm": Family(  # positions are sinusoids, computed and not learned
        "XGLMDecoderLayer",
        {
            **GPT,
            **sizes(1024, 24, 16, 4096, 256008, length=2048),
            **tied(True),
            "positions": constant("none"),
            "hidden_dropout": dropout("dropout", default=0.1),
            "attention_dropout": dropout("attention_dropout", default=0.1),
        },
    ),
    "bloom": Family(
        "BloomBlock",
        {
            **GPT,
            **sizes(64, 2, 8, FOUR_TIMES, 250880),
            "ffn": FOUR_TIMES,
            **tied(True),
            "positions": constant("alibi"),
            "embedding_norm": YES,
        },
    ),
    "falcon": Family(
        "FalconDecoderLayer",
        {
            **GPT,
            **sizes(4544, 32, 71, FOUR_TIMES, 65024, length=2048),
            "kv_heads": choose(
                _FALCON_NEW,
                size("num_kv_heads", "n_head_kv", default=same_as("heads"), what="heads"),
                choose(flag("multi_query", default=True), 1, same_as("heads")),
            ),
            **tied(True),
            **biases(flag("bias")),
            "positions": choose(flag("alibi"), "alibi", "rotary"),
            "parallel": either(_FALCON_NEW, _FALCON_PARALLEL),
            "norms": choose(
                every(_FALCON_PARALLEL, lambda reading: _FALCON_NORMS(reading) == 1), ONE_NORM, PRE_NORMS
            ),
        },
    ),
    "mpt": Family(
        "MptBlock",
        {
            **PLAIN_MLP,
            **sizes(2048, 24, 16, None, 50368, length=2048),
            "ffn": lambda reading: reading.fields["hidden"] * size("expansion_ratio", default=4)(reading),
            **tied(True),
            "norm_bias": inverse(flag("no_bias", default=True)),
            **biases(inverse(flag("no_bias", default=True))),
            "positions": choose(flag("attn_config.alibi", default=True), "alibi", "learned"),
            "position_rows": choose(
                flag("attn_config.alibi", default=True), 0, same_as("max_sequence_length")
            ),
            "hidden_dropout": dropout("resid_pdrop"),
            "embedding_dropout": dropout("emb_pdrop"),
            "attention_dropout": dropout("attn_config.attn_pdrop"),
        },
    ),
}
