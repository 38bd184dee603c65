"""What is as wide as the vocabulary: the embedding and the cross entropy over the logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain, Weightless
from meshwright.costmodels.work import Shape, Traffic, Work


@dataclass(frozen=True, slots=True)
class Embedding(Plain):
    """Token embedding (split over the vocabulary) with optional learned positions and token types.

    ``extra_rows`` are rows of ``hidden`` features that are whole on each rank (positions, types). A ``tied``
    table belongs to another layer (a decoder that shares its encoder's): it counts no parameters of the
    model, but occupies memory where a pipeline separates them. A ``whole`` one is on each tensor-parallel
    rank with all its rows (DeepSpeed's AutoTP).
    """

    name: str
    vocab: Part
    hidden: Num
    extra_rows: Num = 0
    light: bool = False
    trained: bool = True
    tied: bool = False
    whole: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: the vocabulary, unless each rank holds all of it."""
        return () if self.whole else (self.vocab,)

    def parameters(self) -> int:
        """Return the rows times the width; a tied table's rows are not counted again."""
        return int(((not self.tied) * self.vocab.units + self.extra_rows) * self.hidden)

    def local_parameters(self, shape: Shape) -> Num:
        """Return the rows on one rank times the width."""
        return (self._rows(shape) + self.extra_rows) * self.hidden

    def copied_parameters(self, shape: Shape) -> Num:
        """Return those on one rank that are a copy of another layer's: a tied table's rows."""
        return self.tied * self._rows(shape) * self.hidden

    def _rows(self, shape: Shape) -> Num:
        """Return the rows of the vocabulary on one rank."""
        ranks, multiple = (1, 1) if self.whole else (shape.tp, shape.vocab_multiple)
        return self.vocab.local(ranks, multiple) / (self.vocab.features / self.vocab.units)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the rows gathered: one read and one write a token."""
        return (Work("memory", 0.0, 2.0 * shape.tokens * self.hidden * shape.element_bytes),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the rows scattered: gradient read, row read and written in fp32; frozen rows have none."""
        if not self.trained:
            return ()
        return (Work("memory", 0.0, shape.tokens * self.hidden * (shape.element_bytes + 8.0)),)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the token ids (8 bytes each)."""
        return 8 * shape.tokens


@dataclass(frozen=True, slots=True)
class LossKernel:
    """How an implementation of the cross entropy treats the logits (bytes are per logit on one rank).

    Attributes
    ----------
    saved_bytes
        Kept from the head's forward to its backward pass.
    transient_bytes
        Alive at once at the peak, the saved ones included.
    forward_traffic, backward_traffic
        Bytes moved.
    chunk_fraction
        Share of the logits that exists at a time (chunked and fused implementations).
    repeats_head
        Whether the backward pass computes the logits again.
    gathered_bytes
        Left over where each rank gathers all logits: the ranks' parts, which became one tensor, are blocks of
        another size, and the allocator does not give them to what comes next.
    split_bytes, split_forward_traffic, split_backward_traffic
        More of all three where a tensor group keeps the logits split, for what a kernel does for whole rows
        is then a chain of tensors with a collective in between.
    """

    saved_bytes: float
    transient_bytes: float
    forward_traffic: float
    backward_traffic: float
    chunk_fraction: float = 1.0
    repeats_head: bool = False
    gathered_bytes: float = 0.0
    split_bytes: float = 0.0
    split_forward_traffic: float = 0.0
    split_backward_traffic: float = 0.0


@dataclass(frozen=True, slots=True)
class CrossEntropy(Weightless):
    """Cross entropy over logits that the head produced.

    Where it is ``parallel`` over the vocabulary, traffic over ``tp`` is maximum, sum and the target's logit,
    4 bytes a token each (Megatron-LM, ``vocab_parallel_cross_entropy``); else each rank gathers all logits
    and computes the whole loss. ``kernel`` says what happens to the logits, ``pipelined`` what does so at the
    end of a pipeline where that is another; it computes no head again.
    """

    name: str
    vocab: Part
    kernel: LossKernel
    parallel: bool = True
    pipelined: LossKernel | None = None
    light: bool = False
    trained: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: the vocabulary."""
        return (self.vocab,)

    def logits(self, shape: Shape) -> Num:
        """Return the logits on one rank: tokens times its share of the vocabulary, or all of it."""
        own = self.vocab.local(shape.tp, shape.vocab_multiple)
        return shape.tokens * own * (1 if self.parallel else shape.tp)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the bytes that softmax and loss move."""
        moved = self._told(shape, lambda k: k.forward_traffic + k.split_forward_traffic * self._split(shape))
        return (Work("memory", 0.0, self.logits(shape) * moved, kernels=3),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the bytes that the logits' gradient moves."""
        moved = self._told(
            shape, lambda k: k.backward_traffic + k.split_backward_traffic * self._split(shape)
        )
        return (Work("memory", 0.0, self.logits(shape) * moved, kernels=2),)

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return three small all-reduces forward, or the gathering of the logits."""
        if not self.parallel:
            return (Traffic("all_gather", self.logits(shape) * shape.element_bytes * (shape.tp > 1)),), ()
        small = 4.0 * shape.tokens * (shape.tp > 1)
        return (Traffic("all_reduce", small),) * 3, ()

    def saved_bytes(self, shape: Shape) -> Num:
        """Return what is kept of the logits."""
        return self.logits(shape) * self._told(shape, lambda k: k.saved_bytes)

    def transient_bytes(self, shape: Shape) -> Num:
        """Return the peak of what exists of the logits beyond what is saved."""
        gathered, split = 1.0 * (shape.tp > 1) * (not self.parallel), self._split(shape)

        def beyond(k: LossKernel) -> Num:
            """Return the same of one logit."""
            left = k.gathered_bytes * gathered + k.split_bytes * split
            return k.transient_bytes * k.chunk_fraction - k.saved_bytes + left

        return self.logits(shape) * self._told(shape, beyond)

    def _told(self, shape: Shape, figure: Callable[[LossKernel], Num]) -> Num:
        """Return a figure of the kernel in use: that of pipelines where it is another."""
        if self.pipelined is None:
            return figure(self.kernel)
        return np.where(shape.pipelined, figure(self.pipelined), figure(self.kernel))

    def _split(self, shape: Shape) -> Num:
        """Return 1 where ranks hold parts of the logits, else 0."""
        return 1.0 * (shape.tp > 1) * self.parallel
