"""Mixed-precision recipes and optimizers: the bytes of state that a parameter costs, and low-precision casts.

Sources: ZeRO (arXiv 1910.02054, section 3.1: 2 + 2 + 12), Megatron-LM distributed-optimizer document
(18 bytes with fp32 gradients), 8-bit Adam (arXiv 2110.02861), Transformer Engine's documentation of FP8
and NVFP4 recipes, DeepSeek-V3 (arXiv 2412.19437, section 3.3), MXFP8 (arXiv 2506.08027), NVFP4 (arXiv
2509.25149), Adafactor (arXiv 1804.04235), Lion (arXiv 2302.06675), Muon (arXiv 2502.16982).

Low precision
-------------
A low-precision recipe runs the products of the blocks in ``low_compute``; embedding, head, router, norms
and attention stay in ``compute`` (DeepSeek-V3, section 3.3.1). A product needs both its operands quantised
along the inner dimension, and an activation is an operand of two products with different inner dimensions
(forward, and the weight's gradient), so a cast reads the 16-bit tensor and writes two copies: as it lies,
and transposed. Of the input only the transposed copy is kept for the backward pass.

=============  ==========================  =====================================  =================
recipe         scales                      copies of a weight beside the working   reads of a cast
=============  ==========================  =====================================  =================
fp8            fp32 a tensor, delayed      fp8 and its transpose                   1
fp8-current    fp32 a tensor, current      fp8 and its transpose                   2 (maximum first)
fp8-weights    as fp8-current              transpose (the working copy is fp8)     2
fp8-block      fp32 of 1x128; 128x128      transpose (the working copy is fp8)     1 (a tile at a time)
mxfp8          ue8m0 of 1x32               row-wise and column-wise                1
nvfp4          e4m3 of 1x16, fp32 tensor   row-wise and column-wise                2 (maximum first)
nvfp4-all      as nvfp4, in every block    as nvfp4                                2 (maximum first)
=============  ==========================  =====================================  =================

Blackwell's products read fp8 operands with one scale a tensor in either order, so they need no transposed
copy (Transformer Engine, ``nvte_is_non_tn_fp8_gemm_supported``): casts there write one. Scales of blocks
follow the inner dimension, which keeps both copies.

Left out: the transposed weights that Blackwell saves, DeepSeek's 12-bit inputs of the product behind
attention, the promotion of partial sums to fp32 on CUDA cores, and the random Hadamard transform of
NVFP4 (it is fused into the cast).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.hardware.errors import UnknownNameError

BLOCK_SCALED: Final = ("blackwell", "cdna4")
"""Architectures, refinements included, whose products apply a scale to every 32 elements themselves, as mxfp8
needs: Blackwell's ``mma`` with ``.block_scale`` (PTX ISA), CDNA4's ``V_MFMA_SCALE`` (its ISA). Elsewhere
Transformer Engine refuses the recipe (``check_mxfp8_support``)."""
EITHER_ORDER: Final = "blackwell"
"""Architectures whose fp8 products read operands in either order."""
CAST_SHARES: Final = {"blackwell": 0.78, "blackwell-ultra": 0.78}
"""Share of the streaming rate that casts reach, by architecture; elsewhere all of it. Transformer Engine's
profile of a layer's products with and without casts (docs/examples/gemm_profiling): 482 us for 656 million
elements in mxfp8 (4.06 bytes each) and 678 us in nvfp4 (5.1 bytes) on B300, 5.5 and 4.9 of 6.7 TB/s; 926 us
in fp8 with current scales (6 bytes) on H200 NVL, all of 4.2 TB/s."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Element types of a training recipe.

    Attributes
    ----------
    compute
        Dtype of the products, a key of the accelerator's peak rates.
    element_bytes
        Bytes of a parameter as the products read it, and of an activation.
    master
        Whether an fp32 copy of the weights is kept beside the working copy.
    moment_bytes
        Bytes of one optimizer moment, unless the optimizer has its own.
    gradient_bytes
        Bytes of a gradient; None leaves it to the software profile.
    low_compute
        Dtype of the blocks' products (``low_precision`` operators), another key of the peak rates; None:
        ``compute``.
    product_bytes
        Bytes of an element that only a low-precision product reads, its scale included; None:
        ``element_bytes``.
    weight_bytes
        Bytes of the working copy of a low-precision product's weight, and of what ZeRO gathers of it; None:
        ``element_bytes``.
    weight_copy_bytes
        Bytes per such weight of the quantised copies beside the working copy; they live as long as it does.
    cast_reads
        How often a cast reads its 16-bit tensor: 2 where the whole tensor's maximum is needed first.
    high_blocks
        Shares of the blocks, at the start and at the end of the stack, whose products stay in ``compute``.
    tensor_scales
        Whether a quantised tensor has one scale.
    cast_kernels
        Kernels that quantise one operand: the cast, the maximum and the scale before it where the tensor has
        one that is current, the arrangement of block scales for the products behind it.
    product_rate
        Rate of its products over that of products of the same type with one scale a tensor.
    architectures
        Those whose products know its scales, refinements included; None: all with the dtypes.
    """

    name: str
    compute: str
    element_bytes: int
    master: bool
    moment_bytes: float
    gradient_bytes: int | None = None
    low_compute: str | None = None
    product_bytes: float | None = None
    weight_bytes: float | None = None
    weight_copy_bytes: float = 0.0
    cast_reads: int = 0
    high_blocks: tuple[float, float] = (0.0, 0.0)
    tensor_scales: bool = False
    cast_kernels: int = 1
    product_rate: float = 1.0
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Return whether an architecture's products know the recipe's scales."""
        return self.architectures is None or architecture.split("-")[0] in self.architectures

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes that an accelerator must have a peak rate for."""
        return (self.compute,) if self.low_compute is None else (self.compute, self.low_compute)

    def cast_copies(self, architecture: str) -> int:
        """Return the quantised copies of an operand of two products that an architecture needs."""
        return 1 if self.tensor_scales and architecture.startswith(EITHER_ORDER) else 2

    def cast_bytes(self, copies: int = 2) -> float:
        """Return the bytes that casting one element to ``copies`` quantised copies moves.

        Two copies serve two products (an input or an output's gradient whose weight is trained), one copy
        serves one. Zero for a recipe without low-precision products.
        """
        if self.low_compute is None or self.product_bytes is None:
            return 0.0
        return self.cast_reads * self.element_bytes + copies * self.product_bytes

    def gathered_cast_bytes(self, architecture: str) -> tuple[float, float]:
        """Return the bytes to cast one element before ranks gather it, and to lay it out again behind.

        With one scale a tensor one copy is sent, and transposed (read and written) where products need both
        orders. Scales of blocks differ between the copies: each is sent when its product needs it.
        """
        copies = self.cast_copies(architecture)
        if self.low_compute is None or self.product_bytes is None or not self.tensor_scales or copies == 1:
            return self.cast_bytes(copies), 0.0
        return self.cast_bytes(1), 2 * self.product_bytes

    @property
    def unscaling_passes(self) -> int:
        """Passes over the gradients that scaling the loss costs: fp16's range needs it.

        They are read and written once to divide them by the scale and look for infinities
        (``torch._amp_foreach_non_finite_check_and_unscale_`` in PyTorch's ``GradScaler`` and Megatron-LM).
        """
        return 2 if self.compute == "fp16" else 0

    @property
    def low_weight_bytes(self) -> float:
        """Bytes of a low-precision product's weight on a device that holds it whole, all copies together."""
        working = self.element_bytes if self.weight_bytes is None else self.weight_bytes
        return working + self.weight_copy_bytes


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: the moments that it keeps, and what it computes beyond a pass over its states.

    Attributes
    ----------
    moments
        Moments per parameter.
    moment_bytes
        Bytes of one, its scale included; None: the recipe's.
    matrix_moments
        Moments per parameter of the blocks, where they are treated apart (Muon; the few norm weights among
        them are counted alike); None: ``moments``.
    newton_schulz_steps
        Steps that orthogonalise the update of each matrix of the blocks (Muon).
    gather_bytes
        Bytes per parameter of the blocks that ranks which share a matrix gather before they can compute its
        update (bf16 momentum; arXiv 2502.16982, section 2.3).
    """

    name: str
    moments: float
    moment_bytes: float | None = None
    matrix_moments: float | None = None
    newton_schulz_steps: int = 0
    gather_bytes: float = 0.0

    def state_bytes(self, precision: Precision, *, block: bool = True) -> float:
        """Return the bytes of all moments of one parameter, in a block or outside."""
        each = precision.moment_bytes if self.moment_bytes is None else self.moment_bytes
        own = self.moments if self.matrix_moments is None or not block else self.matrix_moments
        return own * each

    def matrix_flops(self, rows: Num, columns: Num) -> Num:
        """Return the FLOPs of orthogonalising the update of a (rows x columns) matrix; broadcasts.

        Each Newton-Schulz step computes ``A = X X^T``, ``B = b A + c A A`` and ``a X + B X`` with the
        shorter side ``m`` first: ``4 m^2 n + 2 m^3`` FLOPs. It runs in bf16 on the whole matrix.
        """
        m, n = np.minimum(rows, columns), np.maximum(rows, columns)
        return self.newton_schulz_steps * (4.0 * m * m * n + 2.0 * m * m * m)


_BLOCK_SCALE = 4 / 128
"""Bytes of a 1 x 128 tile's fp32 scale per element (DeepSeek-V3, section 3.3.2)."""
_BLOCK_WEIGHT = 1 + 4 / 128**2
"""An e4m3 weight and its share of the fp32 scale of 128 x 128 (ibid.)."""
_MX = 1 + 1 / 32
"""An e4m3 element and its share of the 8-bit exponent of 32 (arXiv 2506.08027)."""
_NV = 0.5 + 1 / 16
"""An e2m1 element and its share of the e4m3 scale of 16 (arXiv 2509.25149, section 2)."""
_SCALED = 0.95
"""Products with a scale for 32 elements: 7.16 ms against 6.81 ms a layer, forward and backward, on B300
(Transformer Engine, docs/examples/gemm_profiling; operands quantised before)."""
_TILED = 0.89
"""Products with scales of 1 x 128 and 128 x 128 on H200 NVL: 22.9 ms against 20.3 ms (as above, casts in)."""
_QUANTILE_BLOCK = 256
"""Elements that share an fp32 absolute maximum in 8-bit optimizers (bitsandbytes documentation)."""


def _low(
    name: str,
    low_compute: str,
    product_bytes: float,
    weight_copy_bytes: float,
    cast_reads: int,
    weight_bytes: float | None = None,
    high_blocks: tuple[float, float] = (0.0, 0.0),
    tensor_scales: bool = False,
    cast_kernels: int = 1,
    product_rate: float = 1.0,
    architectures: tuple[str, ...] | None = None,
) -> Precision:
    """Return a bf16 recipe with fp32 master weights whose blocks multiply in a lower precision."""
    return Precision(
        name,
        "bf16",
        2,
        True,
        4,
        low_compute=low_compute,
        product_bytes=product_bytes,
        weight_bytes=weight_bytes,
        weight_copy_bytes=weight_copy_bytes,
        cast_reads=cast_reads,
        high_blocks=high_blocks,
        tensor_scales=tensor_scales,
        cast_kernels=cast_kernels,
        product_rate=product_rate,
        architectures=architectures,
    )


PRECISIONS = {
    p.name: p
    for p in (
        Precision("bf16", "bf16", 2, True, 4),
        Precision("fp16", "fp16", 2, True, 4),
        Precision("pure-bf16", "bf16", 2, False, 2, 2),
        Precision("bf16-8bit", "bf16", 2, True, 1),
        Precision("fp32", "fp32", 4, False, 4, 4),
        Precision("tf32", "tf32", 4, False, 4, 4),
        _low("fp8", "fp8", 1.0, 2.0, 1, tensor_scales=True),
        _low("fp8-current", "fp8", 1.0, 2.0, 2, tensor_scales=True, cast_kernels=3),
        # Megatron-Core --fp8-param-gather, torchao float8 all-gather
        _low("fp8-weights", "fp8", 1.0, 1.0, 2, weight_bytes=1.0, tensor_scales=True, cast_kernels=3),
        _low(
            "fp8-block",
            "fp8",
            1 + _BLOCK_SCALE,
            _BLOCK_WEIGHT,
            1,
            weight_bytes=_BLOCK_WEIGHT,
            product_rate=_TILED,
        ),
        _low(
            "mxfp8",
            "fp8",
            _MX,
            2 * _MX,
            1,
            cast_kernels=3,
            product_rate=_SCALED,
            architectures=BLOCK_SCALED,
        ),
        # primary weights quantised along rows and along columns (--fp8-param-gather with the mxfp8 recipe)
        _low(
            "mxfp8-weights",
            "fp8",
            _MX,
            _MX,
            1,
            weight_bytes=_MX,
            cast_kernels=3,
            product_rate=_SCALED,
            architectures=BLOCK_SCALED,
        ),
        # the published 12B model keeps the first 2 and the last 8 of its 62 blocks in bf16
        _low("nvfp4", "fp4", _NV, 2 * _NV, 2, high_blocks=(2 / 62, 8 / 62), cast_kernels=4),
        # Transformer Engine's recipe itself names no layers; a framework's option keeps some apart
        _low("nvfp4-all", "fp4", _NV, 2 * _NV, 2, cast_kernels=4),
    )
}

OPTIMIZERS = {
    o.name: o
    for o in (
        Optimizer("adamw", 2),
        Optimizer("adam", 2),
        Optimizer("momentum", 1),
        Optimizer("sgd", 0),
        Optimizer("lion", 1),
        Optimizer("adamw-8bit", 2, moment_bytes=1 + 4 / _QUANTILE_BLOCK),
        Optimizer("adamw-bf16", 2, moment_bytes=2),
        # the second moment of an m x n matrix is kept as its row and column sums, 4 (m + n) bytes: some 0.002
        # bytes a parameter at 4096 x 4096, counted as none (arXiv 1804.04235)
        Optimizer("adafactor", 0),
        Optimizer("muon", 2, matrix_moments=1, newton_schulz_steps=5, gather_bytes=2),
    )
}


def find_precision(name: str) -> Precision:
    """Return a recipe by name; raises UnknownNameError."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, list(PRECISIONS))
    return PRECISIONS[name]


def find_optimizer(name: str) -> Optimizer:
    """Return an optimizer by name; raises UnknownNameError."""
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, list(OPTIMIZERS))
    return OPTIMIZERS[name]
