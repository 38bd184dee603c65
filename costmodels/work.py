"""What an operator asks of a device (work) and of the network (traffic), before any time is known."""

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.arrays import Num

KernelClass = Literal["gemm", "attention", "memory", "vector"]
"""What binds a kernel beside memory: products of matrices, attention, nothing, or fp32 units (scans)."""
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "dispatch"
]
Group = Literal["tensor", "ulysses", "ring", "expert", "expert_tensor"]
"""Groups of ranks that an operator talks over; ``ulysses`` x ``ring`` make up the context group."""
Gate = Literal["plain", "clamped", "clamped_offset"]
"""How a gated activation joins its branches: ``silu(gate) * up``; the same of clamped branches (DeepSeek-V4's
``swiglu_limit``); clamped branches, a sigmoid of the scaled gate and one added to ``up`` (GPT-OSS)."""
Window = Literal["none", "self", "input_gradient", "weight_gradient"]
"""What a collective hides behind: nothing, its own operator's work, or the products next to it that make
their input's or their weight's gradient."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one rank runs in one pass of one micro-batch; every field broadcasts.

    Attributes
    ----------
    sequences
        Sequences in the micro-batch of one replica.
    sequence_length
        Tokens in a sequence.
    tp
        Tensor-parallel degree.
    sequence_parallel
        Whether norms and residuals are split over the sequence by ``tp`` (Megatron, arXiv 2205.05198).
    element_bytes
        Bytes of an activation element (2 for bf16 and fp16, 4 for fp32).
    vocab_multiple
        Each rank's share of the vocabulary is padded to a multiple of this (Megatron: 128).
    cp
        Context-parallel degree: every sequence is cut into so many equal parts.
    ulysses
        Of these, ranks that exchange heads for tokens around the attention core (all-to-all,
        arXiv 2309.14509); the other ``cp / ulysses`` exchange keys and values.
    ring
        Whether keys and values travel round a ring beside the core (1) or are gathered before it (0).
    ep, etp
        Expert-parallel and expert-tensor-parallel degree.
    expert_load
        Rows of the busiest expert rank over the mean (imbalance), or the capacity factor where rows are
        padded to a capacity.
    context_length
        Tokens of the other sequence that cross attention reads.
    quantised_bytes
        Bytes of a tensor element that feeds an 8-bit product; None: ``element_bytes``.
    cast_bytes
        Bytes moved to quantise one element of such a tensor.
    cast_kernels
        Kernels that quantise one such tensor.
    sent_bytes, turned_bytes
        Bytes moved to quantise one element that a tensor group then gathers, and to lay it out again behind.
    pipelined
        Whether it runs in a pipeline of several stages.
    """

    sequences: Num
    sequence_length: Num
    tp: Num
    sequence_parallel: Num
    element_bytes: Num = 2
    vocab_multiple: Num = 1
    cp: Num = 1
    ulysses: Num = 1
    ring: Num = 1
    ep: Num = 1
    etp: Num = 1
    expert_load: Num = 1.0
    context_length: Num = 0
    quantised_bytes: Num | None = None
    cast_bytes: Num = 0.0
    cast_kernels: Num = 1
    sent_bytes: Num = 0.0
    turned_bytes: Num = 0.0
    pipelined: Num = False

    @property
    def tokens(self) -> Num:
        """Tokens that the tensor-parallel region of a rank sees."""
        return self.sequences * self.sequence_length / self.cp

    @property
    def context_tokens(self) -> Num:
        """Tokens of the other sequence (cross attention) that a rank sees."""
        return self.sequences * self.context_length / self.cp

    @property
    def product_bytes(self) -> Num:
        """Bytes of an element that only a low-precision product reads."""
        return self.element_bytes if self.quantised_bytes is None else self.quantised_bytes

    @property
    def sequence_split(self) -> Num:
        """How many ways the sequence region (norms, residuals, dropout) is split."""
        return 1 + (self.tp - 1) * self.sequence_parallel


