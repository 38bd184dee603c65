"""What an operator asks of a device (work) and of the network (traffic), before any time is known."""

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.arrays import Num

KernelClass = Literal["gemm", "attention", "memory"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


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
    """

    sequences: Num
    sequence_length: Num
    tp: Num
    sequence_parallel: Num
    element_bytes: Num = 2
    vocab_multiple: Num = 1

    @property
    def tokens(self) -> Num:
        """Tokens that the tensor-parallel region of a rank sees."""
        return self.sequences * self.sequence_length

    @property
    def sequence_split(self) -> Num:
        """How many ways the sequence region (norms, residuals, dropout) is split."""
        return 1 + (self.tp - 1) * self.sequence_parallel


@dataclass(frozen=True, slots=True)
class Work:
    """One group of kernels: FLOPs and bytes to and from device memory.

    ``m``, ``n``, ``k`` are the shape of a GEMM (rows, columns, inner); zero for other kernels.
    ``kernels`` counts launches.
    """

    kernel: KernelClass
    flops: Num
    bytes: Num
    m: Num = 0
    n: Num = 0
    k: Num = 0
    kernels: Num = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective over the tensor-parallel group; ``bytes`` is the whole (unsharded) tensor."""

    collective: Collective
    bytes: Num
    hidden_behind_gemm: bool = False
