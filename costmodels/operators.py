"""Operators: what a layer is made of, as shapes with sharding rules.

A layer is a tuple of operators. Each operator knows its parameters (in all and on one rank), the work of
its forward and backward pass, the tensor-parallel traffic it causes, and what it keeps for the backward
pass. Sizes are counted per token; a :class:`~meshwright.costmodels.work.Shape` says how many tokens there
are and how they are split. Nothing here knows a time: :mod:`meshwright.costmodels.roofline` does.

Saved tensors belong to the operator that *produces* them, so recomputing an operator drops what it saves.
``light`` operators (norms, activation functions) are recomputed under ``selective`` recompute: they cost
little time and free much memory (arXiv 2205.05198, section 5; Megatron ``--recompute-modules``).
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

import numpy as np

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain, Weightless
from meshwright.costmodels.work import ONE_KERNEL, Chain, Gate, Shape, Strided, Traffic, Window, Work, chained
from meshwright.hardware.errors import MeshwrightError

Region = Literal["sequence", "tensor"]
WINDOWS: Final[tuple[Window, Window]] = ("input_gradient", "weight_gradient")
"""What runs beside the gathers and beside the reductions of a backward pass."""
PointwiseGroup = Literal["norm", "activation", "rotary", "residual", "other"]


class Operator(Protocol):
    """What the cost models ask of an operator; all methods broadcast over the fields of ``Shape``."""

    @property
    def name(self) -> str:
        """Its name within the layer."""
        ...

    @property
    def light(self) -> bool:
        """Whether ``selective`` recompute runs it again instead of keeping what it saves."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits, for the rules of legality."""
        ...

    @property
    def trained(self) -> bool:
        """Whether its weights are trained (frozen ones have no gradient and no optimizer state)."""
        ...

    @property
    def expert(self) -> bool:
        """Whether its weights belong to experts: split by ``ep`` and ``etp``, not by ``tp``."""
        ...

    @property
    def stored_bytes(self) -> float | None:
        """Bytes in which a frozen weight is stored; None: the recipe's element."""
        ...

    def parameters(self) -> int:
        """Return its parameters in the whole model, exactly (zero for a tied copy)."""
        ...

    def local_parameters(self, shape: Shape) -> Num:
        """Return the parameters on one tensor-parallel rank, with padding and replication."""
        ...

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the work of the forward pass on one rank."""
        ...

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the work of the backward pass (gradients of inputs and of weights)."""
        ...

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the tensor-parallel collectives of the forward and of the backward pass."""
        ...

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes it keeps for the backward pass on one rank."""
        ...


