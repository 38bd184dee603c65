"""The model as a directed graph of layers with kinds, shapes and tied parameters.

Layers are numbered in topological order; a pipeline cuts this order. Layers of equal shape share one
:class:`~meshwright.costmodels.operators.LayerKind`, which is priced once.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.vocabulary import Embedding

if TYPE_CHECKING:
    from meshwright.planner.decoder import DecoderSpec


@dataclass(frozen=True, slots=True)
class Stream:
    """How many tokens of a sample some layers see, told from the job's lengths.

    Attributes
    ----------
    name
        What :attr:`~meshwright.costmodels.operators.LayerKind.stream` refers to; ``text`` is the main one.
    source
        Which length of the job it follows: ``sequence`` (text and image tokens together where the model
        reads images), ``text`` (without images: where they do not join the text), ``target`` (the decoder of
        an encoder-decoder) or ``image``.
    ratio
        Tokens of the stream for each token of the source (4 patches merge into one image token).
    block
        Tokens of the source that make one sequence of their own (an image); None: all make one sequence.
    extra
        Tokens added to each sequence (a class token).
    """

    name: str
    source: Literal["sequence", "text", "target", "image"]
    ratio: float = 1.0
    block: int | None = None
    extra: int = 0


@dataclass(frozen=True)
class ModelGraph:
    """A model: its layer kinds, the kind of each layer in order, and the edges between layers.

    Attributes
    ----------
    name
        A preset's name, a folder's name or ``model_type``.
    kinds
        Distinct layer kinds.
    layer_kinds
        Kind index of each layer, in topological order (embedding first, head last for a decoder).
    edges
        Pairs of layer indices (from, to); a chain for a decoder.
    tied
        Pairs of layer indices that share a weight (embedding, head).
    vocab_size, hidden_size, max_sequence_length
        As the model's file says; the length is None where positions are unbounded.
    block_class
        The framework's class name of a decoder layer, for wrapping policies (``LlamaDecoderLayer``).
    family
        The ``model_type`` it was read as.
    notes
        What was assumed while reading it; shown to the user.
    streams
        Token streams other than plain text; empty for a decoder.
    context
        The stream that cross attention reads, None without one.
    mtp_parameters
        Parameters of multi-token-prediction layers that the file names and the framework's class leaves out.
    mtp_included
        Whether those layers are among the layers, and their parameters among ``parameters``.
    attributes
        Sizes that reports print, and words of the file that launch files hand on.
    spec
        The decoder that the graph was built from; None for other models and for those read from modules.
    """

    name: str
    family: str
    kinds: tuple[LayerKind, ...]
    layer_kinds: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    hidden_size: int
    vocab_size: int
    tied: tuple[tuple[int, int], ...] = ()
    max_sequence_length: int | None = None
    block_class: str | None = None
    notes: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = ()
    context: str | None = None
    mtp_parameters: int = 0
    mtp_included: bool = False
    attributes: dict[str, int | float | str | bool | None] = field(default_factory=dict, compare=False)
    spec: "DecoderSpec | None" = field(default=None, compare=False, repr=False)

    @property
    def num_layers(self) -> int:
        """All layers, the embedding and the head included."""
        return len(self.layer_kinds)

    @cached_property
    def block_layers(self) -> tuple[int, ...]:
        """Indices of the layers that repeat (role ``block``)."""
        return tuple(i for i, k in enumerate(self.layer_kinds) if self.kinds[k].role == "block")

    @cached_property
    def kind_counts(self) -> IntArray:
        """Layers of each kind, shape (kinds,)."""
        counts = Counter(self.layer_kinds)
        return np.array([counts[k] for k in range(len(self.kinds))], dtype=np.int64)

    @cached_property
    def prefix_counts(self) -> IntArray:
        """Layers of each kind among the first ``i`` layers, shape (layers + 1, kinds)."""
        one_hot = np.zeros((self.num_layers + 1, len(self.kinds)), dtype=np.int64)
        one_hot[np.arange(1, self.num_layers + 1), list(self.layer_kinds)] = 1
        return one_hot.cumsum(axis=0)

    @cached_property
    def parameters(self) -> int:
        """All parameters, tied ones counted once."""
        counts = self.kind_counts.tolist()
        return sum(n * kind.parameters() for n, kind in zip(counts, self.kinds, strict=True))

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token passes through: of the routed experts only those that it visits."""
        return self.parameters - sum(
            op.parameters() * (op.experts - op.topk) // op.experts
            for k in self.layer_kinds
            for op in self.kinds[k].operators
            if isinstance(op, ExpertGemm)
        )

    @cached_property
    def copied_parameters(self) -> int:
        """Parameters of heads and embeddings tied to another layer's; pipelines that part them copy them."""
        copies = (
            op
            for k in self.layer_kinds
            for op in self.kinds[k].operators
            if isinstance(op, Gemm | Embedding) and op.tied
        )
        return sum(replace(op, tied=False).parameters() - op.parameters() for op in copies)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Everything that tensor parallelism splits, each distinct part once."""
        return tuple(dict.fromkeys(p for kind in self.kinds for op in kind.operators for p in op.parts))
