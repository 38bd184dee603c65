"""From a layer's nodes to its operators, with boundaries, in the style of :mod:`meshwright.planner.blocks`.

Products that read one tensor for one purpose run as one (queries, keys and values; gate and up), as stacks
fuse them. Boundaries stand where data enters a column-parallel product and before partial sums are read.
What is kept for the backward pass: what products, attention, norms and activation functions read, except
the layer's input and output, which the memory model adds; sums and rotations need nothing.
"""

from dataclasses import dataclass
from math import isclose
from typing import Literal

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.rows import Contraction, OnRows
from meshwright.costmodels.shared import SharedGemm
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.planner.importers.module_mixture import Mixture
from meshwright.planner.importers.module_nodes import Node, Product
from meshwright.planner.importers.module_parts import Parts
from meshwright.planner.importers.module_saving import Saving
from meshwright.planner.importers.module_sharding import Shard
from meshwright.planner.pieces import vocabulary


class Layer(Parts, Saving):
    """One layer being lowered: each node becomes operators, in order."""

    def lower(self) -> tuple[Operator, ...]:
        """Return the layer's operators in order."""
        for node in self.nodes:
            if node.at in self.done:
                continue
            if self._has_loss():
                self._count(node)
                continue
            self._leave([root for root in node.reads if root in self.partial])
            if node.kind in ("pointwise", "attention") and any(root in self.split for root in node.reads):
                self._gather([root for root in node.reads if root not in self.split])
            _LOWER[node.kind](self, node)
        self._leave(list(self.partial))
        return tuple(self.operators)

    def _has_loss(self) -> bool:
        """Return whether what follows works on the logits: the cross entropy stands for it."""
        return self.stretch.role == "head" and any(isinstance(op, CrossEntropy) for op in self.operators)

    def _count(self, node: Node) -> None:
        """Count the parameters of a node that another operator stands for."""
        own = node.product.weights + node.product.biases if node.product else ()
        self.extra((*node.weights, *own), "merged_weights")

    def product(self, node: Node) -> None:
        """Lower a product, and with it those beside it that read the same tensor for the same purpose."""
        assert node.product is not None
        shard = self.shards[node.at]
        group = [node]
        if shard == "column":
            group = [n for n in self.nodes if n.kind == "product" and self._beside(node, n)]
            self._enter(self.flow.root[node.product.source])
        self.done |= {n.at for n in group}
        parts = [p for n in group for p in self.output_parts(n)]
        self._gemm(group, shard, tuple(parts))
        for n in group:
            if shard == "column":
                self.split |= dict.fromkeys(n.writes, self.output_parts(n)[0])
            elif shard == "row":
                self.partial |= {w: self.width(w) for w in n.writes}

    def _beside(self, one: Node, other: Node) -> bool:
        """Return whether two column-parallel products run as one kernel."""
        a, b = one.product, other.product
        if a is None or b is None or self.shards[other.at] != "column" or other.at in self.done:
            return False
        same = self.flow.root[a.source] == self.flow.root[b.source] and a.inputs == b.inputs
        alike = bool(a.biases) == bool(b.biases) and isclose(a.rows, b.rows)
        trained = self.claims.trained(a.weights) == self.claims.trained(b.weights)
        return same and alike and trained and self._sinks(one) == self._sinks(other)

    def _sinks(self, node: Node) -> set[int]:
        return {-1 if r.sink is None else r.sink.at for r in self.links.reach(node)}

    def _gemm(self, group: list[Node], shard: Shard, outputs: tuple[Part, ...]) -> None:
        """Append the operator of products that run as one, and what it does not count of their weights."""
        products = [n.product for n in group if n.product is not None]
        first, own = products[0], self._owned(products)
        if own.tied:
            self.tied += own.weights
        ends = self.stretch.role == "head" and outputs == (vocabulary(self.vocabulary),) and shard == "column"
        on = self._tokens_of(first, shard)
        gemm = (Gemm if own.plain or own.tied else SharedGemm)(
            self.name(self._joined(group)),
            self._input_part(first, shard),
            outputs,
            shard,
            bias=own.has_bias,
            saves_output=not ends and self._keeps(group, shard),
            tied=own.tied,
            trained=own.trained,
            on=on,
        )
        ratio = first.rows / self.stretch.tokens
        exact = on == "context" or isclose(ratio, 1.0, rel_tol=1e-9)
        self.operators.append(gemm if exact else OnRows(gemm, ratio))
        loose = 0 if own.plain or own.tied else own.counted + self.claims.take(own.weights, self.index)
        loose += own.biases if isinstance(gemm, SharedGemm) or not own.has_bias else 0
        if loose:
            rest = self.name(f"{gemm.name}.weights")
            self.operators.append(Pointwise(rest, "sequence", 0, 0, weights=loose, trained=own.trained))
        if ends:
            self.operators.append(CrossEntropy(self.name("loss"), outputs[0], FULL_LOGITS))

    def _owned(self, products: list[Product]) -> "_Owned":
        """Claim the weights of products that run as one."""
        weights = tuple(w for p in products for w in p.weights)
        sizes = [p.inputs * p.outputs for p in products]
        whole = all(self.claims.weights[p.weights[0]].size == n for p, n in zip(products, sizes, strict=True))
        trained, tied = self.claims.trained(weights), not self.claims.fresh(weights) and whole
        counted = sum(self._count_part(p.weights, n) for p, n in zip(products, sizes, strict=True))
        biases = sum(self._count_part(p.biases, p.outputs) for p in products)
        width = sum(p.outputs for p in products)
        return _Owned(
            weights, counted, biases, trained, tied, counted == products[0].inputs * width, biases == width
        )

    def _joined(self, group: list[Node]) -> str:
        """Return the label of the first node with the last words of all: ``attn.q_proj+k_proj``."""
        name = "+".join(self.label(n, "product").rpartition(".")[2] for n in group)
        return f"{self.label(group[0], 'product').rpartition('.')[0]}.{name}".lstrip(".")

    def _tokens_of(self, product: Product, shard: Shard) -> Literal["own", "context", "sequence"]:
        """Return whose tokens a product multiplies."""
        if self.flow.root[product.source] in self.context:
            return "context"
        return "sequence" if shard == "replicated" and self.stretch.role == "block" else "own"

    def _keeps(self, group: list[Node], shard: Shard) -> bool:
        """Return whether an output stays for the backward pass of what reads it."""
        keeps = self._bends if shard == "row" else self.needed
        return any(keeps(w) for n in group for w in n.writes)

    def _count_part(self, names: tuple[str, ...], elements: int) -> int:
        """Count so many elements of the one parameter that a product uses; return how many were left."""
        return self.claims.take_part(names[0], elements, self.index) if len(names) == 1 else 0

    def attention(self, node: Node) -> None:
        """Lower an attention core."""
        core = node.core
        assert core is not None
        cross = self.flow.root[core.key] in self.context or self._from_context(core.key)
        sinks = core.sinks and sum(self.claims.weights[w].size for w in node.weights) == core.heads
        if sinks:
            self.claims.take(node.weights, self.index)
        part = Part(core.heads * core.v_head_dim, core.heads, "attention heads")
        self.operators.append(
            Attention(
                self.name("cross_attention" if cross else "attention"),
                core.heads,
                core.kv_heads,
                core.head_dim,
                core.v_head_dim,
                causal=core.causal and not cross,
                window=core.window,
                dropout=core.dropout,
                cross=cross,
                sinks=sinks,
            )
        )
        self.extra(node.weights, "attention.weights")
        self.split |= dict.fromkeys(node.writes, part)

    def _from_context(self, value: int) -> bool:
        makers = self.links.origins(self.flow.root[value])
        return any(m.product is not None and self.flow.root[m.product.source] in self.context for m in makers)

    def contraction(self, node: Node) -> None:
        """Lower a product of two activations outside attention: FLOPs as at the example's length."""
        op = node.ops[0]
        out = self.flow.value(op.outputs[0])
        left = self.flow.value(self.flow.moving(op)[0])
        inner = left.shape[-1]
        split = any(r in self.split for r in node.reads)
        features = sum(self.flow.value(i).size for i in (*self.flow.moving(op), op.outputs[0]))
        self.operators.append(
            Contraction(
                self.name(self.label(node, "product_of_activations")),
                2.0 * out.size * inner / self.stretch.tokens,
                features / self.stretch.tokens,
                out.shape[-2] if len(out.shape) > 1 else 1,
                out.shape[-1],
                inner,
                split=split,
            )
        )
        if split:
            self.split |= {w: next(self.split[r] for r in node.reads if r in self.split) for w in node.writes}

    def lookup(self, node: Node) -> None:
        """Lower a look-up: the token table is split over the vocabulary, others are added weights."""
        if node.table == self.vocabulary and self.stretch.role == "embedding":
            width = self.flow.value(node.writes[0]).shape[-1]
            tied = not self.claims.fresh(node.weights)
            trained = self.claims.trained(node.weights)
            self.claims.take(node.weights, self.index)
            if tied:
                self.tied += node.weights
            rows = vocabulary(node.table)
            table = Embedding(self.name("tokens"), rows, width, trained=trained, tied=tied)
            self.operators.append(table)
            self.partial |= dict.fromkeys(node.writes, width)
        else:
            self.extra(node.weights, self.label(node, "table"))

    def pointwise(self, node: Node) -> None:
        """Lower a fused group; those that carry queries and keys into one attention core run as one."""
        group = [n for n in self.nodes if n is node or self._alike(node, n)]
        self.done |= {n.at for n in group}
        reads = sum(self.width_read(n) for n in group)
        written = [w for n in group for w in n.writes]
        writes = sum(self.width(w) for w in written)
        if not reads and not node.masks:
            self._count(node)
            return
        weights = tuple(w for n in group for w in n.weights)
        trained = self.claims.trained(weights)
        split = next((self.split[r] for n in group for r in n.reads if r in self.split), None)
        saves, light = self._saves(group, written)
        linear = all(n.linear for n in group)
        ratio = 1.0 if linear else (2 * reads + writes) / (reads + writes)
        self.operators.append(
            Pointwise(
                self.name(self._pointwise_name(group)),
                "sequence" if split is None else "tensor",
                reads,
                writes,
                saves=saves,
                mask_features=self.per_token(sum(n.masks for n in group)),
                weights=self.claims.take(weights, self.index),
                units=1 if split is None else split.units,
                backward_ratio=ratio,
                light=light,
                trained=trained,
                feeds_product=not linear and self._feeds(written),
            )
        )
        if split is not None:
            self.split |= {w: self.split.get(n.reads[0], split) for n in group for w in n.writes if n.reads}

    def _alike(self, one: Node, other: Node) -> bool:
        if (
            other.kind != "pointwise"
            or other.at in self.done
            or one.norm != other.norm
            or one.linear != other.linear
        ):
            return False
        return (
            self._into(one) is not None
            and self._into(one) == self._into(other)
            and self._level(one) == self._level(other)
        )

    def _level(self, node: Node) -> bool:
        """Return whether a group reads what another one wrote (so that they cannot run as one)."""
        return any(m.kind == "pointwise" for r in node.reads if (m := self.links.maker.get(r)) is not None)

    def _into(self, node: Node) -> int | None:
        """Return the attention core that alone a group leads to."""
        sinks = [r.sink for r in self.links.reach(node)]
        cores = {s.at for s in sinks if s is not None and s.kind == "attention"}
        return (
            next(iter(cores))
            if len(cores) == 1
            and all(s is not None for s in sinks)
            and len(sinks) == len([s for s in sinks if s is not None and s.kind == "attention"])
            else None
        )

    def _pointwise_name(self, group: list[Node]) -> str:
        if self._into(group[0]) is not None:
            return "qk_norm" if group[0].norm else "rotary" if group[0].linear else "qk"
        other = "residual" if group[0].linear else "pointwise"
        return self.label(group[0], other)

    def experts(self, node: Node) -> None:
        """Lower a module of experts with its router."""
        mixture: Mixture = self.mixtures[node.at]
        names = (*mixture.weights, *node.weights)
        total = self.claims.take(names, self.index)
        operators = mixture.operators(self.claims.trained(names))
        self.operators += operators
        missing = total - sum(op.parameters() for op in operators)
        if missing > 0:
            self.operators.append(Pointwise(self.name("expert_weights"), "sequence", 0, 0, weights=missing))


_LOWER = {
    "product": Layer.product,
    "contraction": Layer.contraction,
    "attention": Layer.attention,
    "lookup": Layer.lookup,
    "experts": Layer.experts,
    "pointwise": Layer.pointwise,
}


@dataclass(frozen=True, slots=True)
class _Owned:
    """What products that run as one claim of the module's parameters.

    Attributes
    ----------
    weights
        By name.
    counted, biases
        Elements that no layer had claimed before.
    trained, tied
        Whether they are trained; whether another layer has them already.
    plain, has_bias
        Whether these are all elements of the products' matrices, and of a bias for each output.
    """

    weights: tuple[str, ...]
    counted: int
    biases: int
    trained: bool
    tied: bool
    plain: bool
    has_bias: bool
