"""Mixtures of experts: router, exchange of tokens, grouped products, all on one rank.

The expert mesh is folded independently of the dense one (Megatron-Core's parallel folding): the same
``tp x cp x dp`` ranks of a stage are ``etp x ep x edp``. A rank starts from its own tokens, those of the
sequence region (split over ``tp``). Each goes to ``topk`` experts: the exchange (``dispatch``) sends it over
the expert group and, with ``etp``, gathers it over the expert-tensor group. The rank then multiplies
``tokens x topk x etp`` rows, dealt to its ``experts / ep`` experts, by a share of ``1 / etp`` of their
columns; ``expert_load`` stretches the rows to those of the busiest rank (dropless imbalance, or a capacity
factor with padding).

Left out: dropped tokens, the auxiliary loss's own kernels, and rows padded to a GEMM tile (the roofline's
tiles count them).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain, Weightless
from meshwright.costmodels.product import Product, gemm_work
from meshwright.costmodels.work import (
    IN_EPILOGUE,
    ONE_KERNEL,
    BiasChain,
    Chain,
    Gate,
    Shape,
    Strided,
    Traffic,
    Work,
    chained,
)

FORWARD_KERNELS = 30
"""Of a router without a fused kernel, counted in Megatron-Core's moe_utils.py, router.py and
token_dispatcher.py: softmax, top-k, normalisation, scatter of probabilities and of the map (10), balancing
loss and its log (10), rows of each expert and their offsets (10)."""
BACKWARD_KERNELS = 15
"""Of the same: what of it is differentiable."""


def own_tokens(shape: Shape) -> Num:
    """Return the tokens that a rank brings to the experts."""
    return shape.tokens / shape.sequence_split


def expert_rows(shape: Shape, topk: Num) -> Num:
    """Return the rows that the experts of one rank multiply."""
    return own_tokens(shape) * topk * shape.etp * shape.expert_load


@dataclass(frozen=True, slots=True)
class Router(Plain):
    """The product that scores experts, with softmax (or sigmoid) and top-k.

    Works on the sequence region, whole on each rank. ``bias`` counts one learned or corrected score per
    expert (a buffer counts none); ``extra`` further parameters. Scores are kept in fp32.
    """

    name: str
    hidden: int
    experts: int
    topk: int
    bias: bool = False
    extra: int = 0
    light: bool = False
    trained: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return none."""
        return ()

    def parameters(self) -> int:
        """Return one row of weights an expert, and the biases."""
        return self.experts * (self.hidden + self.bias) + self.extra

    def local_parameters(self, shape: Shape) -> Num:
        """Return all of them: the router is replicated."""
        return self.parameters()

    def _scores(self, shape: Shape, kernels: int) -> Work:
        """Return softmax, top-k and the counting of rows: some six passes over fp32 scores."""
        return Work("memory", 0.0, 24.0 * own_tokens(shape) * self.experts, kernels=kernels)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the product and the selection."""
        product = gemm_work(own_tokens(shape), self.experts, self.hidden, shape.element_bytes)
        return product, self._scores(shape, FORWARD_KERNELS)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products for the gradients of input and weight, and the selection's."""
        t, q = own_tokens(shape), shape.element_bytes
        inward = gemm_work(t, self.hidden, self.experts, q), self._scores(shape, BACKWARD_KERNELS)
        if not self.trained:
            return inward
        return *inward, gemm_work(self.hidden, self.experts, t, q, weight_gradient=True)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return fp32 scores, and weight and index (8 bytes) of each choice."""
        return own_tokens(shape) * (4.0 * self.experts + 12.0 * self.topk)


@dataclass(frozen=True, slots=True)
class Exchange(Weightless):
    """Tokens on their way to the experts (``dispatch``) or back (``combine``).

    Rows are permuted by expert (read and written once) and sent over the expert group; with ``etp`` they are
    gathered over the expert-tensor group, and reduced there on the way back. At the other end they are sorted
    again. ``deduplicated`` tokens are sent as they lie, once to each node: only the end with the experts
    makes a row of each choice (DeepEP, HybridEP). ``node_limit`` of the
    ``expert_groups`` may be visited by a token (DeepSeek-V3, arXiv 2412.19437, section 2.1.2); the busiest
    rank receives ``expert_load`` times the mean. The dispatched rows are kept where the first expert product
    needs them for its weights' gradient (``saves``), in that product's type. Rows travel at the recipe's
    width; ``lowered`` they are quantised first on the way to the experts (DeepSeek-V3, section 3.3.2).
    """

    name: str
    direction: Literal["dispatch", "combine"]
    hidden: int
    topk: int
    node_limit: int | None = None
    expert_groups: int | None = None
    saves: bool = True
    deduplicated: bool = False
    lowered: bool = False
    light: bool = False
    trained: ClassVar[bool] = True

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the permutation: every row read and written on this rank, and at the other end."""
        rows = own_tokens(shape) * self.topk * ((not self.deduplicated) + shape.etp * shape.expert_load)
        return (Work("memory", 0.0, 2.0 * rows * self.hidden * shape.element_bytes, kernels=2),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the same the other way round."""
        return self.forward(shape)

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the exchange over experts and the gather (reduction) over ``etp``."""
        outward = self.direction == "dispatch"
        return self._way(shape, outward), self._way(shape, not outward)

    def _way(self, shape: Shape, outward: bool) -> tuple[Traffic, ...]:
        once = own_tokens(shape) * self.hidden
        width = shape.product_bytes if outward and self.lowered else shape.element_bytes
        sent = once * width * shape.expert_load * (shape.ep > 1)
        whole = once * shape.element_bytes * self.topk * shape.etp * shape.expert_load * (shape.etp > 1)
        return (
            Traffic(
                "dispatch",
                sent,
                group="expert",
                copies=self.topk,
                node_limit=self.node_limit,
                expert_groups=self.expert_groups,
                deduplicated=self.deduplicated,
            ),
            Traffic("all_gather" if outward else "reduce_scatter", whole, group="expert_tensor"),
        )

    def transient_bytes(self, shape: Shape) -> Num:
        """Return the gradients of the rows at both ends; the dispatched rows themselves are gone."""
        rows = expert_rows(shape, self.topk) + own_tokens(shape) * self.topk
        return rows * self.hidden * shape.element_bytes - self.saved_bytes(shape)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the dispatched rows; on the way back what the weighting needs: the experts' own rows."""
        width = shape.product_bytes if self.direction == "dispatch" else shape.element_bytes
        kept = self.saves and self.direction == "dispatch"
        return kept * expert_rows(shape, self.topk) * self.hidden * width


@dataclass(frozen=True, slots=True)
class ExpertGemm(Product):
    """The products of all experts on a rank (``groups`` = local experts), as one kernel or ``one_by_one``.

    Attributes
    ----------
    inputs, outputs
        Widths of one expert; those of the expert's inner dimension carry ``axis="expert_tensor"``.
    shard
        ``column`` splits the outputs over ``etp``, ``row`` the inputs.
    experts
        Routed experts of the layer, split over ``ep``.
    topk
        Experts that a token visits.
    bias_chain
        What adds the biases, and sums their gradients, where the products' epilogues do not.
    one_by_one
        Whether each expert's product is a kernel of its own, on several streams.
    padded
        Whether each expert's rows are copied to whole tiles of scales before the first product, and back
        behind the last: one copy of the hidden features each way.
    """

    name: str
    experts: int
    topk: int
    inputs: Part
    outputs: tuple[Part, ...]
    shard: Literal["column", "row"]
    bias: bool = False
    saves_output: bool = False
    light: bool = False
    trained: bool = True
    expert: ClassVar[bool] = True
    stored_bytes: float | None = None
    low_precision: bool = False
    bias_chain: BiasChain = IN_EPILOGUE
    one_by_one: bool = False
    padded: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the experts, split by ``ep``, and the inner width, split by ``etp``."""
        inner = self.outputs if self.shard == "column" else (self.inputs,)
        return (Part(self.experts, self.experts, "experts", axis="expert"), *inner)

    def parameters(self) -> int:
        """Return the weights and biases of all experts."""
        n = sum(p.features for p in self.outputs)
        return int(self.experts * n * (self.inputs.features + self.bias))

    def local_dims(self, shape: Shape) -> tuple[Num, Num]:
        """Return (outputs, inputs) of one expert that one rank multiplies."""
        n, k = sum(p.features for p in self.outputs), self.inputs.features
        if self.shard == "column":
            return sum(p.local(shape.etp) for p in self.outputs), k
        return n, self.inputs.local(shape.etp)

    def local_experts(self, shape: Shape) -> Num:
        """Return the experts on one rank."""
        return self.experts / shape.ep

    def local_parameters(self, shape: Shape) -> Num:
        """Return the weights and biases on one rank."""
        n, k = self.local_dims(shape)
        return self.local_experts(shape) * n * (k + self.bias)

    def groups(self, shape: Shape) -> Num:
        """Return the experts on one rank: one product each."""
        return self.local_experts(shape)

    def kernels(self, shape: Shape) -> Num:
        """Return one, or one an expert."""
        return self.groups(shape) if self.one_by_one else 1

    def rows(self, shape: Shape) -> Num:
        """Return the rows of one expert in the mean."""
        return expert_rows(shape, self.topk) / self.local_experts(shape)

    def _biases(
        self, shape: Shape, element_bytes: float, each: int, together: int, strided: Strided
    ) -> tuple[Work, ...]:
        """Return the work of adding the biases, or of summing their gradients; none without a chain."""
        if self.bias_chain == IN_EPILOGUE:
            return ()
        made = expert_rows(shape, self.topk) * self.local_dims(shape)[0]
        return (chained(element_bytes * made, each * self.groups(shape) + together, strided, made),)

    def _padding(self, shape: Shape) -> tuple[Work, ...]:
        """Return the copy to whole tiles or back; the copied features are those that no ``etp`` splits."""
        n, k = self.local_dims(shape)
        features = k if self.shard == "column" else n
        moved = 2.0 * self.padded * expert_rows(shape, self.topk) * features * shape.element_bytes
        return (Work("memory", 0.0, moved),)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products, what adds the biases, and the copy."""
        how = self.bias_chain
        biases = self._biases(shape, how.forward, how.forward_each, how.forward_kernels, how.forward_strided)
        return *Product.forward(self, shape), *biases, *self._padding(shape)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products for both gradients, what sums the biases', and the copy of the gradient."""
        how = self.bias_chain
        biases = self._biases(
            shape, how.backward, how.backward_each, how.backward_kernels, how.backward_strided
        )
        return *Product.backward(self, shape), *biases, *self._padding(shape)


@dataclass(frozen=True, slots=True)
class ExpertActivation(Weightless):
    """The activation function between an expert's products; features are split over ``etp``.

    ``reads``, ``writes`` and ``saves`` are features per row, ``units`` the inner width; ``gate`` is how a
    gated one joins its branches.
    """

    name: str
    topk: int
    reads: Num
    writes: Num
    saves: Num
    units: Num
    backward_ratio: float = 5 / 3
    gate: Gate = "plain"
    light: bool = True
    trained: ClassVar[bool] = True
    expert: ClassVar[bool] = True
    chain: Chain = ONE_KERNEL

    def _features(self, shape: Shape, width: Num) -> Num:
        return expert_rows(shape, self.topk) * width / shape.etp

    def _chained(self, moved: Num, kernels: int, strided: Strided, shape: Shape) -> tuple[Work, ...]:
        made, width = self._features(shape, self.writes), shape.element_bytes / 2
        return (chained(moved * shape.element_bytes, kernels, strided, made, width),)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the bytes read and written once, times those of the chain."""
        moved = self.chain.forward * self._features(shape, self.reads + self.writes)
        return self._chained(moved, self.chain.forward_kernels, self.chain.forward_strided, shape)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return ``backward_ratio`` times the bytes of the forward pass, times those of the chain."""
        moved = self.chain.backward * self.backward_ratio * self._features(shape, self.reads + self.writes)
        return self._chained(moved, self.chain.backward_kernels, self.chain.backward_strided, shape)

    def transient_bytes(self, shape: Shape) -> Num:
        """Return the gradients of output and input when its own output is gone."""
        both = self._features(shape, self.reads + self.writes) * shape.element_bytes
        return both - self._handed_bytes(shape)

    def _handed_bytes(self, shape: Shape) -> Num:
        """Return what the next product keeps of the output, in its own type."""
        return self._features(shape, self.saves) * shape.product_bytes

    def saved_bytes(self, shape: Shape) -> Num:
        """Return what is kept for the next product, in its type, and what a chain keeps beside it."""
        beside = self._features(shape, self.writes) * self.chain.saved * shape.element_bytes / 2
        return self._handed_bytes(shape) + beside
