"""Encoder-decoders: source embedding, encoder, target embedding, decoder with cross attention, head.

Every decoder layer reads the encoder's output; in the chain that a pipeline cuts, each stage between hands
it on. The encoder works on the main stream (the source), the decoder on ``target``.
"""

from typing import Any, Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Join, Segment, assemble, every
from meshwright.planner.audio import spectrogram_kinds
from meshwright.planner.encoders import BlockSpec, EmbeddingSpec, block_kind, embedding_kind
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.importers.attributes import Attributes
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_seq2seq import SEQ2SEQ_FAMILIES, Seq2SeqSpec
from meshwright.planner.importers.reading import architecture, assumptions, head_note, labels
from meshwright.planner.importers.rules import read_fields
from meshwright.planner.pieces import few_tokens, language_head, norm

TARGET: Final = Stream("target", "target")
FRAMES: Final = Stream("frames", "sequence", ratio=2.0)
"""Whisper's second convolution halves the frames."""

GENERATES: Final = ("ForConditionalGeneration", "MTModel")
HEADS: Final = (*GENERATES, "ForSequenceClassification", "EncoderModel", "Model")


def _block(spec: Seq2SeqSpec, *, decoder: bool) -> BlockSpec:
    heads = spec.decoder_heads if decoder else spec.heads
    return BlockSpec(
        hidden=spec.hidden,
        heads=heads,
        head_dim=spec.decoder_head_dim if decoder else spec.head_dim,
        ffn=spec.decoder_ffn if decoder else spec.ffn,
        place=spec.place,
        norm_bias=spec.norm_bias,
        qkv_biases=(spec.biases, spec.biases and spec.key_bias, spec.biases),
        out_bias=spec.biases,
        mlp_bias=spec.biases,
        gated=spec.gated,
        causal=decoder,
        context=spec.hidden if decoder else None,
        extra_weights=spec.buckets * heads * spec.every_layer,
        attention_dropout=spec.attention_dropout,
        hidden_dropout=spec.hidden_dropout,
    )


def _token_embedding(spec: Seq2SeqSpec, *, decoder: bool) -> LayerKind:
    """Return the embedding of source or target; a tied decoder's table is the encoder's."""
    heads = spec.decoder_heads if decoder else spec.heads
    embedding = EmbeddingSpec(
        vocab=spec.vocab,
        hidden=spec.hidden,
        position_rows=spec.target_rows if decoder else spec.source_rows,
        norm=spec.embedding_norm,
        norm_bias=spec.norm_bias,
        tied=decoder and spec.tied and not spec.mel_bins,
        extra_weights=spec.buckets * heads * (not spec.every_layer)
        # transformers keeps the shared table beside the two where they are not tied
        + spec.vocab * spec.hidden * (not decoder and not spec.tied),
        dropout=spec.hidden_dropout,
    )
    if decoder:
        return embedding_kind(embedding, "decoder.embedding", "target", carries=spec.hidden)
    return embedding_kind(embedding, "encoder.embedding")


def _final_norm(spec: Seq2SeqSpec) -> tuple[Operator, ...]:
    return (norm("final_norm", spec.hidden, bias=spec.norm_bias),) if spec.final_norm else ()


def _head(spec: Seq2SeqSpec, head: str, classes: int) -> tuple[Operator, ...]:
    """Return what stands behind the last block."""
    h = spec.hidden
    if head in GENERATES:
        return *_final_norm(spec), *language_head(h, spec.vocab, tied=spec.tied)
    pooling = Pointwise("pooling", "sequence", h, 0)
    if head == "ForSequenceClassification":
        return *_final_norm(spec), pooling, few_tokens("classifier", h * h + h + classes * h + classes)
    return *_final_norm(spec), pooling


def _encoder(spec: Seq2SeqSpec) -> tuple[Segment, ...]:
    embedding: tuple[LayerKind, ...] = (_token_embedding(spec, decoder=False),)
    if spec.mel_bins:
        embedding = spectrogram_kinds(
            spec.hidden,
            spec.mel_bins,
            spec.source_rows,
            frames=FRAMES.name,
            stream="text",
            name="encoder.embedding",
        )
    blocks = (block_kind(_block(spec, decoder=False), "encoder"),) * spec.encoder_layers
    return Segment("source", embedding), Segment("encoder", blocks)


def _decoder(spec: Seq2SeqSpec) -> tuple[Segment, ...]:
    blocks = (block_kind(_block(spec, decoder=True), "decoder", "target"),) * spec.decoder_layers
    return Segment("target", (_token_embedding(spec, decoder=True),)), Segment("decoder", blocks)


def _sizes(spec: Seq2SeqSpec) -> Attributes:
    """Return the sizes of both stacks."""
    return {
        "hidden": spec.hidden,
        "layers": spec.encoder_layers + spec.decoder_layers,
        "heads": spec.heads,
        "kv_heads": spec.heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn,
        "vocab": spec.vocab,
        "gated": spec.gated,
        "positions": "relative" if spec.buckets else "learned",
        "target_positions": _target_positions(spec),
        "tied": spec.tied,
        "encoder_layers": spec.encoder_layers,
        "decoder_layers": spec.decoder_layers,
    }


def _target_positions(spec: Seq2SeqSpec) -> int | None:
    """Return the target tokens that the positions allow: Whisper's decoder has a table of its own length."""
    own = spec.target_rows != spec.source_rows
    return spec.target_rows if own else spec.max_sequence_length


def encoder_decoder(config: Config, name: str) -> ModelGraph:
    """Return the graph of an encoder-decoder, or of its encoder where ``architectures`` says so.

    Raises
    ------
    ModelConfigError
        A value is not allowed, or ``architectures`` names a head that is not known.
    """
    family = SEQ2SEQ_FAMILIES[config.model_type]
    spec = Seq2SeqSpec(**read_fields(config, family.rules))
    head = architecture(config, HEADS, GENERATES[0])
    fields: dict[str, Any] = {
        "family": config.model_type,
        "hidden_size": spec.hidden,
        "vocab_size": spec.vocab,
        "max_sequence_length": spec.max_sequence_length,
        "block_class": family.block_class,
        "notes": (*head_note(config, head), *assumptions(config, config.model_type)),
        "attributes": _sizes(spec),
    }
    source, encoder = _encoder(spec)
    first = Join("source", "encoder")
    if head == "EncoderModel":
        last = Segment("head", (LayerKind("head", "head", _head(spec, head, 0), spec.hidden),))
        return assemble(name, (source, encoder, last), (first, Join("encoder", "head")), **fields)
    target, decoder = _decoder(spec)
    operators = _head(spec, head, labels(config, family.labels))
    ending = Segment("head", (LayerKind("head", "head", operators, spec.hidden, "target"),))
    middle: tuple[Segment, ...] = ()
    if spec.final_norm:
        middle = (
            Segment("encoder.norm", (LayerKind("encoder.norm", "block", _final_norm(spec), spec.hidden),)),
        )
    output = middle[0].name if middle else "encoder"
    joins = (
        first,
        *((Join("encoder", output),) if middle else ()),
        Join(output, "decoder", every(decoder)),
        Join("target", "decoder"),
        Join("decoder", "head"),
    )
    own = "target" if spec.mel_bins else "source"
    tied = [(own, "head")] if spec.tied and head in GENERATES else []
    if spec.tied and not spec.mel_bins:
        tied.append(("source", "target"))
    streams = (TARGET, FRAMES) if spec.mel_bins else (TARGET,)
    segments = (source, encoder, *middle, target, decoder, ending)
    return assemble(name, segments, joins, tied=tied, streams=streams, context="text", **fields)
