"""Which calls of a trace are layers: numbered containers whose entries run one behind the other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_trace import Call, Trace, numel


@dataclass(frozen=True, slots=True)
class Stretch:
    """A layer of the graph: operations ``start`` to ``stop`` of the trace.

    Attributes
    ----------
    role
        As :class:`~meshwright.costmodels.operators.LayerKind` has it.
    stack
        Which container it belongs to (or leads to, or follows), counted in execution order.
    path, kind
        The block's module and class; empty outside the blocks.
    hidden
        Features per token of what it hands on.
    tokens
        Tokens of the example that it works on.
    length
        Of these, the tokens of one sequence (an image).
    given
        Root of the value that it takes, None for an embedding.
    output
        Root of the value that it hands on.
    """

    role: Literal["embedding", "block", "head"]
    stack: int
    start: int
    stop: int
    path: str
    kind: str
    hidden: int
    tokens: float
    given: int | None
    output: int
    length: int = 1


def stretches(flow: Flow) -> tuple[Stretch, ...]:
    """Return the layers in execution order: embedding, blocks, what lies between containers, head.

    What lies between two containers is split: what follows from the first alone (a final norm, a projector)
    is a block of its own, the rest the second one's embedding. A module without repeated blocks is one block.
    """
    stacks = _stacks(flow) or [[_whole(flow)]]
    order = sorted(
        ((call, i) for i, calls in enumerate(stacks) for call in calls), key=lambda pair: pair[0].start
    )
    found: list[Stretch] = []
    before, last = 0, -1
    for call, stack in order:
        block = _block(flow, call, stack)
        if stack != last:
            found += _lead(flow, found, block, before, call.start)
        else:
            block = replace(block, start=before)
        found.append(block)
        before, last = call.stop, stack
    end = found[-1]
    head = replace(
        end, role="head", start=before, stop=len(flow.trace.ops), path="", kind="", given=end.output
    )
    return (*found, head)


def _lead(flow: Flow, found: list[Stretch], block: Stretch, start: int, stop: int) -> list[Stretch]:
    """Return what leads to the first block of a container: the rest of the one before, and an embedding."""
    hidden = block.given if block.given is not None else block.output
    embedding = replace(
        block, role="embedding", start=start, stop=stop, path="", kind="", given=None, output=hidden
    )
    if not found:
        return [embedding]
    own = follows(flow, _begin(found), start, stop)
    if not own:
        return [embedding]
    results = [o for i in sorted(own) for o in flow.trace.ops[i].outputs]
    passed = [o for o in results if any(r.index not in own for r in flow.readers.get(o, ()))]
    output = (passed or results)[-1]
    width = flow.value(output).shape[-1]
    tokens = flow.value(output).size / width
    before = found[-1]
    bridge = replace(
        before,
        start=start,
        stop=stop,
        path="",
        kind="",
        hidden=width,
        tokens=tokens,
        given=before.output,
        output=output,
    )
    return [bridge, embedding]


def _begin(layers: Sequence[Stretch]) -> int:
    """Return where the first block of the last container begins."""
    return next((s.start for s in layers if s.stack == layers[-1].stack and s.path), 0)


def follows(flow: Flow, begin: int, start: int, stop: int) -> frozenset[int]:
    """Return the working operations of a range that follow only from what ran between ``begin`` and it."""
    made: set[int] = set()
    apart: set[int] = set()
    for op in flow.work:
        if not start <= op.index < stop:
            continue
        roots = [flow.root[i] for i in flow.moving(op)]
        earlier = [r for r in roots if (m := flow.maker(r)) is not None and begin <= m.index < start]
        inner = [r for r in roots if (m := flow.maker(r)) is not None and m.index in made]
        if roots and len(earlier) + len(inner) == len(roots):
            made.add(op.index)
        else:
            apart.add(op.index)
    return frozenset(made)


def layer_of(flow: Flow, layers: Sequence[Stretch]) -> list[int]:
    """Return the layer of each operation, by its index."""
    where = [0] * len(flow.trace.ops)
    for i, stretch in enumerate(layers):
        shared = i > 0 and (layers[i - 1].start, layers[i - 1].stop) == (stretch.start, stretch.stop)
        kept: frozenset[int] = frozenset()
        if shared:
            kept = follows(flow, _begin(layers[:i]), stretch.start, stretch.stop)
        for at in range(stretch.start, stretch.stop):
            where[at] = i - 1 if at in kept else i
    _postpone(flow, layers, where)
    return where


def _postpone(flow: Flow, layers: Sequence[Stretch], where: list[int]) -> None:
    """Move what serves a later container alone (tokens looked up before a tower) to its embedding."""
    start = {s.stack: i for i, s in reversed(list(enumerate(layers))) if s.role == "embedding"}
    for op in reversed(flow.work):
        own = layers[where[op.index]]
        readers = [where[r.index] for o in op.outputs for r in flow.readers.get(o, ())]
        if own.role != "embedding" or not readers:
            continue
        stack = layers[min(readers)].stack
        if stack > own.stack and stack in start:
            where[op.index] = start[stack]


def _whole(flow: Flow) -> Call:
    """Return the call of the whole module."""
    return next(call for call in flow.trace.calls if not call.path)


def _active(flow: Flow, values: tuple[int, ...]) -> list[int]:
    """Return the roots of the activations among values."""
    found = [
        flow.root[i] for i in values if flow.value(i).active and not flow.static[i] and flow.value(i).floating
    ]
    return list(dict.fromkeys(found))


def _block(flow: Flow, call: Call, stack: int) -> Stretch:
    """Return the stretch of a block; its width is that of what it hands on."""
    outputs = _active(flow, call.outputs)
    inputs = _active(flow, call.inputs)
    output = outputs[0] if outputs else (inputs or [0])[0]
    shape = flow.value(output).shape or (1,)
    hidden = shape[1] if _is_image(flow, call, shape) else shape[-1]
    given = inputs[0] if inputs else None
    image = hidden != shape[-1]
    length = numel(shape[2:] if image else shape[1:-1]) if len(shape) > 2 else numel(shape[:-1])
    return Stretch(
        "block",
        stack,
        call.start,
        call.stop,
        call.path,
        call.kind,
        hidden,
        flow.value(output).size / hidden,
        given,
        output,
        length,
    )


def _is_image(flow: Flow, call: Call, shape: tuple[int, ...]) -> bool:
    """Return whether channels come second: the block's products are convolutions over an image."""
    names = {op.name for op in flow.trace.ops[call.start : call.stop]}
    return len(shape) >= 3 and "convolution" in names and not names & {"mm", "addmm"}


