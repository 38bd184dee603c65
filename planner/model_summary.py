"""What a model is before anything is split: parameters, FLOPs and activation bytes a token, by layer kind."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.recompute import MODES, saved_bytes
from meshwright.costmodels.work import Shape
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph
from meshwright.planner.job import Job
from meshwright.planner.lengths import check_lengths, length_notes, main_length, sample_shape

DEFAULT_SEQUENCE_LENGTH: Final = 4096
"""Where none is asked for and the model's positions allow it."""

FORWARD_PASSES_A_STEP: Final = 3
"""Model FLOPs of a training step in forward passes: the backward pass is two (arXiv 2204.02311, B)."""


@dataclass(frozen=True, slots=True)
class KindSummary:
    """One layer kind; sizes are of one layer of it.

    Attributes
    ----------
    name, role
        As in the graph.
    layers
        How many layers are of this kind.
    parameters
        Of one layer; a tied head counts none.
    forward_flops_per_token
        Of the forward pass at the summary's sequence length, causal attention halved.
    activation_bytes_per_token
        Kept for the backward pass by recompute mode, the layer's input included, on one device at 16 bits.
    """

    name: str
    role: str
    layers: int
    parameters: int
    forward_flops_per_token: float
    activation_bytes_per_token: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model's kinds and totals at one length; ``notes`` tell what was assumed, lengths included."""

    graph: ModelGraph
    sequence_length: int
    flash_attention: bool
    kinds: tuple[KindSummary, ...]
    notes: tuple[str, ...] = ()

    @property
    def forward_flops_per_token(self) -> float:
        """FLOPs of the forward pass of the whole model."""
        return sum(k.layers * k.forward_flops_per_token for k in self.kinds)

    @property
    def training_flops_per_token(self) -> float:
        """Model FLOPs of forward and backward pass, as MFU counts them (no recomputation)."""
        return FORWARD_PASSES_A_STEP * self.forward_flops_per_token

    @property
    def activation_bytes_per_token(self) -> dict[str, float]:
        """Bytes kept by the whole model, by recompute mode."""
        return {m: sum(k.layers * k.activation_bytes_per_token[m] for k in self.kinds) for m in MODES}


def summarise(
    graph: ModelGraph,
    sequence_length: int | None = None,
    *,
    flash_attention: bool = True,
    image_tokens: int | None = None,
) -> ModelSummary:
    """Return the summary of a model; layers of other streams are counted a token of the main one.

    Parameters
    ----------
    graph
        The model.
    sequence_length
        Tokens in a sequence; by default 4,096, or what the model's positions allow if that is less.
    flash_attention
        Whether the attention core keeps its log-sum-exp (flash) or its scores.
    image_tokens
        Tokens that images add to a sequence, for models that read images; by default none.

    Raises
    ------
    MeshwrightError
        The sequence length is not positive, or the model reads no images.
    """
    longest = graph.max_sequence_length or DEFAULT_SEQUENCE_LENGTH
    s = min(longest, DEFAULT_SEQUENCE_LENGTH) if sequence_length is None else sequence_length
    if s < 1:
        raise MeshwrightError(f"sequence length is {s}; allowed: 1 and more")
    sample = Job(global_batch_size=1, sequence_length=s, image_tokens=image_tokens)
    check_lengths(graph, sample)
    tokens = main_length(graph, sample)
    kinds = tuple(
        _summarise(
            _with_kernel(kind, flash_attention), int(layers), sample_shape(graph, sample, kind), tokens
        )
        for kind, layers in zip(graph.kinds, graph.kind_counts, strict=True)
    )
    notes = (*graph.notes, *length_notes(graph, sample))
    return ModelSummary(graph, s, flash_attention, kinds, notes)


def _with_kernel(kind: LayerKind, flash: bool) -> LayerKind:
    operators = (replace(op, flash=flash) if isinstance(op, Attention) else op for op in kind.operators)
    return replace(kind, operators=tuple(operators))


def _summarise(kind: LayerKind, layers: int, shape: Shape, tokens: int) -> KindSummary:
    flops = sum(float(work.flops) for op in kind.operators for work in op.forward(shape))
    kept = {mode: float(saved_bytes(kind, mode, shape)) / tokens for mode in MODES}
    return KindSummary(kind.name, kind.role, layers, kind.parameters(), flops / tokens, kept)
