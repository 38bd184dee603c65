"""The graph as it is trained: frozen operators, adapters, layers without a backward pass, 16-bit blocks.

Each function returns a new graph with the same layers and edges and other kinds; nothing is changed in
place. What is frozen has no gradient of its weights, and so its input need not be kept: whoever kept it for
that product alone keeps nothing. Gradients flow back as far as the first trained weight: layers that no
trained weight precedes have no backward pass.

Left out: inside the first layer that is trained, the input's gradients that nobody needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal

from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router
from meshwright.costmodels.operators import Boundary, LayerKind, Operator, Pointwise
from meshwright.costmodels.precision import Precision
from meshwright.costmodels.product import Gemm
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.adapters import Module, adapters, addition, modules, targeted
from meshwright.planner.graph import ModelGraph
from meshwright.planner.tuning import Tuning

Treatment = Literal["trained", "adapted", "frozen"]
Adapted = Mapping[str, tuple[Module, ...]]
"""Modules that get adapters, by the name of their product."""


def tuned(graph: ModelGraph, tuning: Tuning) -> ModelGraph:
    """Return the graph that a tuning trains.

    Raises
    ------
    MeshwrightError
        If a target or a stream is not in the model, more blocks are frozen than there are, or nothing is
        left to train.
    """
    return graph if tuning.kind == "full" else _tuned(graph, tuning)


@lru_cache(maxsize=64)
def _tuned(graph: ModelGraph, tuning: Tuning) -> ModelGraph:
    _check_names(graph, tuning)
    treatments = _treatments(graph, tuning)
    if all(t == "frozen" for t in treatments):
        raise MeshwrightError(f"tuning: {tuning} leaves nothing to train; freeze less")
    reached = _reached(graph, treatments)
    made = {
        key: _tuned_kind(graph, tuning, *key)
        for key in dict.fromkeys(zip(graph.layer_kinds, treatments, reached, strict=True))
    }
    layers = [made[key] for key in zip(graph.layer_kinds, treatments, reached, strict=True)]
    return _with_kinds(graph, layers)


def mixed(graph: ModelGraph, precision: Precision) -> ModelGraph:
    """Return the graph whose first and last blocks stay in 16 bits where the recipe says so."""
    blocks = graph.block_layers
    first, last = (round(share * len(blocks)) for share in precision.high_blocks)
    high = {*blocks[:first], *blocks[len(blocks) - last :]}
    if not high:
        return graph
    kinds = [graph.kinds[k] for k in graph.layer_kinds]
    return _with_kinds(graph, [_high(kind) if i in high else kind for i, kind in enumerate(kinds)])


def trainable_parameters(graph: ModelGraph) -> int:
    """Return the parameters that are trained; a tied copy counts once, with its original."""
    return sum(op.parameters() for k in graph.layer_kinds for op in graph.kinds[k].operators if op.trained)


def _high(kind: LayerKind) -> LayerKind:
    return replace(kind, name=f"{kind.name}.high", low_precision=False)


def _with_kinds(graph: ModelGraph, layers: Sequence[LayerKind]) -> ModelGraph:
    """Return the graph with a kind for each layer, equal ones made one."""
    objects = {id(kind): kind for kind in layers}  # comparing kinds is slow, and most layers share one
    kinds = tuple(dict.fromkeys(objects.values()))
    place = {key: kinds.index(kind) for key, kind in objects.items()}
    return replace(graph, kinds=kinds, layer_kinds=tuple(place[id(kind)] for kind in layers))


def _check_names(graph: ModelGraph, tuning: Tuning) -> None:
    """Refuse targets and streams that the model does not have, and too many frozen blocks."""
    streams = list(dict.fromkeys(kind.stream for kind in graph.kinds))
    for stream in tuning.frozen_streams:
        if stream not in streams:
            raise MeshwrightError(
                f"tuning: {stream!r} is no stream of {graph.name}; it has {', '.join(streams)}"
            )
    blocks = len(_main_blocks(graph))
    if tuning.frozen_layers > blocks:
        raise MeshwrightError(
            f"tuning: frozen_layers {tuning.frozen_layers} are more than the {blocks} blocks of {graph.name}"
        )
    if tuning.kind == "lora":
        _check_targets(graph, tuning)


def _check_targets(graph: ModelGraph, tuning: Tuning) -> None:
    products = [op for op in _block_operators(graph) if isinstance(op, Gemm | ExpertGemm)]
    hits = {t for op in products for named, _ in targeted(op, graph.family, tuning.targets) for t in named}
    missing = [t for t in tuning.targets if t not in hits]
    if missing:
        names = dict.fromkeys(
            name for op in products for name in (op.name, *(m.name for m in modules(op, graph.family)))
        )
        raise MeshwrightError(
            f"tuning: target {missing[0]!r} names no product of {graph.name}; it has all-linear, attention, "
            f"mlp, experts (where there are some) and {', '.join(names)}"
        )


def _block_operators(graph: ModelGraph) -> Iterable[Operator]:
    return (op for kind in graph.kinds if kind.role == "block" for op in kind.operators)


def _main_stream(graph: ModelGraph) -> str:
    """Return the stream that the last layer works on."""
    return graph.kinds[graph.layer_kinds[-1]].stream


def _main_blocks(graph: ModelGraph) -> tuple[int, ...]:
    """Return the blocks of the main stream."""
    main = _main_stream(graph)
    return tuple(i for i in graph.block_layers if graph.kinds[graph.layer_kinds[i]].stream == main)


def _treatments(graph: ModelGraph, tuning: Tuning) -> list[Treatment]:
    """Return what is done with each layer."""
    each = [_ends(graph, tuning, kind) or _block(graph, tuning, kind) for kind in graph.kinds]
    first = set(_main_blocks(graph)[: tuning.frozen_layers])
    return ["frozen" if i in first else each[k] for i, k in enumerate(graph.layer_kinds)]


def _block(graph: ModelGraph, tuning: Tuning, kind: LayerKind) -> Treatment:
    if tuning.kind == "freeze":
        return "trained"
    return "adapted" if _adapted(graph, kind, tuning) else "frozen"


def _ends(graph: ModelGraph, tuning: Tuning, kind: LayerKind) -> Treatment | None:
    """Return what is done with an embedding, a head or a frozen stream; None for the blocks in between.

    Blocks that are frozen take the embedding before them along, and a tied head with it.
    """
    if kind.stream in tuning.frozen_streams:
        return "frozen"
    if kind.role == "block":
        return None
    keeps = tuning.train_embeddings
    if tuning.kind == "freeze":
        taken = tuning.frozen_layers and kind.stream == _main_stream(graph)
        keeps = keeps or not taken or (kind.role == "head" and not graph.tied)
    return "trained" if keeps else "frozen"


def _reached(graph: ModelGraph, treatments: Sequence[Treatment]) -> list[bool]:
    """Return whether each layer has a trained weight in it or before it."""
    before: dict[int, list[int]] = {}
    for start, end in graph.edges:
        before.setdefault(end, []).append(start)
    reached: list[bool] = []
    for layer, treatment in enumerate(treatments):
        reached.append(treatment != "frozen" or any(reached[i] for i in before.get(layer, ())))
    return reached


def _tuned_kind(graph: ModelGraph, tuning: Tuning, index: int, treatment: Treatment, back: bool) -> LayerKind:
    kind = graph.kinds[index]
    if treatment == "trained":
        return kind
    adapted = _adapted(graph, kind, tuning) if treatment == "adapted" else {}
    stored = tuning.stored_bytes if kind.role == "block" else None
    frozen = tuple(_frozen(op, stored) for op in kind.operators)
    lean = _without_needless(frozen, adapted)
    operators = tuple(made for op in lean for made in _beside(op, adapted.get(op.name, ()), tuning))
    suffix = "" if treatment == "adapted" or kind.role != "block" else ".passing" if back else ".frozen"
    return replace(kind, name=kind.name + suffix, operators=operators, backward=back)


def _adapted(graph: ModelGraph, kind: LayerKind, tuning: Tuning) -> Adapted:
    chosen = {
        op.name: tuple(module for _, module in targeted(op, graph.family, tuning.targets))
        for op in kind.operators
        if isinstance(op, Gemm | ExpertGemm)
    }
    return {name: found for name, found in chosen.items() if found}


def _beside(op: Operator, chosen: tuple[Module, ...], tuning: Tuning) -> tuple[Operator, ...]:
    """Return an operator with its adapters: before it, so that it stays a layer's last product."""
    if not chosen or not isinstance(op, Gemm | ExpertGemm):
        return (op,)
    return *adapters(op, chosen, tuning), op, *addition(op, chosen)


