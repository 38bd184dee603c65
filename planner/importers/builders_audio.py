"""Audio-language models: a Whisper-like tower, a projector, and a decoder that audio tokens join.

Audio tokens are told like image tokens: what a sample's clips add to its decoder's sequence
(``image_tokens`` of a job).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Segment, assemble, chain
from meshwright.planner.audio import spectrogram_kinds
from meshwright.planner.encoders import BlockSpec, block_kind
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.importers.attributes import beside
from meshwright.planner.importers.builders_vlm import IMAGE, decoder_pieces, text_part
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_vlm import VisionLanguage
from meshwright.planner.importers.reading import assumptions, part
from meshwright.planner.importers.rules import Rule, dropout, quotient, read_fields, size
from meshwright.planner.pieces import activation, dense, norm

AUDIO: Final = "audio"
FRAMES: Final = "frames"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec:
    """The tower: sizes, and the positions of one clip."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    mel_bins: int
    positions: int
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class AudioLanguage:
    """One family: the tower's type, the parts as a vision-language family names them, and the projector.

    ``merge`` tells how many of the tower's tokens become one of the decoder's.
    """

    tower: str
    parts: VisionLanguage
    merge: Callable[[AudioSpec], int]
    projector: Callable[[AudioSpec, int], tuple[Operator, ...]]


def _pooled(spec: AudioSpec, text_hidden: int) -> tuple[Operator, ...]:
    """Qwen2-Audio: the mean of two tokens, the tower's norm, a linear layer."""
    h = spec.hidden
    return (
        Pointwise("pooling", "sequence", 2 * h, h),
        norm("tower_norm", h),
        dense("projector", h, text_hidden),
    )


def _grouped(spec: AudioSpec, text_hidden: int) -> tuple[Operator, ...]:
    """Voxtral: the tower's norm, tokens laid side by side, two layers without biases."""
    weights = Pointwise(
        "tower_norm", "sequence", spec.ffn, spec.ffn, spec.ffn, weights=2 * spec.hidden, light=True
    )
    return (
        weights,
        dense("projector_in", spec.ffn, text_hidden, bias=False, saves_output=True),
        activation("projector_activation", text_hidden),
        dense("projector_out", text_hidden, text_hidden, bias=False),
    )


def _parts(text: str, **absent: int) -> VisionLanguage:
    return VisionLanguage("", text, lambda _: (), lambda _: 1.0, text_absent=absent, merges_text=True)


AUDIO_LANGUAGE: Final[Mapping[str, AudioLanguage]] = {
    "qwen2_audio": AudioLanguage("qwen2_audio_encoder", _parts("qwen2"), lambda _: 2, _pooled),
    "voxtral": AudioLanguage(
        "voxtral_encoder",
        _parts(
            "llama",
            vocab_size=131072,
            hidden_size=3072,
            intermediate_size=8192,
            num_hidden_layers=30,
            num_key_value_heads=8,
            max_position_embeddings=131072,
            head_dim=128,
        ),
        lambda spec: max(1, spec.ffn // spec.hidden),
        _grouped,
    ),
}
"""Audio-language models by ``model_type``."""

TOWER: Final[Mapping[str, Rule]] = {
    "hidden": size("d_model", "hidden_size", default=1280),
    "layers": size("encoder_layers", "num_hidden_layers", default=32, what="layers"),
    "heads": size("encoder_attention_heads", "num_attention_heads", default=20, what="heads"),
    "head_dim": quotient("hidden", "heads"),
    "ffn": size("encoder_ffn_dim", "intermediate_size", default=5120),
    "mel_bins": size("num_mel_bins", default=128),
    "positions": size("max_source_positions", default=1500, what="rows"),
    "attention_dropout": dropout("attention_dropout"),
    "hidden_dropout": dropout("dropout"),
}
"""Both towers are Whisper's encoder."""


def _tower(spec: AudioSpec) -> tuple[Segment, Segment]:
    first = spectrogram_kinds(
        spec.hidden, spec.mel_bins, spec.positions, frames=FRAMES, stream=AUDIO, name="tower.embedding"
    )
    block = BlockSpec(
        hidden=spec.hidden,
        heads=spec.heads,
        head_dim=spec.head_dim,
        ffn=spec.ffn,
        qkv_biases=(True, False, True),
        attention_dropout=spec.attention_dropout,
        hidden_dropout=spec.hidden_dropout,
    )
    return Segment("frames", first), Segment("tower", (block_kind(block, "tower", AUDIO),) * spec.layers)


def audio_language(config: Config, name: str, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of an audio-language model.

    Raises
    ------
    ModelConfigError
        A part cannot be read.
    """
    family = AUDIO_LANGUAGE[config.model_type]
    inner = part(config, "audio_config", family.tower)
    spec = AudioSpec(**read_fields(inner, TOWER))
    text = text_part(config, name, family.parts, mtp=mtp)
    merge, tokens = family.merge(spec), max(1, spec.positions // family.merge(spec))
    projector = LayerKind(
        "projector", "block", family.projector(spec, text.hidden_size), text.hidden_size, IMAGE.name
    )
    segments = (*_tower(spec), Segment("projector", (projector,)), *decoder_pieces(text))
    return assemble(
        name,
        segments,
        chain(segments),
        tied=(("embedding", "head"),) if text.tied else (),
        family=config.model_type,
        block_class=text.block_class,
        streams=(
            Stream(FRAMES, "image", 2.0 * merge),
            Stream(AUDIO, "image", float(merge), tokens),
            IMAGE,
        ),
        notes=(*assumptions(inner, family.tower), *text.notes),
        **beside(text, spec.layers, spec.hidden, tokens),
    )
