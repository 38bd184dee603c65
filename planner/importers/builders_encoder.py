"""Text encoders (BERT and its kin): one table of rules a family, as for the decoders.

The defaults are those of the configuration classes in transformers 5.24; the head follows ``architectures``
in the file, or the class that the family is pre-trained with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Segment, assemble, chain
from meshwright.planner.encoders import BlockSpec, EmbeddingSpec, block_kind, embedding_kind
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.family import HIDDEN, NO, YES, sizes, tied
from meshwright.planner.importers.reading import architecture, assumptions, head_note, labels
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    constant,
    dropout,
    flag,
    read_fields,
    same_as,
    size,
)
from meshwright.planner.pieces import activation, dense, few_tokens, language_head, norm

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
    place: Any = "post"
    norm_bias: bool = True
    first_norm: bool = True
    final_norm: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
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
    """How a ``model_type`` is read: its rules, its block's class and the head it is pre-trained with."""

    block_class: str
    rules: Mapping[str, Rule]
    head: str = "ForMaskedLM"


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
        _, value = reading.config.find(("pad_token_id",))
        padding = value if isinstance(value, int) else 1
        return max(1, int(rows(reading)) - padding - 1)

    rows = rules["max_sequence_length"]
    return {**rules, "position_rows": rows, "max_sequence_length": length}


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
    "electra": EncoderFamily(
        "ElectraLayer",
        {
            **_bert(256, 12, 4, 1024, 30522),
            "embedding_width": size("embedding_size", default=128),
            "pooler": NO,
            "second_bias": NO,
        },
        "ForPreTraining",
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


def _transform(spec: EncoderSpec, width: int) -> tuple[Operator, ...]:
    """Return the dense layer, activation and norm before the vocabulary."""
    if not spec.transform:
        return ()
    return (
        dense("transform", spec.hidden, width, bias=spec.transform_bias, saves_output=True),
        activation("transform_activation", width),
        norm("transform_norm", width, bias=spec.norm_bias),
    )


def _masked(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    width = spec.hidden if spec.embedding_width is None else spec.embedding_width
    twice = few_tokens("second_bias", spec.vocab * (spec.second_bias and not spec.tied))
    return (
        twice,
        *_transform(spec, width),
        *language_head(width, spec.vocab, tied=spec.tied, bias=spec.head_bias),
    )


def _pooled(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    h = spec.hidden
    pooling = Pointwise("pooling", "sequence", h, 0)
    return (pooling, few_tokens("pooler", h * h + h)) if spec.pooler else (pooling,)


def _pretraining(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    """BERT: pooler and next-sentence classifier beside the language head."""
    return *_pooled(spec, labels), few_tokens("next_sentence", 2 * spec.hidden + 2), *_masked(spec, labels)


def _discriminator(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    """ELECTRA: is each token the original one?"""
    h = spec.hidden
    return dense("transform", h, h), activation("transform_activation", h), dense("prediction", h, 1)


def _classifier(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    """One dense layer over the pooled token, then the labels."""
    h = spec.hidden
    pooling = Pointwise("pooling", "sequence", h, 0)
    inner = h * h + h
    if spec.classifier_transform:
        inner = h * h + h * spec.transform_bias + h * (1 + spec.norm_bias)
    return pooling, few_tokens("classifier", inner + labels * h + labels)


def _token_classifier(spec: EncoderSpec, labels: int) -> tuple[Operator, ...]:
    return (dense("classifier", spec.hidden, labels),)


Head = Callable[[EncoderSpec, int], tuple[Operator, ...]]
HEADS: Final[Mapping[str, Head]] = {
    "ForMaskedLM": _masked,
    "LMHeadModel": _masked,
    "ForCausalLM": _masked,
    "ForPreTraining": _pretraining,
    "Model": _pooled,
    "ForSequenceClassification": _classifier,
    "ForTokenClassification": _token_classifier,
}
"""Heads by the ending of the class's name."""


def _block(spec: EncoderSpec, window: int | None, *, first_norm: bool) -> BlockSpec:
    own = {f.name for f in fields(EncoderSpec)}
    shared = {f.name: getattr(spec, f.name) for f in fields(BlockSpec) if f.name in own}
    shared |= {"window": window, "qkv_biases": (spec.qkv_bias,) * 3, "first_norm": first_norm}
    return BlockSpec(**shared)


def _blocks(spec: EncoderSpec) -> tuple[LayerKind, ...]:
    """Return the kind of each block, named after its window where there are several."""
    windows = spec.windows * spec.layers if len(spec.windows) == 1 else spec.windows
    several = len(set(windows)) > 1

    def kind(i: int, window: int | None) -> LayerKind:
        own_norm = spec.first_norm or i > 0
        suffix = (".global" if window is None else ".sliding") if several else ""
        name = f"encoder{suffix}{'' if own_norm else '.first'}"
        return block_kind(_block(spec, window, first_norm=own_norm), name)

    return tuple(kind(i, w) for i, w in enumerate(windows))


def encoder(config: Config, name: str) -> ModelGraph:
    """Return the graph of a text encoder: embedding, blocks, head.

    Raises
    ------
    ModelConfigError
        A value is not allowed, or ``architectures`` names a head that is not known.
    """
    model_type = config.model_type or "bert"
    family = ENCODER_FAMILIES[model_type]
    spec = EncoderSpec(**read_fields(config, family.rules))
    table = dict(HEADS)
    if model_type == "electra":
        table["ForPreTraining"] = _discriminator
    head_name = architecture(config, tuple(table), family.head)
    final = (norm("final_norm", spec.hidden, bias=spec.norm_bias),) if spec.final_norm else ()
    operators = (*final, *table[head_name](spec, labels(config)))
    embedding = EmbeddingSpec(
        vocab=spec.vocab,
        hidden=spec.hidden,
        width=spec.embedding_width,
        position_rows=spec.position_rows,
        type_rows=spec.type_rows,
        norm=spec.embedding_norm,
        norm_bias=spec.norm_bias,
        extra_weights=spec.buckets * spec.heads,
        dropout=spec.hidden_dropout,
    )
    segments = (
        Segment("embedding", (embedding_kind(embedding),)),
        Segment("encoder", _blocks(spec)),
        Segment("head", (LayerKind("head", "head", operators, spec.hidden),)),
    )
    has_vocabulary = any(op.name == "lm_head" for op in operators)
    return assemble(
        name,
        segments,
        chain(segments),
        tied=(("embedding", "head"),) if spec.tied and has_vocabulary else (),
        family=model_type,
        hidden_size=spec.hidden,
        vocab_size=spec.vocab,
        max_sequence_length=spec.max_sequence_length,
        block_class=family.block_class,
        notes=(*head_note(config, head_name), *assumptions(config, model_type)),
        attributes={
            "hidden": spec.hidden,
            "layers": spec.layers,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "ffn": spec.ffn,
            "vocab": spec.vocab,
            "gated": spec.gated,
            "positions": "rotary" if spec.rotary else "learned",
            "tied": spec.tied and has_vocabulary,
        },
    )