@dataclass(frozen=True, slots=True)
class Pointwise(Plain):
    """A memory-bound operator: norm, activation function, rotary embedding, residual, dropout.

    ``reads`` and ``writes`` are features per token of the forward pass; the backward pass moves
    ``backward_ratio`` times as much (gradient in, saved input, gradient out). ``saves`` features of its
    output (or of what it needs itself) are kept, ``mask_features`` more at one byte each (dropout).
    In the ``sequence`` region the tokens are split by sequence parallelism and the parameters whole on each
    rank; in the ``tensor`` region the features are split in ``units``. What it ``feeds_product`` alone is
    kept in that product's (8-bit) type. ``group`` is what a stack fuses together or leaves apart
    (:mod:`meshwright.costmodels.fusion`), ``chain`` how it runs there; ``gate`` how a gated activation joins
    its branches. A rotation may be ``scaled`` (YaRN's attention factor).
    """

    name: str
    region: Region
    reads: Num
    writes: Num
    saves: Num = 0
    mask_features: Num = 0
    weights: Num = 0
    units: Num = 1
    backward_ratio: float = 1.5
    light: bool = False
    trained: bool = True
    feeds_product: bool = False
    group: PointwiseGroup = "other"
    gate: Gate = "plain"
    scaled: bool = False
    chain: Chain = ONE_KERNEL

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return none: the products around it carry the rule."""
        return ()

    def parameters(self) -> int:
        """Return its scale and shift parameters."""
        return int(self.weights)

    def local_parameters(self, shape: Shape) -> Num:
        """Return all of them: norms are replicated over ``tp``."""
        return self.weights

    def _share(self, shape: Shape) -> Num:
        """Return the fraction of (tokens x features) on one rank."""
        if self.region == "sequence":
            return 1.0 / shape.sequence_split
        return ceil_div(self.units, shape.tp) / self.units

    def _bytes(self, shape: Shape) -> Num:
        """Return the bytes that one fused kernel reads and writes forward."""
        moved = (
            shape.tokens * (self.reads + self.writes) * shape.element_bytes
            + shape.tokens * self.mask_features
        )
        return moved * self._share(shape)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the bytes read and written once, times those of the chain."""
        moved = self.chain.forward * self._bytes(shape)
        return (self._chained(moved, self.chain.forward_kernels, self.chain.forward_strided, shape),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return ``backward_ratio`` times the bytes of the forward pass, times those of the chain."""
        moved = self.chain.backward * self.backward_ratio * self._bytes(shape)
        return (self._chained(moved, self.chain.backward_kernels, self.chain.backward_strided, shape),)

    def _chained(self, moved: Num, kernels: int, strided: Strided, shape: Shape) -> Work:
        made = shape.tokens * self.writes * self._share(shape)
        return chained(moved, kernels, strided, made, shape.element_bytes / 2)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes kept on one rank."""
        per_token = self._handed_bytes(shape) + self.mask_features + self._chain_bytes(shape)
        return shape.tokens * per_token * self._share(shape)

    def transient_bytes(self, shape: Shape) -> Num:
        """Return the gradients of output and input; its own output is gone, and a sum's are one."""
        made = self.reads * (self.group in ("norm", "activation", "rotary"))
        per_token = (made + self.writes) * shape.element_bytes - self._handed_bytes(shape)
        return shape.tokens * np.maximum(per_token, 0) * self._share(shape)

    def _handed_bytes(self, shape: Shape) -> Num:
        """Return what the next operator keeps of one token's output, in its own type."""
        return self.saves * (shape.product_bytes if self.feeds_product else shape.element_bytes)

    def _chain_bytes(self, shape: Shape) -> Num:
        """Return what a chain keeps of one token beside the output."""
        return self.chain.saved * self.writes * shape.element_bytes / 2


@dataclass(frozen=True, slots=True)
class Boundary(Weightless):
    """Where activations enter or leave the tensor-parallel region (arXiv 1909.08053, 2205.05198).

    With sequence parallelism ``enter`` all-gathers forward and reduce-scatters backward (and gathers again
    for the weight's gradient), ``exit`` the other way round. Without
    it ``exit`` all-reduces forward and ``enter`` backward. Costs nothing when ``tp`` is 1. ``on`` the
    ``context`` it is the other sequence's activations that enter (keys of cross attention). Where it
    ``keeps`` what it gathered for the weight's gradient (PyTorch's DTensor) nothing is gathered again. In
    front of projections that are modules of their own ``reductions`` of them each all-reduce their input's
    gradient; what sequence parallelism gathers in front of them all comes and goes once. ``quantised`` it
    gathers what a low-precision product reads, cast before; sums travel in 16 bits. ``beside`` the products
    of the backward pass ``enter`` sends what they need not wait for: it gathers again beside the input's
    gradient, and reduces or scatters that beside the weight's.
    """

    name: str
    direction: Literal["enter", "exit"]
    features: Num
    light: bool = False
    on: Literal["own", "context"] = "own"
    keeps: bool = False
    reductions: int = 1
    quantised: bool = False
    beside: bool = False
    trained: ClassVar[bool] = True

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return none: the network does the work."""
        return ()

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return none."""
        return ()

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the collectives forward and backward; bytes are zero for the variant not in use."""
        whole = self._whole(shape)
        split, joined = whole * shape.sequence_parallel, whole * (1 - 1 * shape.sequence_parallel)
        gathered = split * (shape.product_bytes / shape.element_bytes if self.quantised else 1)
        gather = Traffic("all_gather", gathered)
        if self.direction == "exit":
            return (Traffic("reduce_scatter", split), Traffic("all_reduce", joined)), (gather,)
        first, then = WINDOWS if self.beside else ("none", "none")
        again = Traffic("all_gather", gathered * (not self.keeps), first)
        scatter, reduce = Traffic("reduce_scatter", split, then), Traffic("all_reduce", joined, then)
        return (gather,), (again, scatter, *(reduce,) * self.reductions)

    def _whole(self, shape: Shape) -> Num:
        """Return the bytes of what crosses, whole; zero where nothing is split."""
        rows = shape.tokens if self.on == "own" else shape.context_tokens
        return rows * self.features * shape.element_bytes * (shape.tp > 1)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return what is kept beside the part that its producer keeps: the other ranks' parts, if at all."""
        kept = self.keeps and self.direction == "enter"
        return kept * self._whole(shape) * (1 - 1 / shape.sequence_split)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A group of layers with equal shapes: the unit that is priced once and placed many times.

    Attributes
    ----------
    name
        "embedding", "decoder", "decoder.sliding", "head" ...
    role
        Where it may sit and whether it can be recomputed: only ``block`` layers can.
    operators
        In the order of the forward pass; their names differ.
    hidden
        Features per token of what it hands to the next layer (a stage boundary carries this).
    stream
        Which of the model's token streams it works on (:class:`~meshwright.planner.graph.Stream`).
    carries
        Features per token of the *context* stream that a boundary behind it hands on as well (a decoder
        stage passes the encoder's output to the next).
    backward
        Whether it has a backward pass: nothing before the first trained weight needs one.
    low_precision
        Whether its products run in the recipe's 8- or 4-bit type (a recipe may keep the first and last blocks
        in 16 bits).
    again
        Names of the operators that selective recompute runs again; None: the light ones, and an attention
        core whose scores go through memory.
    by_operator
        Whether selective recompute keeps outputs of some operators and runs everything else again
        (:mod:`~meshwright.costmodels.by_operator`).

    Raises
    ------
    MeshwrightError
        If two operators have one name.
    """

    name: str
    role: Literal["embedding", "block", "head"]
    operators: tuple[Operator, ...]
    hidden: Num
    stream: str = "text"
    carries: Num = 0
    backward: bool = True
    low_precision: bool = True
    again: frozenset[str] | None = None
    by_operator: bool = False

    def __post_init__(self) -> None:
        names = [op.name for op in self.operators]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise MeshwrightError(f"layer kind {self.name}: two operators are named {twice[0]!r}; rename one")

    def parameters(self) -> int:
        """Return the parameters of one layer of this kind, tied copies not counted."""
        return sum(op.parameters() for op in self.operators)
