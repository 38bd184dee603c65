"""From a layer's nodes to its operators, with boundaries, in the style of :mod:`meshwright.planner.blocks`.

Products that read one tensor for one purpose run as one (queries, keys and values; gate and up), as stacks
fuse them. Boundaries stand where data enters a column-parallel product and before partial sums are read.
What is kept for the backward pass: what products, attention, norms and activation functions read, except
the layer's input and output, which the memory model adds; sums and rotations need nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Literal

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, Gemm, Operator, Part, Pointwise
from meshwright.costmodels.rows import Contraction, OnRows
from meshwright.costmodels.shared import SharedGemm
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.planner.importers.module_claims import Claims
from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_layers import Stretch
from meshwright.planner.importers.module_mixture import Mixture, mixture_of
from meshwright.planner.importers.module_nodes import Node, Product
from meshwright.planner.importers.module_sharding import Links, Shard, shards
from meshwright.planner.pieces import vocabulary, wide


@dataclass
class Layer:
    """One layer being lowered.

    Attributes
    ----------
    flow, stretch, index, claims
        The trace, what part of it, its number, and who counts which parameter.
    vocabulary
        Rows of the token table, 0 without one.
    context
        Roots of the other stream's activations (cross attention).
    is_source
        Whether this layer makes such activations for others, and keeps them.
    """

    flow: Flow
    stretch: Stretch
    index: int
    claims: Claims
    nodes: Sequence[Node]
    vocabulary: int
    context: frozenset[int] = frozenset()
    is_source: bool = False
    operators: list[Operator] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links = Links(self.flow, self.nodes)
        self.shards = shards(self.links, self.vocabulary, inferred=self.stretch.role == "block")
        self.split: dict[int, Part] = {}
        self.partial: dict[int, float] = {}
        self.entered: set[int] = set()
        self.mixtures = {n.at: mixture_of(self.links, n) for n in self.nodes if n.kind == "experts"}
        self.done = {at for m in self.mixtures.values() for at in m.absorbed}

    def width(self, root: int) -> int | float:
        """Return the features per token of a value."""
        return self.per_token(self.flow.value(root).size)

    def per_token(self, elements: int) -> int | float:
        """Return elements per token of the layer."""
        share = elements / self.stretch.tokens
        return int(share) if share.is_integer() else share

    def name(self, wanted: str) -> str:
        """Return a name that no operator of the layer has."""
        names = {op.name for op in self.operators}
        if wanted not in names:
            return wanted
        return next(f"{wanted}_{i}" for i in range(2, 10**6) if f"{wanted}_{i}" not in names)

    def label(self, node: Node, other: str) -> str:
        """Return a node's module within the layer, or another word where the layer itself ran it."""
        base = self.stretch.path
        path = node.scope.removeprefix(base).lstrip(".") if base else node.scope.rpartition(".")[2]
        return path or other

    def lower(self) -> tuple[Operator, ...]:
        """Return the layer's operators in order."""
        for node in self.nodes:
            if node.at in self.done:
                continue
            if self._is_loss(node):
                self._count(node)
                continue
            self._leave([root for root in node.reads if root in self.partial])
            if node.kind in ("pointwise", "attention") and any(root in self.split for root in node.reads):
                self._gather([root for root in node.reads if root not in self.split])
            _LOWER[node.kind](self, node)
        self._leave(list(self.partial))
        return tuple(self.operators)

    def _is_loss(self, node: Node) -> bool:
        """Return whether a node works on the logits: the cross entropy stands for it."""
        return self.stretch.role == "head" and any(isinstance(op, CrossEntropy) for op in self.operators)

    def _count(self, node: Node) -> None:
        """Count the parameters of a node that another operator stands for."""
        own = node.product.weights + node.product.biases if node.product else ()
        self.extra((*node.weights, *own), "merged_weights")

    def extra(self, names: Sequence[str], name: str) -> None:
        """Count parameters that no product holds, as weights without work."""
        for trained in (True, False):
            chosen = [n for n in self.claims.fresh(names) if self.claims.weights[n].trained is trained]
            if chosen:
                size = self.claims.take(chosen, self.index)
                self.operators.append(
                    Pointwise(self.name(name), "sequence", 0, 0, weights=size, trained=trained)
                )

    def _leave(self, roots: list[int]) -> None:
        """Reduce partial sums that are read next, all in one collective."""
        if roots:
            width = max(self.partial.pop(root) for root in roots)
            self.operators.append(Boundary(self.name("exit"), "exit", width))

    def _gather(self, roots: list[int]) -> None:
        """Enter the tensor-parallel region with values that meet split ones (MLA's rotary keys)."""
        for root in roots:
            if root in self.links.maker or root == self.stretch.given:
                self._enter(root)

    def _enter(self, root: int) -> None:
        if root in self.entered:
            return
        self.entered.add(root)
        if root in self.context:
            width = self.flow.value(root).shape[-1]
            self.operators.append(Boundary(self.name("context_enter"), "enter", width, on="context"))
        else:
            self.operators.append(Boundary(self.name("enter"), "enter", self.width(root)))

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

    def output_parts(self, node: Node) -> tuple[Part, ...]:
        """Return a product's outputs as tensor parallelism splits them."""
        product = node.product
        assert product is not None
        n = product.outputs
        if self.shards[node.at] != "column":
            return (wide(n),)
        sinks = [r.sink for r in self.links.reach(node) if r.sink is not None]
        if not sinks:
            return (vocabulary(n) if n == self.vocabulary else Part(n, n, "columns"),)
        attention = next((s for s in sinks if s.kind == "attention"), None)
        if attention is not None:
            return self._head_parts(node, attention, n)
        inner = next((s.product.inputs for s in sinks if s.product is not None), n)
        branches = n // inner if inner and n % inner == 0 else 1
        return (Part(n // branches, n // branches, "ffn columns"),) * branches

    def _head_parts(self, node: Node, attention: Node, n: int) -> tuple[Part, ...]:
        """Return queries, keys and values as far as a product makes them."""
        core = attention.core
        assert core is not None
        sides = {
            "q": (core.query, core.heads * core.head_dim, core.heads),
            "k": (core.key, core.kv_heads * core.head_dim, core.kv_heads),
            "v": (core.value, core.kv_heads * core.v_head_dim, core.kv_heads),
        }
        made = [s for s, (value, _, _) in sides.items() if node in self.links.origins(self.flow.root[value])]
        parts = {s: self._heads_part(s, *sides[s][1:]) for s in made}
        if parts and sum(p.features for p in parts.values()) == n:
            return tuple(parts.values())
        heads = core.heads if "q" in made else core.kv_heads
        return (Part(n, heads, "attention heads"),) if n % heads == 0 else (Part(n, n, "columns"),)

    def _heads_part(self, side: str, width: int, heads: int) -> Part:
        if side == "q":
            return Part(width, heads, "attention heads")
        return Part(width, heads, "key/value heads", replicable=True)

    def _gemm(self, group: list[Node], shard: Shard, outputs: tuple[Part, ...]) -> None:
        """Append the operator of products that run as one."""
        first = group[0].product
        assert first is not None
        products = [n.product for n in group if n.product is not None]
        weights = tuple(w for p in products for w in p.weights)
        tuple(b for p in products for b in p.biases)
        trained = self.claims.trained(weights)
        tied = not self.claims.fresh(weights) and all(
            self.claims.weights[p.weights[0]].size == p.inputs * p.outputs for p in products
        )
        counted = sum(self._count_part(p.weights, p.inputs * p.outputs) for p in products)
        plain = counted == first.inputs * sum(p.outputs for p in products)
        bias_size = sum(self._count_part(p.biases, p.outputs) for p in products)
        has_bias = bias_size == sum(p.outputs for p in products)
        if tied:
            self.tied += weights
        inputs = self._input_part(first, shard)
        name = "+".join(self.label(n, "product").rpartition(".")[2] for n in group)
        prefix = self.label(group[0], "product").rpartition(".")[0]
        on: Literal["own", "context", "sequence"] = "own"
        if self.flow.root[first.source] in self.context:
            on = "context"
        elif shard == "replicated" and self.stretch.role == "block":
            on = "sequence"
        kept = shard != "row" and any(self.needed(w) for n in group for w in n.writes)
        is_head = (
            self.stretch.role == "head" and outputs == (vocabulary(self.vocabulary),) and shard == "column"
        )
        if is_head:
            kept = False
        elif shard == "row":
            kept = any(self._bends(w) for n in group for w in n.writes)
        gemm = (Gemm if plain or tied else SharedGemm)(
            self.name(f"{prefix}.{name}".lstrip(".")),
            inputs,
            outputs,
            shard,
            bias=has_bias,
            saves_output=kept,
            tied=tied,
            trained=trained,
            on=on,
        )
        ratio = first.rows / self.stretch.tokens
        exact = on == "context" or isclose(ratio, 1.0, rel_tol=1e-9)
        self.operators.append(gemm if exact else OnRows(gemm, ratio))
        loose = 0 if plain or tied else counted + self.claims.take(weights, self.index)
        loose += bias_size if isinstance(gemm, SharedGemm) or not has_bias else 0
        if loose:
            self.operators.append(
                Pointwise(self.name(f"{gemm.name}.weights"), "sequence", 0, 0, weights=loose, trained=trained)
            )
        if is_head:
            self.operators.append(CrossEntropy(self.name("loss"), outputs[0], FULL_LOGITS))

    def _count_part(self, names: tuple[str, ...], elements: int) -> int:
        """Count so many elements of the one parameter that a product uses; return how many were left."""
        return self.claims.take_part(names[0], elements, self.index) if len(names) == 1 else 0

    def _input_part(self, product: Product, shard: Shard) -> Part:
        """Return a product's inputs: a row-parallel one's as they were split before."""
        split = self.split.get(self.flow.root[product.source])
        if shard != "row" or split is None:
            return wide(product.inputs)
        k = product.inputs
        if split.what == "key/value heads" or k % split.units:
            return Part(k, k, "ffn columns")
        units = k if split.what in ("ffn columns", "columns") else split.units
        return Part(k, units, split.what)

    def _bends(self, root: int) -> bool:
        """Return whether something that needs its input, and keeps it not itself, reads a value."""
        readers = self.links.readers.get(root, [])
        return any(r.kind != "pointwise" or not (r.linear or r.norm) for r in readers)

    def _carries(self, node: Node) -> bool:
        """Return whether a linear node only carries data into attention, which keeps the data itself."""
        reach = self.links.reach(node)
        return (
            node.linear
            and bool(reach)
            and all(r.sink is not None and r.sink.kind == "attention" for r in reach)
        )

    def needed(self, root: int) -> bool:
        """Return whether the backward pass needs a value."""
        for reader in self.links.readers.get(root, []):
            if reader.kind != "pointwise" or not reader.linear or self._carries(reader):
                return True
        return False

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

    def width_read(self, node: Node) -> int | float:
        """Return the features per token that a group reads, looked-up rows included."""
        return self.per_token(sum(node.sizes.values()))

    def _feeds(self, written: list[int]) -> bool:
        """Return whether products with weights alone read what a group writes."""
        readers = [r for w in written for r in self.links.readers.get(w, [])]
        plain = all(r.kind == "product" for r in readers) and self.stretch.output not in written
        plain = plain and self.stretch.role == "block"
        return bool(readers) and plain

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

    def _saves(self, group: list[Node], written: list[int]) -> tuple[float, bool]:
        """Return the features per token that a group keeps, and whether recomputing it frees them."""
        if all(self._carries(n) for n in group):
            return sum(self._widened(n) for n in group), False
        given = self.is_source and not self.stretch.path
        kept: float = sum(
            self.width(w)
            for w in written
            if (self.needed(w) and w != self.stretch.output) or (given and w == self.stretch.output)
        )
        if all(n.linear for n in group):
            return kept, False
        if any(n.norm for n in group) and any(self._unsaved(r) for n in group for r in n.reads):
            return kept + sum(self.width_read(n) for n in group if n.norm), False
        return kept, True

    def _widened(self, node: Node) -> int | float:
        """Return what data on its way into attention keeps: nothing, unless it grew (MLA's keys)."""
        written = sum(self.width(w) for w in node.writes)
        return written if written > self.width_read(node) else 0

    def _unsaved(self, root: int) -> bool:
        """Return whether nobody keeps a value that a norm needs: a partial sum, or looked-up rows."""
        maker = self.links.maker.get(root)
        if maker is None:
            return False
        return maker.kind == "lookup" or self.shards.get(maker.at) == "row"

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
