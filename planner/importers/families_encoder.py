"""The text encoder families: BERT and its kin, one table of rules each.

The defaults are those of the configuration classes in transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.planner.importers.family import HIDDEN, NO, YES, sizes, tied
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    constant,
    dropout,
    flag,
    same_as,
    size,
)

Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A text encoder; the defaults are BERT's switches (fields as in ``BlockSpec`` and ``EmbeddingSpec``).

    Attributes
    ----------
    layers, max_sequence_length
        Blocks, and tokens that the positions allow.
    windows
        What each layer's attention sees on each side, one entry if all are alike.
    first_norm
        Whether the first block normalises before attention (ModernBERT's embedding already did).
    final_norm
        Whether a norm stands behind the last block.
    pooler
        Whether the bare model has a dense layer over the first token.
    transform, transform_bias, head_bias
        Whether the language head has a dense layer with norm before the vocabulary; the biases.
    classifier_transform
        Whether a classifier begins with that dense layer and norm (ModernBERT), not with a plain one.
    second_bias
        Whether an untied language head keeps a bias twice (BERT's ``decoder.bias`` and its own).
    buckets
        Buckets of a position bias that all layers share; zero without one.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_sequence_length: int | None
    embedding_width: int | None = None
    position_rows: int = 0
    type_rows: int = 0
    embedding_norm: bool = True
    place: Literal["pre", "post", "both"] = "post"
    norm_bias: bool = True
    first_norm: bool = True
    final_norm: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    down_bias: bool | None = None
    gated: bool = False
    causal: bool = False
    rotary: bool = False
    windows: Windows = (None,)
    buckets: int = 0
    pooler: bool = True
    transform: bool = True
    transform_bias: bool = True
    classifier_transform: bool = False
    second_bias: bool = False
    head_bias: bool = True
    tied: bool = True
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """How a ``model_type`` is read.

    Attributes
    ----------
    block_class
        Class of a block in transformers.
    rules
        From the file's keys to the fields of :class:`EncoderSpec`.
    head
        Ending of the class that it is pre-trained with.
    pretraining
        What ``ForPreTraining`` adds: a language head beside the pooler and a next-sentence classifier
        (``masked``), or a head that tells replaced tokens from original ones (``discriminator``).
    """

    block_class: str
    rules: Mapping[str, Rule]
    head: str = "ForMaskedLM"
    pretraining: Literal["masked", "discriminator"] = "masked"


def _positions(length: int) -> dict[str, Rule]:
    return {
        "max_sequence_length": size("max_position_embeddings", default=length, what="rows"),
        "position_rows": same_as("max_sequence_length"),
    }


def _bert(
    hidden: int, layers: int, heads: int, ffn: int, vocab: int, length: int = 512, types: int = 2
) -> dict[str, Rule]:
    return {
        **sizes(hidden, layers, heads, ffn, vocab),
        **_positions(length),
        "type_rows": size("type_vocab_size", default=types, what="rows"),
        "causal": flag("is_decoder"),
        "attention_dropout": dropout("attention_probs_dropout_prob", default=0.1),
        "hidden_dropout": dropout("hidden_dropout_prob", default=0.1),
        "second_bias": YES,
        **tied(True),
    }


def _beyond_padding(rules: dict[str, Rule]) -> dict[str, Rule]:
    """RoBERTa numbers positions from the padding token's id + 1: that many rows are no tokens."""

    def length(reading: Reading) -> int:
        """Return the rows behind the padding index."""
        _, value = reading.config.find(("pad_token_id",))
        padding = value if isinstance(value, int) else 1
        return max(1, int(rows(reading)) - padding - 1)

    rows = rules["max_sequence_length"]
    return {**rules, "position_rows": rows, "max_sequence_length": length}


def _task_types(reading: Reading) -> int:
    """ERNIE adds a row for each task to those for segments, if it is told to."""
    types = size("type_vocab_size", default=2, what="rows")(reading)
    tasks = size("task_type_vocab_size", default=3, what="rows")(reading)
    return int(types + tasks * flag("use_task_id")(reading))


def _modern_windows(reading: Reading) -> Windows:
    """Every third layer sees all tokens, the others half of ``local_attention`` on each side."""
    config, layers = reading.config, int(reading.fields["layers"])
    near = size("local_attention", default=128, what="rows")(reading) // 2 + 1
    _, listed = config.find(("layer_types",))
    if isinstance(listed, list) and len(listed) == layers:
        return tuple(near if name == "sliding_attention" else None for name in listed)
    every = size("global_attn_every_n_layers", default=3, what="layers")(reading)
    return tuple(near if i % every else None for i in range(layers))


_BERT: Final = _bert(768, 12, 12, 3072, 30522)
_ROBERTA: Final = {**_beyond_padding(_BERT), "vocab": size("vocab_size", default=50265, what="vocab")}