def _frozen(op: Operator, stored_bytes: float | None) -> Operator:
    """Return an operator whose weights are frozen, linear ones in the type in which they are stored."""
    changes: dict[str, Any] = {}
    own = {f.name for f in fields(op)}  # type: ignore[arg-type]
    if "trained" in own and op.parameters() + getattr(op, "tied", False):
        changes["trained"] = False
    if isinstance(op, Gemm | ExpertGemm):
        changes["stored_bytes"] = stored_bytes
    return replace(op, **changes) if changes else op  # type: ignore[type-var]


def _without_needless(ops: Sequence[Operator], adapted: Adapted) -> tuple[Operator, ...]:
    """Return operators that keep nothing for the weights' gradients of products that have none."""
    return tuple(
        _keeps_nothing(op) if _needless(op, ops[i + 1 :], adapted) else op for i, op in enumerate(ops)
    )


def _keeps_nothing(op: Operator) -> Operator:
    if isinstance(op, Exchange):
        return replace(op, saves=False)
    return replace(op, saves=0)  # type: ignore[type-var]


def _needless(op: Operator, behind: Sequence[Operator], adapted: Adapted) -> bool:
    """Return whether all that an operator keeps is the input of products that do not need it."""
    if isinstance(op, Exchange | ExpertActivation):
        readers = [r for r in behind[:1] if isinstance(r, ExpertGemm)]
    elif isinstance(op, Pointwise) and op.light and op.saves:
        readers = _sequence_readers(op, behind) if op.region == "sequence" else _next_product(behind)
    else:
        return False
    return bool(readers) and not any(r.trained or r.name in adapted for r in readers)


def _sequence_readers(op: Pointwise, behind: Sequence[Operator]) -> list[Any]:
    """Return the products that read the result of a norm: as wide, before the next sequence operator."""
    readers: list[Any] = []
    for other in behind:
        if isinstance(other, Pointwise) and other.region == "sequence" and other.reads:
            break
        if isinstance(other, Gemm) and other.shard != "row" and other.inputs.features == op.writes:
            readers.append(other)
        if isinstance(other, Router):
            readers.append(other)
    return readers


def _next_product(behind: Sequence[Operator]) -> list[Any]:
    """Return the product that follows at once."""
    for other in behind:
        if isinstance(other, Boundary) or (isinstance(other, Pointwise) and not other.reads):
            continue
        return [other] if isinstance(other, Gemm) else []
    return []