@dataclass(frozen=True, slots=True)
class Work:
    """One group of kernels: FLOPs and bytes to and from device memory.

    ``m``, ``n``, ``k`` are the shape of a GEMM (rows, columns, inner); of an attention core ``k`` are the
    keys and ``n`` the features of a head, and ``core`` names its kernel (the profile's where empty).
    ``groups`` products of that shape run as one kernel (grouped GEMM). ``kernels`` counts launches.
    Of the ``bytes`` of memory-bound work, ``strided_bytes`` belong to kernels that make ``strided_elements``
    one by one (:class:`Strided`). ``low_precision`` products run in the recipe's 8- or 4-bit type.
    ``weight_gradient`` work can wait (zero-bubble schedules).
    """

    kernel: KernelClass
    flops: Num
    bytes: Num
    m: Num = 0
    n: Num = 0
    k: Num = 0
    kernels: Num = 1
    groups: Num = 1
    low_precision: bool = False
    weight_gradient: bool = False
    core: str = ""
    strided_bytes: Num = 0.0
    strided_elements: Num = 0.0


@dataclass(frozen=True, slots=True)
class Strided:
    """What kernels move and make whose tensors are slices or broadcast against each other.

    Each element's place is computed apart (PyTorch's ``TensorIterator`` without vector loads), so that the
    cores' instructions bind such a kernel rather than memory.

    Attributes
    ----------
    bytes
        Moved per feature of the output, at 16 bits.
    elements
        Made per feature of the output.
    """

    bytes: float = 0.0
    elements: float = 0.0


NONE_STRIDED = Strided()
"""Kernels that load and store in vectors."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of eager operators in the place of one fused kernel (:mod:`meshwright.costmodels.fusion`).

    Attributes
    ----------
    forward, backward
        Bytes moved over those of the fused kernel.
    saved
        Bytes kept per feature of the output, beside what the fused kernel keeps, at 16 bits.
    forward_kernels, backward_kernels
        Launches.
    forward_strided, backward_strided
        Of the bytes, those of kernels without vector loads, and the elements that these make, per feature of
        the output.
    """

    forward: float = 1.0
    backward: float = 1.0
    saved: float = 0.0
    forward_kernels: int = 1
    backward_kernels: int = 1
    forward_strided: Strided = NONE_STRIDED
    backward_strided: Strided = NONE_STRIDED


ONE_KERNEL = Chain()
"""A fused operator."""


@dataclass(frozen=True, slots=True)
class BiasChain:
    """Operators that add the biases of a group's products and sum their gradients.

    Attributes
    ----------
    forward, backward
        Bytes moved per element of the output.
    forward_each, backward_each
        Launches for each product of the group.
    forward_kernels, backward_kernels
        Launches for all of them together.
    forward_strided, backward_strided
        As of a :class:`Chain`.
    """

    forward: float = 0.0
    backward: float = 0.0
    forward_each: int = 0
    backward_each: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0
    forward_strided: Strided = NONE_STRIDED
    backward_strided: Strided = NONE_STRIDED


def chained(moved: Num, kernels: Num, strided: Strided, made: Num, width: Num = 1.0) -> Work:
    """Return the work of a chain that moves so many bytes and makes features of ``width`` times 16 bits."""
    return Work(
        "memory",
        0.0,
        moved,
        kernels=kernels,
        strided_bytes=strided.bytes * made * width,
        strided_elements=strided.elements * made,
    )


IN_EPILOGUE = BiasChain()
"""Products add their biases themselves, and sum their gradients beside the weights'."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective over a group; ``bytes`` as :mod:`meshwright.costmodels.collectives` counts them.

    ``copies``, ``node_limit`` and ``expert_groups`` belong to ``dispatch``: each token goes to ``copies``
    experts, in at most ``node_limit`` of ``expert_groups`` groups; ``deduplicated`` it enters a node once.
    """

    collective: Collective
    bytes: Num
    hidden_behind: Window = "none"
    group: Group = "tensor"
    copies: Num = 1
    node_limit: int | None = None
    expert_groups: int | None = None
    deduplicated: bool = False
