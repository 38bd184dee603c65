"""Sizes of models that are no decoders, under the names that reports print them by."""

from typing import Any, Protocol, TypeAlias

from meshwright.planner.graph import ModelGraph

Attributes: TypeAlias = dict[str, int | float | str | bool | None]


class Sizes(Protocol):
    """What a specification says of its blocks."""

    @property
    def hidden(self) -> int:
        """Features of a token."""
        ...

    @property
    def layers(self) -> int:
        """Blocks."""
        ...

    @property
    def heads(self) -> int:
        """Heads of queries."""
        ...

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        ...

    @property
    def ffn(self) -> int:
        """Inner features of the MLP."""
        ...


def block_sizes(
    spec: Sizes,
    *,
    vocab: int = 0,
    kv_heads: int | None = None,
    gated: bool = False,
    positions: str = "learned",
    tied: bool = False,
) -> Attributes:
    """Return the sizes of a stack of blocks; by default keys have as many heads as queries."""
    return {
        "hidden": spec.hidden,
        "layers": spec.layers,
        "heads": spec.heads,
        "kv_heads": spec.heads if kv_heads is None else kv_heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn,
        "vocab": vocab,
        "gated": gated,
        "positions": positions,
        "tied": tied,
    }


def beside(text: ModelGraph, layers: int, hidden: int, tokens: int | None) -> dict[str, Any]:
    """Return the fields of a model's graph that are its decoder's, with a tower that hands it ``tokens``."""
    tower = {"tower_layers": layers, "tower_hidden": hidden, "image_tokens": tokens}
    return {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "max_sequence_length": text.max_sequence_length,
        "mtp_parameters": text.mtp_parameters,
        "mtp_included": text.mtp_included,
        "attributes": {**text.attributes, **tower},
    }
