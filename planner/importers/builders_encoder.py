"""Text encoders (BERT and its kin): embedding, blocks, and the head of the class that the file names.

The head follows ``architectures`` in the file, or the class that the family is pre-trained with.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Segment, assemble, chain
from meshwright.planner.encoders import BlockSpec, EmbeddingSpec, block_kind, embedding_kind
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.attributes import block_sizes
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_encoder import ENCODER_FAMILIES, EncoderSpec
from meshwright.planner.importers.reading import architecture, assumptions, head_note, labels
from meshwright.planner.importers.rules import read_fields
from meshwright.planner.pieces import activation, dense, few_tokens, language_head, norm


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
    "Model": _pooled,
    "ForSequenceClassification": _classifier,
    "ForTokenClassification": _token_classifier,
}
"""Heads by the ending of the class's name; ``ForPreTraining`` is the family's own."""
PRETRAINING: Final[Mapping[str, Head]] = {"masked": _pretraining, "discriminator": _discriminator}
"""Heads of ``ForPreTraining`` by what the family says."""


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
        """Return the kind of one block."""
        own_norm = spec.first_norm or i > 0
        suffix = (".global" if window is None else ".sliding") if several else ""
        name = f"encoder{suffix}{'' if own_norm else '.first'}"
        return block_kind(_block(spec, window, first_norm=own_norm), name)

    return tuple(kind(i, w) for i, w in enumerate(windows))


def _embedding(spec: EncoderSpec) -> EmbeddingSpec:
    """Return the embedding of tokens, positions and types; relative positions share one table a model."""
    return EmbeddingSpec(
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
    table = {**HEADS, "ForPreTraining": PRETRAINING[family.pretraining]}
    head_name = architecture(config, tuple(table), family.head)
    final = (norm("final_norm", spec.hidden, bias=spec.norm_bias),) if spec.final_norm else ()
    operators = (*final, *table[head_name](spec, labels(config)))
    segments = (
        Segment("embedding", (embedding_kind(_embedding(spec)),)),
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
        attributes=block_sizes(
            spec,
            vocab=spec.vocab,
            kv_heads=spec.kv_heads,
            gated=spec.gated,
            positions="rotary" if spec.rotary else "learned",
            tied=spec.tied and has_vocabulary,
        ),
    )
