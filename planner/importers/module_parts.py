"""The features of products as tensor parallelism splits them: heads, columns, the vocabulary."""

from meshwright.costmodels.part import Part
from meshwright.planner.importers.module_frame import Frame
from meshwright.planner.importers.module_nodes import Node, Product
from meshwright.planner.importers.module_sharding import Shard
from meshwright.planner.pieces import vocabulary, wide


class Parts(Frame):
    """The inputs and outputs of a layer's products."""

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
