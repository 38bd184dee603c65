"""Which tokens each container of layers works on: the main sequence, a decoder's target, images."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

from meshwright.planner.graph import Stream
from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_layers import Stretch
from meshwright.planner.importers.module_nodes import Node

MAIN = "text"


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of a module.

    Attributes
    ----------
    names
        The stream of each layer.
    streams
        Those other than plain text.
    contexts
        For each layer the roots of the other stream's activations that its products read.
    source
        The layer whose output they are, None without cross attention.
    """

    names: tuple[str, ...]
    streams: tuple[Stream, ...]
    contexts: tuple[frozenset[int], ...]
    source: int | None


def find_streams(flow: Flow, layers: Sequence[Stretch], nodes: Sequence[Sequence[Node]]) -> Streams:
    """Return the streams of the layers.

    The main stream is that of the last container that begins with a look-up of its own tokens, cross
    attention aside; a container before it without tokens of its own reads images, and one whose blocks read
    another's output beside their own works on the target.
    """
    stacks = sorted({s.stack for s in layers})
    first = {
        j: next(s for s in layers if (s.stack == j and s.role == "block" and s.path) or s.stack == j)
        for j in stacks
    }
    contexts = tuple(_contexts(flow, layers, i, nodes[i]) for i in range(len(layers)))
    crossing = {s.stack for s, c in zip(layers, contexts, strict=True) if c}
    reading = {s.stack for i, s in enumerate(layers) if any(_looks_up(flow, n) for n in nodes[i])}
    plain = [j for j in stacks if j in reading and j not in crossing]
    main = plain[-1] if plain else next((j for j in stacks if j not in crossing), stacks[0])
    made = {j: _stream(j, main, first, crossing, reading, layers) for j in stacks}
    names = [MAIN if (m := made[s.stack]) is None else m.name for s in layers]
    found = [m for m in made.values() if m is not None]
    for i, stretch in enumerate(layers):
        image = made[stretch.stack]
        leads = stretch.stack == main - 1
        if _is_bridge(stretch) and leads and image is not None and image.source == "image":
            names[i] = "image"
            found.append(Stream("image", "image"))
    context = next((root for c in contexts for root in sorted(c)), None)
    source = None if context is None else _origin(flow, layers, context)
    return Streams(tuple(names), tuple(dict.fromkeys(found)), contexts, source)


def _is_bridge(stretch: Stretch) -> bool:
    return stretch.role == "block" and not stretch.kind


def _looks_up(flow: Flow, node: Node) -> bool:
    return node.kind == "lookup" and flow.value(node.ops[0].inputs[1]).from_input


def _stream(
    stack: int,
    main: int,
    first: dict[int, Stretch],
    crossing: set[int],
    reading: set[int],
    layers: Sequence[Stretch],
) -> Stream | None:
    """Return the stream of a container, None for the main one."""
    if stack in crossing:
        return Stream("target", "target")
    if stack == main:
        return None
    tokens = first[stack].tokens
    if main in reading and stack not in reading and stack < main:
        bridge = next((s for s in layers if s.stack == stack and _is_bridge(s)), first[stack])
        ratio = tokens / bridge.tokens if stack == main - 1 else 1.0
        return Stream(_patches(stack), "image", ratio=ratio, block=round(first[stack].length / ratio))
    if main in reading and stack not in reading and not any(_is_bridge(s) for s in layers if s.stack == main):
        return Stream(_patches(stack), "image", block=first[stack].length)
    ratio = tokens / first[main].tokens
    return None if isclose(ratio, 1.0) else Stream(f"stack{stack}", "sequence", ratio=ratio)


def _patches(stack: int) -> str:
    return f"patches{stack}" if stack else "patches"


def _contexts(flow: Flow, layers: Sequence[Stretch], index: int, nodes: Sequence[Node]) -> frozenset[int]:
    """Return the activations from before a block's container that its products read."""
    stretch = layers[index]
    if stretch.role != "block" or not stretch.path:
        return frozenset()
    begin = next(s.start for s in layers if s.stack == stretch.stack and (s.path or s.role == "embedding"))
    found = set()
    for node in nodes:
        if node.product is None:
            continue
        root = flow.root[node.product.source]
        maker = flow.maker(root)
        owner = None if maker is None else _origin(flow, layers, root)
        earlier = owner is not None and layers[owner].stack < stretch.stack
        if (
            maker is not None
            and earlier
            and root != stretch.given
            and maker.index < max(begin, stretch.start)
        ):
            found.add(root)
    return frozenset(found)


def _origin(flow: Flow, layers: Sequence[Stretch], root: int) -> int | None:
    """Return the layer that made a value."""
    maker = flow.maker(root)
    if maker is None:
        return None
    made = [i for i, s in enumerate(layers) if s.start <= maker.index < s.stop]
    return made[0] if made else None
