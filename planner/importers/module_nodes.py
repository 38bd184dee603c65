"""From a trace's operations to nodes: products, attention cores, look-ups, experts, and fused rest.

Operations that move memory are fused as a compiler or a hand-written kernel would: one joins the operations
that read it if they all are one group, in the same module or without a reduction on either side. So a
rotary embedding, a gated activation and a norm are one kernel each, and a sum and the norm behind it two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from meshwright.planner.importers.module_attention import Core, find_cores
from meshwright.planner.importers.module_experts import ExpertLayout
from meshwright.planner.importers.module_flow import LINEAR, PRODUCTS, REDUCTIONS, SCALINGS, Flow, plain, refs
from meshwright.planner.importers.module_trace import Op

NodeKind = Literal["product", "contraction", "attention", "lookup", "experts", "pointwise"]


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a weight: ``rows`` x ``inputs`` by ``inputs`` x ``outputs``; its weight and bias."""

    rows: float
    inputs: int
    outputs: int
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    source: int
    convolution: bool = False


@dataclass(slots=True)
class Node:
    """What becomes one operator.

    Attributes
    ----------
    kind
        What it is.
    ops
        Its operations, in order; it runs where the last one does.
    reads, writes
        Roots of the activations that it reads from others, and of those that others read from it.
    weights
        Parameters that it uses, those of a product apart.
    scope
        The module that ran it.
    sizes
        For each root that it reads, the elements that it looks at.
    norm, linear
        Whether it mixes an axis; whether its gradient needs no input.
    masks
        Elements of dropout masks.
    """

    kind: NodeKind
    ops: tuple[Op, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    weights: tuple[str, ...] = ()
    scope: str = ""
    product: Product | None = None
    core: Core | None = None
    layout: ExpertLayout | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    norm: bool = False
    linear: bool = False
    masks: int = 0
    table: int = 0

    @property
    def at(self) -> int:
        """Where it runs: the index of its last operation."""
        return self.ops[-1].index


def nodes_of(flow: Flow, segment: Sequence[int]) -> list[Node]:
    """Return the nodes of a trace in order; ``segment`` tells the layer of each operation (by its index).

    Nothing is fused across layers.
    """
    cores = find_cores(flow)
    taken = {i: core for core in cores for i in core.ops}
    nodes = [_core_node(flow, core) for core in cores]
    loose: list[Op] = []
    for op in flow.work:
        if op.index in taken:
            continue
        if op.name == "experts":
            nodes.append(_experts_node(flow, op))
        elif op.name in PRODUCTS and (node := _product_node(flow, op)) is not None:
            nodes.append(node)
        elif op.name == "embedding":
            nodes.append(_lookup_node(flow, op))
        else:
            loose.append(op)
    loose = _fold_biases(flow, nodes, loose)
    nodes += _fused_nodes(flow, loose, segment)
    return sorted(nodes, key=lambda n: n.at)


def _core_node(flow: Flow, core: Core) -> Node:
    ops = tuple(flow.trace.ops[i] for i in core.ops)
    sides = (core.query, core.key, core.value, *core.biases)
    reads = tuple(dict.fromkeys(flow.root[i] for i in sides))
    weights = tuple(w for op in ops for i in op.inputs if flow.static[i] for w in flow.weights(i))
    return Node("attention", ops, reads, (flow.root[core.output],), weights, core.scope, core=core)


def _experts_node(flow: Flow, op: Op) -> Node:
    layout = op.args[0]
    assert isinstance(layout, ExpertLayout)
    weights = tuple(w for i in op.inputs if flow.static[i] for w in flow.weights(i))
    reads = tuple(dict.fromkeys(flow.root[i] for i in flow.moving(op)))
    return Node("experts", (op,), reads, op.outputs, weights, op.scope, layout=layout)


def _lookup_node(flow: Flow, op: Op) -> Node:
    table = op.inputs[0]
    rows = flow.value(table).shape[0]
    return Node("lookup", (op,), (), op.outputs, flow.weights(table), op.scope, table=rows)


def _product_node(flow: Flow, op: Op) -> Node | None:
    """Return the node of a product: with a weight, or of two activations; None for one of weights alone."""
    operands = refs(op.args)
    offset = op.name in ("addmm", "baddbmm", "addmv")
    left, right = operands[offset], operands[offset + 1]
    if flow.static[left] and not flow.static[right]:
        left, right = right, left
    reads = tuple(dict.fromkeys(flow.root[i] for i in flow.moving(op)))
    if not flow.static[right]:
        return Node("contraction", (op,), reads, op.outputs, (), op.scope)
    extra = operands[:1] if offset else operands[2:3]
    biases = tuple(w for i in extra if flow.static[i] for w in flow.weights(i))
    convolution = "conv" in op.name
    inputs, outputs, rows = _sizes(flow, op, left, right, convolution)
    product = Product(rows, inputs, outputs, flow.weights(right), biases, left, convolution)
    reads = reads or (flow.root[left],)
    return Node("product", (op,), reads, op.outputs, scope=op.scope, product=product)


def _sizes(flow: Flow, op: Op, left: int, right: int, convolution: bool) -> tuple[int, int, float]:
    """Return (inputs, outputs, rows) of a product with the weight ``right``."""
    out, weight = flow.value(op.outputs[0]), flow.value(right)
    if convolution:
        transposed = any(a is True for a in op.args)
        if transposed:
            inputs = weight.shape[0]
            return inputs, weight.size // inputs, flow.value(left).size / inputs
        return weight.size // weight.shape[0], weight.shape[0], out.size / weight.shape[0]
    swapped = flow.root[refs(op.args)[-1]] != flow.root[right]
    inner = (
        weight.shape[-1]
        if swapped and len(weight.shape) > 1
        else weight.shape[-2]
        if len(weight.shape) > 1
        else weight.size
    )
    size = min(weight.size, flow.value(flow.root[right]).size)
    # FLOPs are 2 x (elements of the result) x inner = 2 x rows x (elements of the weight)
    return inner, size // inner, out.size * inner / size


def _fold_biases(flow: Flow, nodes: list[Node], loose: list[Op]) -> list[Op]:
    """Return the operations that are left when a bias added right behind a product joins the product."""
    makers = {n.writes[0]: n for n in nodes if n.kind == "product"}
    left: list[Op] = []
    for op in loose:
        static = [i for i in op.inputs if flow.static[i]]
        moving = flow.moving(op)
        node = makers.get(flow.root[moving[0]]) if len(moving) == 1 else None
        one = node is not None and len(flow.readers.get(node.writes[0], ())) == 1
        if (
            (
                plain(op.name) == "add"
                and one
                and len(static) == 1
                and node is not None
                and node.product is not None
            )
            and flow.value(static[0]).size == node.product.outputs
            and not node.product.biases
        ):
            p = node.product
            node.product = Product(
                p.rows, p.inputs, p.outputs, p.weights, flow.weights(static[0]), p.source, p.convolution
            )
            node.ops, node.writes = (*node.ops, op), op.outputs
            continue
        left.append(op)
    return left


def _fused_nodes(flow: Flow, loose: list[Op], segment: Sequence[int]) -> list[Node]:
    """Return the groups of the operations that move memory, each as one node."""
    groups: dict[int, list[Op]] = {}
    home: dict[int, int] = {}
    norms = _norm_scopes(flow, loose)
    for op in reversed(loose):
        readers = [r for o in op.outputs for r in flow.readers.get(o, ())]
        targets = {home.get(r.index, -1) for r in readers}
        joined = next(iter(targets)) if len(targets) == 1 else -1
        if joined >= 0 and _fits(op, groups[joined], segment, norms):
            groups[joined].append(op)
            home[op.index] = joined
        else:
            groups[op.index] = [op]
            home[op.index] = op.index
    return [_group_node(flow, list(reversed(ops))) for ops in groups.values()]


def _norm_scopes(flow: Flow, loose: list[Op]) -> frozenset[str]:
    """Return the modules that do nothing but normalise: all that they run is one kernel."""
    others = {op.scope for op in flow.work if op.name in PRODUCTS or "attention" in op.name}
    return frozenset(op.scope for op in loose if _reduces(op)) - others


def _fits(op: Op, group: list[Op], segment: Sequence[int], norms: frozenset[str]) -> bool:
    """Return whether an operation may run in one kernel with a group that alone reads it."""
    if segment[op.index] != segment[group[0].index]:
        return False
    scopes = {o.scope for o in group}
    if scopes == {op.scope}:
        return True
    apart = op.scope in norms or _reduces(op) or bool(scopes & norms) or any(map(_reduces, group))
    return not apart


def _reduces(op: Op) -> bool:
    return plain(op.name) in REDUCTIONS


def _group_node(flow: Flow, ops: list[Op]) -> Node:
    inside = {o for op in ops for o in op.outputs}
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    for op in ops:
        for i in flow.moving(op):
            root = flow.root[i]
            if root in inside or i in seen:
                continue
            seen.add(i)
            whole = flow.value(root).size
            sizes[root] = min(whole, sizes.get(root, 0) + min(whole, flow.value(i).size))
    own = {op.index for op in ops}
    kept = {flow.root[o] for o in flow.trace.outputs}
    writes = tuple(
        o
        for op in ops
        for o in op.outputs
        if o in kept or any(r.index not in own for r in flow.readers.get(o, ()))
    )
    weights = tuple(
        dict.fromkeys(w for op in ops for i in op.inputs if flow.static[i] for w in flow.weights(i))
    )
    return Node(
        "pointwise",
        tuple(ops),
        tuple(sizes),
        writes or ops[-1].outputs[:1],
        weights,
        _common([op.scope for op in ops]),
        sizes=sizes,
        norm=any(map(_reduces, ops)),
        linear=all(_is_linear(flow, op) for op in ops),
        masks=sum(_mask(flow, op) for op in ops),
    )


def _is_linear(flow: Flow, op: Op) -> bool:
    name = plain(op.name)
    if name in LINEAR or "dropout" in name:
        return True
    return name in SCALINGS and len(flow.moving(op)) <= 1


def _mask(flow: Flow, op: Op) -> int:
    """Return the elements of the dropout mask that an operation applies."""
    name = plain(op.name)
    if "dropout" in name:
        return flow.value(op.outputs[0]).size
    drawn = [i for i in op.inputs if flow.value(i).random]
    return flow.value(drawn[0]).size if name == "mul" and drawn else 0


def _common(scopes: list[str]) -> str:
    """Return the path of the innermost module around all scopes."""
    parts = [s.split(".") if s else [] for s in scopes]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)
