"""Families in GPT's line: LayerNorm, plain MLP, biases; learned, rotary or alibi positions."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.decoder import PRE_NORMS
from meshwright.planner.importers import windows
from meshwright.planner.importers.family import (
    FOUR_TIMES,
    GPT,
    GPT2_DROPOUT,
    NO,
    ONE_NORM,
    PLAIN_MLP,
    POST_NORMS,
    YES,
    Family,
    biases,
    learned,
    rotary,
    rotary_width,
    sizes,
    tied,
)
from meshwright.planner.importers.rules import (
    Rule,
    choose,
    constant,
    dropout,
    either,
    every,
    flag,
    inverse,
    optional_size,
    same_as,
    size,
)


def _gptj() -> dict[str, Rule]:
    """GPT-J, CodeGen: one norm, parallel, rotary, products without biases but for MLP and head."""
    return {
        **GPT,
        **sizes(4096, 28, 16, FOUR_TIMES, 50400, length=2048),
        **tied(False),
        **biases(NO, NO, YES),
        "head_bias": YES,
        "rotary_share": rotary_width(64),
        "parallel": YES,
        "norms": constant(ONE_NORM),
    }


_FALCON_NEW: Final = flag("new_decoder_architecture")
_FALCON_PARALLEL: Final = flag("parallel_attn", default=True)
_FALCON_NORMS: Final = optional_size("num_ln_in_parallel_attn", default=choose(_FALCON_NEW, 2, 1))


GPT_FAMILIES: Final[Mapping[str, Family]] = {
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
            **rotary(0.25),
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
    "phi": Family(
        "PhiDecoderLayer",
        {
            **GPT,
            **sizes(2048, 24, 32, 8192, 51200, length=2048),
            **tied(False),
            **rotary(0.5),
            "head_bias": YES,
            "parallel": YES,
            "norms": constant(ONE_NORM),
            "qk_norm": choose(flag("qk_layernorm"), "head", None),
            "qk_norm_bias": YES,
        },
    ),
    "persimmon": Family(
        "PersimmonDecoderLayer",
        {
            **GPT,
            **sizes(4096, 36, 64, 16384, 262144, length=16384),
            **tied(False),
            **rotary(0.5),
            "qk_norm": choose(flag("qk_layernorm", default=True), "head", None),
            "qk_norm_bias": YES,
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
}
