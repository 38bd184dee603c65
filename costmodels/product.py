"""Products of tokens with weights: their work, their weights on one rank, and linear layers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.part import Part
from meshwright.costmodels.work import Shape, Traffic, Work

QUANTISED_INPUT_BYTES = 4
"""Kept of each input of a product with a quantised weight: bitsandbytes' autograd function keeps what it
multiplied (``MatMul4Bit``, ``ctx.tensors``), and a cast of it. Measured as what QLoRA needs beside LoRA in
LitGPT's table of recipes, weights apart: 23 to 31 bytes for each hidden feature of a layer whose products
read six to eight times as many, on eight models."""

ACCUMULATED_BYTES = 8
"""Moved to add to one element of an fp32 gradient."""


def gemm_work(
    m: Num,
    n: Num,
    k: Num,
    element_bytes: Num,
    *,
    groups: Num = 1,
    operand_bytes: Num | None = None,
    low_precision: bool = False,
    weight_gradient: bool = False,
    kernels: Num = 1,
) -> Work:
    """Return the work of ``groups`` (m x k)(k x n) products: 2mnk FLOPs, each matrix read or written once.

    Operands of a low-precision product are read at ``operand_bytes``; a weight's gradient is added to the
    accumulated one in fp32, which is read and written.
    """
    written = ACCUMULATED_BYTES if weight_gradient else element_bytes
    read = element_bytes if operand_bytes is None or not low_precision else operand_bytes
    moved = read * (1.0 * m * k + 1.0 * k * n) + written * (1.0 * m * n)
    return Work(
        "gemm",
        groups * (2.0 * m * n * k),
        groups * moved,
        m,
        n,
        k,
        groups=groups,
        low_precision=low_precision,
        weight_gradient=weight_gradient,
        kernels=kernels,
    )


class Product:
    """What products of tokens with weights have in common, one by one (:class:`Gemm`) or grouped (experts).

    A product of (rows x inputs) by (inputs x outputs) costs the same forward and for its input's gradient,
    and once more for its weight's gradient where that is trained. A quantised weight is expanded before each.
    """

    __slots__ = ()
    trained: bool
    stored_bytes: float | None
    low_precision: bool
    saves_output: bool

    def local_dims(self, shape: Shape) -> tuple[Num, Num]:
        """Return (outputs, inputs) of one product on one rank."""
        raise NotImplementedError

    def rows(self, shape: Shape) -> Num:
        """Return the rows of one product."""
        raise NotImplementedError

    def groups(self, shape: Shape) -> Num:
        """Return the products that run as a group."""
        return 1

    def kernels(self, shape: Shape) -> Num:
        """Return the kernels that run a group."""
        return 1

    def _product(self, shape: Shape, m: Num, n: Num, k: Num, *, weight_gradient: bool = False) -> Work:
        return gemm_work(
            m,
            n,
            k,
            shape.element_bytes,
            groups=self.groups(shape),
            operand_bytes=shape.product_bytes,
            low_precision=self.low_precision,
            weight_gradient=weight_gradient,
            kernels=self.kernels(shape),
        )

    def _expansion(self, shape: Shape) -> tuple[Work, ...]:
        """Return the expansion of a quantised weight: read packed, written at the recipe's width."""
        if self.stored_bytes is None:
            return ()
        n, k = self.local_dims(shape)
        weights = self.groups(shape) * n * k
        return (Work("memory", 0.0, weights * (self.stored_bytes + shape.element_bytes)),)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return one product of (rows x inputs) by (inputs x outputs)."""
        n, k = self.local_dims(shape)
        return *self._expansion(shape), self._product(shape, self.rows(shape), n, k)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products for the input's gradient and for the weight's gradient."""
        n, k = self.local_dims(shape)
        m = self.rows(shape)
        inward = (*self._expansion(shape), self._product(shape, m, k, n))
        if not self.trained:
            return inward
        return *inward, self._product(shape, k, n, m, weight_gradient=True)

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return none: boundaries and exchanges carry a layer's collectives."""
        return (), ()

    def transient_bytes(self, shape: Shape) -> Num:
        """Return the gradients of output and input; of an output that the next operator kept, it is gone."""
        n, k = self.local_dims(shape)
        features = k if self.saves_output else n + k
        return self.groups(shape) * self.rows(shape) * features * shape.element_bytes

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the output if it is kept, and of the input of a quantised product."""
        n, k = self.local_dims(shape)
        own = self.saves_output * n * shape.element_bytes
        if self.stored_bytes is not None:
            own = own + k * QUANTISED_INPUT_BYTES
        return self.groups(shape) * self.rows(shape) * own


@dataclass(frozen=True, slots=True)
class Gemm(Product):
    """A linear layer. Column-parallel splits its outputs, row-parallel its inputs, else it is replicated.

    ``outputs`` may hold several parts (fused QKV, gate and up): one kernel computes them all.
    ``saves_output`` keeps the output for the next operator's backward pass. ``tied`` weights belong to
    another layer and count no parameters of the model, but occupy memory where a pipeline separates them.
    The backward pass is two products of the same size, for the input's and the weight's gradient; a frozen
    weight has only the first. A bias is added in the product's epilogue, its gradient is a sum over the rows.
    ``low_precision`` products run in the recipe's 8- or 4-bit type where it has one. ``on`` the ``context``
    it multiplies the other sequence's tokens (keys of cross attention); on the ``sequence`` region those that
    sequence parallelism leaves a rank (down-projections, routers' like). A quantised frozen weight
    (``stored_bytes``) is expanded before each product. Where a tensor group gathers operands as the product
    reads them (``cast_before``) each rank casts its part: the input of a column-parallel product, the
    output's gradient of a row-parallel one.
    """

    name: str
    inputs: Part
    outputs: tuple[Part, ...]
    shard: Literal["column", "row", "replicated"]
    bias: bool = False
    saves_output: bool = False
    tied: bool = False
    light: bool = False
    trained: bool = True
    expert: ClassVar[bool] = False
    stored_bytes: float | None = None
    low_precision: bool = False
    on: Literal["own", "context", "sequence"] = "own"
    cast_before: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits."""
        return {"column": self.outputs, "row": (self.inputs,), "replicated": ()}[self.shard]

    def parameters(self) -> int:
        """Return the weights and biases of the whole layer; a tied weight's bias is its own."""
        n = sum(p.features for p in self.outputs)
        return int((not self.tied) * n * self.inputs.features + self.bias * n)

    def local_dims(self, shape: Shape) -> tuple[Num, Num]:
        """Return (outputs, inputs) that one rank multiplies."""
        n, k = sum(p.features for p in self.outputs), self.inputs.features
        if self.shard == "column":
            n = sum(p.local(shape.tp, shape.vocab_multiple) for p in self.outputs)
        elif self.shard == "row":
            k = self.inputs.local(shape.tp)
        return n, k

    def local_parameters(self, shape: Shape) -> Num:
        """Return the weights and biases on one rank (a row-parallel bias is whole on each)."""
        n, k = self.local_dims(shape)
        return n * k + self.bias * n

    def copied_parameters(self, shape: Shape) -> Num:
        """Return those on one rank that are a copy of another layer's: a tied weight, without its bias."""
        n, k = self.local_dims(shape)
        return self.tied * n * k

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products, and the sum of the output's gradient over the rows for a bias."""
        products = super(Gemm, self).backward(shape)
        if not (self.bias and self.trained):
            return products
        read = self.rows(shape) * self.local_dims(shape)[0] * shape.element_bytes
        return *products, Work("memory", 0.0, read, weight_gradient=True)

    def rows(self, shape: Shape) -> Num:
        """Return the tokens that it multiplies."""
        if self.on == "context":
            return shape.context_tokens
        return shape.tokens / (shape.sequence_split if self.on == "sequence" else 1)