def _stacks(flow: Flow) -> list[list[Call]]:
    """Return the calls of each container that holds layers, innermost containers that matter first."""
    chains = dict(_chains(flow))
    chosen = [path for path in chains if not _inside(path, chains)]
    final: list[str] = []
    while chosen:
        path = chosen.pop(0)
        inner = [p for p in chains if p.startswith(f"{path}.") and not _inside(p, _below(chains, path))]
        share = sum(_size(flow.trace, p) for p in inner)
        if inner and 2 * share > _size(flow.trace, path):
            chosen += inner
        else:
            final.append(path)
    return [chains[path] for path in sorted(final, key=lambda p: chains[p][0].start)]


def _below(paths: dict[str, list[Call]], path: str) -> dict[str, list[Call]]:
    return {p: c for p, c in paths.items() if p.startswith(f"{path}.")}


def _inside(path: str, others: dict[str, list[Call]]) -> bool:
    return any(path != p and (not p or path.startswith(f"{p}.")) for p in others)


def _size(trace: Trace, path: str) -> int:
    return sum(w.size for name, w in trace.weights.items() if name.startswith(f"{path}.") or not path)


def _chains(flow: Flow) -> Iterator[tuple[str, list[Call]]]:
    """Yield the containers whose entries hold modules, repeat a class, and feed one another."""
    parents = {path.rpartition(".")[0] for path in flow.trace.attributes if path}
    for path, entries in flow.trace.lists.items():
        own = {entry for entry, _ in entries if entry in parents}
        calls = [call for call in flow.trace.calls if call.path in own]
        classes = Counter(call.kind for call in calls)
        if len(calls) < 2 or max(classes.values()) < 2:
            continue
        if all(_feeds(flow, a, b) for a, b in pairwise(calls)):
            yield path, calls


def _feeds(flow: Flow, first: Call, second: Call) -> bool:
    """Return whether the second call runs behind the first on what it gave, whatever was done in between."""
    if second.start < first.stop:
        return False
    given = set(_active(flow, first.outputs))
    taken = _active(flow, second.inputs)
    if given & set(taken):
        return True
    makers = [op for i in taken if (op := flow.maker(i)) is not None and op.index >= first.stop]
    return any(flow.root[i] in given for op in makers for i in op.inputs)