ENCODER_FAMILIES: Final[Mapping[str, EncoderFamily]] = {
    "bert": EncoderFamily("BertLayer", _BERT, "ForPreTraining"),
    "roberta": EncoderFamily("RobertaLayer", _ROBERTA),
    "xlm-roberta": EncoderFamily("XLMRobertaLayer", _beyond_padding(_BERT)),
    "camembert": EncoderFamily("CamembertLayer", _beyond_padding(_BERT)),
    "xlm-roberta-xl": EncoderFamily(
        "XLMRobertaXLLayer",
        {
            **_beyond_padding(_bert(2560, 36, 32, 10240, 250880, 514, 1)),
            "place": constant("pre"),
            "embedding_norm": NO,
            "final_norm": YES,
        },
    ),
    "data2vec-text": EncoderFamily("Data2VecTextLayer", _beyond_padding(_BERT)),
    "roberta-prelayernorm": EncoderFamily(
        "RobertaPreLayerNormLayer", {**_ROBERTA, "place": constant("pre"), "final_norm": YES}
    ),
    "megatron-bert": EncoderFamily(
        "MegatronBertLayer",
        {
            **_bert(1024, 24, 16, 4096, 29056),
            "place": constant("pre"),
            "embedding_norm": NO,
            "final_norm": YES,
        },
        "ForPreTraining",
    ),
    "ernie": EncoderFamily("ErnieLayer", {**_BERT, "type_rows": _task_types}),
    "jina_embeddings_v3": EncoderFamily(
        "JinaEmbeddingsV3Layer",
        {
            **_bert(1024, 24, 16, 4096, 250002, 8194, 1),
            "position_rows": constant(0),
            "rotary": YES,
        },
    ),
    "gte": EncoderFamily(
        "GteLayer",
        {
            **_bert(768, 12, 12, 3072, 250048, 8192, 1),
            "position_rows": constant(0),
            "rotary": YES,
            "gated": YES,
            "mlp_bias": NO,
            "down_bias": YES,
            "pooler": NO,
            "second_bias": NO,
        },
    ),
    "electra": EncoderFamily(
        "ElectraLayer",
        {
            **_bert(256, 12, 4, 1024, 30522),
            "embedding_width": size("embedding_size", default=128),
            "pooler": NO,
            "second_bias": NO,
        },
        "ForPreTraining",
        "discriminator",
    ),
    "mpnet": EncoderFamily(
        "MPNetLayer",
        {
            **_beyond_padding(_bert(768, 12, 12, 3072, 30527)),
            "type_rows": constant(0),
            "buckets": size("relative_attention_num_buckets", default=32, what="rows"),
        },
    ),
    "distilbert": EncoderFamily(
        "TransformerBlock",
        {
            "hidden": size("dim", *HIDDEN, default=768),
            "layers": size("n_layers", "num_hidden_layers", default=6, what="layers"),
            "heads": size("n_heads", "num_attention_heads", default=12, what="heads"),
            "kv_heads": same_as("heads"),
            "head_dim": sizes(None, None, None, None, None)["head_dim"],
            "ffn": size("hidden_dim", default=3072),
            "vocab": size("vocab_size", default=30522, what="vocab"),
            **_positions(512),
            "pooler": NO,
            "attention_dropout": dropout("attention_dropout", default=0.1),
            "hidden_dropout": dropout("dropout", default=0.1),
            **tied(True),
        },
    ),
    "modernbert": EncoderFamily(
        "ModernBertEncoderLayer",
        {
            **sizes(768, 22, 12, 1152, 50368, length=8192),
            "place": constant("pre"),
            "norm_bias": flag("norm_bias"),
            "first_norm": NO,
            "final_norm": YES,
            "qkv_bias": flag("attention_bias"),
            "out_bias": flag("attention_bias"),
            "mlp_bias": flag("mlp_bias"),
            "gated": YES,
            "rotary": YES,
            "windows": _modern_windows,
            "pooler": NO,
            "transform_bias": flag("classifier_bias"),
            "classifier_transform": YES,
            "head_bias": flag("decoder_bias", default=True),
            "attention_dropout": dropout("attention_dropout"),
            "hidden_dropout": dropout("mlp_dropout"),
            **tied(True),
        },
    ),
    "eurobert": EncoderFamily(
        "EuroBertDecoderLayer",
        {
            **sizes(768, 12, 12, 3072, 128256, length=8192),
            "embedding_norm": NO,
            "place": constant("pre"),
            "norm_bias": NO,
            "final_norm": YES,
            "qkv_bias": flag("attention_bias"),
            "out_bias": flag("attention_bias"),
            "mlp_bias": flag("mlp_bias"),
            "gated": YES,
            "rotary": YES,
            "pooler": NO,
            "transform": NO,
            "head_bias": NO,
            "attention_dropout": dropout("attention_dropout"),
            **tied(False),
        },
    ),
    "nomic_bert": EncoderFamily(
        "NomicBertLayer",
        {
            **sizes(768, 12, 12, 3072, 30528, length=2048),
            "type_rows": size("type_vocab_size", default=2, what="rows"),
            "qkv_bias": NO,
            "out_bias": NO,
            "mlp_bias": NO,
            "gated": YES,
            "rotary": YES,
            "pooler": NO,
            "second_bias": YES,
            "attention_dropout": dropout("attention_probs_dropout_prob"),
            "hidden_dropout": dropout("hidden_dropout_prob"),
            **tied(True),
        },
    ),
}
"""Encoders by ``model_type``."""
