"""The encoder-decoder families: T5 and its kin, BART and its kin, Whisper; one table of rules each.

The defaults are those of the configuration classes in transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.planner.importers.family import NO, YES, tied
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    constant,
    dropout,
    plus,
    quotient,
    same_as,
    size,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2SeqSpec:
    """An encoder-decoder; the defaults are BART's switches.

    Attributes
    ----------
    hidden, vocab, encoder_layers, decoder_layers, heads, decoder_heads, ffn, decoder_ffn
        Sizes; those without a name are the encoder's.
    head_dim, decoder_head_dim
        Features of a head.
    source_rows, target_rows
        Rows of learned (or stored sinusoidal) positions; zero without them.
    max_sequence_length
        Source tokens that the positions allow, None if unbounded.
    place, norm_bias, embedding_norm, final_norm
        Where norms stand, whether they shift, whether the embeddings and the stacks end in one.
    biases, key_bias
        Whether products have biases, and the product of the keys among them (Whisper's has none).
    gated
        Whether the MLP multiplies two branches.
    buckets, every_layer
        Buckets of the position bias, and whether every layer has its own (UMT5).
    tied
        Whether the embeddings and the head are one table.
    mel_bins
        Channels of a spectrogram that two convolutions turn into tokens (Whisper), zero for text.
    """

    hidden: int
    vocab: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    decoder_heads: int
    ffn: int
    decoder_ffn: int
    head_dim: int
    decoder_head_dim: int
    source_rows: int = 0
    target_rows: int = 0
    max_sequence_length: int | None = None
    place: Literal["pre", "post"] = "post"
    norm_bias: bool = True
    embedding_norm: bool = False
    final_norm: bool = False
    biases: bool = True
    key_bias: bool = True
    gated: bool = False
    buckets: int = 0
    every_layer: bool = False
    tied: bool = True
    mel_bins: int = 0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Seq2SeqFamily:
    """How a ``model_type`` is read: its decoder block's class, its rules, the labels of a classifier."""

    block_class: str
    rules: Mapping[str, Rule]
    labels: int = 2


def _gated(default: str) -> Rule:
    """Return the rule for T5's ``feed_forward_proj``: "gated-gelu" has two branches."""

    def read(reading: Reading) -> bool:
        """Read whether the MLP is gated."""
        name, value = reading.config.find(("feed_forward_proj",))
        value = value if isinstance(value, str) else default
        parts = value.split("-")
        if len(parts) > 2 or (len(parts) == 2 and parts[0] != "gated"):
            reading.config.refuse(name, value, "gated-{function} or {function}")
        return parts[0] == "gated"

    return read


def _t5(
    hidden: int, kv: int, ffn: int, layers: int, heads: int, vocab: int, proj: str, own: bool = False
) -> dict[str, Rule]:
    return {
        "hidden": size("d_model", "hidden_size", default=hidden),
        "vocab": size("vocab_size", default=vocab, what="vocab"),
        "encoder_layers": size("num_layers", "num_hidden_layers", default=layers, what="layers"),
        "decoder_layers": size("num_decoder_layers", default=same_as("encoder_layers"), what="layers"),
        "heads": size("num_heads", "num_attention_heads", default=heads, what="heads"),
        "decoder_heads": same_as("heads"),
        "ffn": size("d_ff", default=ffn),
        "decoder_ffn": same_as("ffn"),
        "head_dim": size("d_kv", "head_dim", default=kv),
        "decoder_head_dim": same_as("head_dim"),
        "place": constant("pre"),
        "norm_bias": NO,
        "final_norm": YES,
        "biases": NO,
        "key_bias": NO,
        "gated": _gated(proj),
        "buckets": size("relative_attention_num_buckets", default=32, what="rows"),
        "every_layer": constant(own),
        # Whatever tie_word_embeddings says, these classes tie.
        "tied": YES,
        "attention_dropout": dropout("dropout_rate", default=0.1),
        "hidden_dropout": dropout("dropout_rate", default=0.1),
    }


def _bart(
    hidden: int, ffn: int, encoder: int, decoder: int, heads: int, vocab: int, length: int
) -> dict[str, Rule]:
    return {
        "hidden": size("d_model", "hidden_size", default=hidden),
        "vocab": size("vocab_size", default=vocab, what="vocab"),
        "encoder_layers": size("encoder_layers", "num_hidden_layers", default=encoder, what="layers"),
        "decoder_layers": size("decoder_layers", default=decoder, what="layers"),
        "heads": size("encoder_attention_heads", "num_attention_heads", default=heads, what="heads"),
        "decoder_heads": size("decoder_attention_heads", default=heads, what="heads"),
        "ffn": size("encoder_ffn_dim", default=ffn),
        "decoder_ffn": size("decoder_ffn_dim", default=ffn),
        "head_dim": quotient("hidden", "heads"),
        "decoder_head_dim": quotient("hidden", "decoder_heads"),
        "max_sequence_length": size("max_position_embeddings", default=length, what="rows"),
        "source_rows": same_as("max_sequence_length"),
        "target_rows": same_as("source_rows"),
        "attention_dropout": dropout("attention_dropout"),
        "hidden_dropout": dropout("dropout", default=0.1),
        **tied(True),
    }


def _two_more(rules: dict[str, Rule]) -> dict[str, Rule]:
    """BART's position table has two rows more than there are positions."""
    return {**rules, "source_rows": plus(same_as("max_sequence_length"), 2)}


_PRE: Final[dict[str, Rule]] = {"place": constant("pre"), "final_norm": YES}

SEQ2SEQ_FAMILIES: Final[Mapping[str, Seq2SeqFamily]] = {
    "t5": Seq2SeqFamily("T5Block", _t5(512, 64, 2048, 6, 8, 32128, "relu")),
    "mt5": Seq2SeqFamily("MT5Block", _t5(512, 64, 1024, 8, 6, 250112, "gated-gelu")),
    "umt5": Seq2SeqFamily("UMT5Block", _t5(512, 64, 1024, 8, 6, 250112, "gated-gelu", own=True)),
    "bart": Seq2SeqFamily(
        "BartDecoderLayer",
        {**_two_more(_bart(1024, 4096, 12, 12, 16, 50265, 1024)), "embedding_norm": YES},
        labels=3,
    ),
    "mbart": Seq2SeqFamily(
        "MBartDecoderLayer",
        {**_two_more(_bart(1024, 4096, 12, 12, 16, 50265, 1024)), **_PRE, "embedding_norm": YES},
    ),
    "plbart": Seq2SeqFamily(
        "PLBartDecoderLayer", {**_two_more(_bart(768, 3072, 6, 6, 12, 50005, 1024)), "embedding_norm": YES}
    ),
    "pegasus": Seq2SeqFamily("PegasusDecoderLayer", {**_bart(1024, 4096, 12, 12, 16, 50265, 1024), **_PRE}),
    "marian": Seq2SeqFamily("MarianDecoderLayer", _bart(1024, 4096, 12, 12, 16, 58101, 1024)),
    "blenderbot": Seq2SeqFamily(
        "BlenderbotDecoderLayer", {**_bart(2560, 10240, 2, 24, 32, 8008, 128), **_PRE}
    ),
    "blenderbot-small": Seq2SeqFamily(
        "BlenderbotSmallDecoderLayer",
        {**_bart(512, 2048, 8, 8, 16, 50265, 512), "embedding_norm": YES},
    ),
    "m2m_100": Seq2SeqFamily(
        "M2M100DecoderLayer",
        {
            **_bart(1024, 4096, 12, 12, 16, 128112, 1024),
            **_PRE,
            # Sinusoidal positions that are no parameters.
            "source_rows": constant(0),
            "attention_dropout": dropout("attention_dropout", default=0.1),
        },
    ),
    "whisper": Seq2SeqFamily(
        "WhisperDecoderLayer",
        {
            **_bart(384, 1536, 4, 4, 6, 51865, 1500),
            **_PRE,
            "max_sequence_length": size("max_source_positions", default=1500, what="rows"),
            "target_rows": size("max_target_positions", default=448, what="rows"),
            "key_bias": NO,
            "mel_bins": size("num_mel_bins", default=80),
            "hidden_dropout": dropout("dropout"),
        },
    ),
}
"""Encoder-decoders by ``model_type``."""
