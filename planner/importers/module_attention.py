"""Attention in a trace: fused kernels, and softmax between two products of activations.

What lies between the two products (scale, mask, soft cap, softmax, dropout) belongs to the core. Whether it
is causal or windowed is read from the mask itself, which follows from constants; a mask that cannot be
known is taken for causal if the module around it says so (``is_causal``, ``is_decoder``) or says nothing.
"""

from dataclasses import dataclass
from typing import Any, Final

from meshwright.planner.importers.module_flow import Flow, plain, refs
from meshwright.planner.importers.module_trace import Op

SOFTMAX: Final = ("_softmax", "softmax", "_safe_softmax")
BATCHED: Final = ("bmm", "baddbmm", "matmul")
JOINS: Final = ("add", "masked_fill", "where")
"""Operations that put a mask on scores."""

HIDDEN_BELOW: Final = -1e4
"""An additive mask below this hides a key: the least half-precision number is -65504."""


@dataclass(frozen=True, slots=True)
class Core:
    """An attention core: what it consists of and its sizes.

    Attributes
    ----------
    ops
        Indices of the operations that it stands for; the last is the place where it runs.
    query, key, value, output
        Values.
    heads, kv_heads, head_dim, v_head_dim, causal, window, dropout
        As :class:`~meshwright.costmodels.attention.Attention` has them.
    biases
        Activations added to the scores (learned relative positions).
    sinks
        Whether learned logits join the softmax.
    assumed
        Whether ``causal`` could not be read.
    """

    ops: tuple[int, ...]
    query: int
    key: int
    value: int
    output: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    causal: bool
    window: int | None
    dropout: bool
    biases: tuple[int, ...] = ()
    sinks: bool = False
    assumed: bool = False
    scope: str = ""


def find_cores(flow: Flow) -> tuple[Core, ...]:
    """Return every attention core of a trace, in order."""
    found = []
    for op in flow.work:
        if "scaled_dot_product" in op.name or "flash_attention" in op.name or "flex_attention" in op.name:
            found.append(_fused(flow, op))
        elif op.name in SOFTMAX and (core := _unfused(flow, op)) is not None:
            found.append(core)
    return tuple(found)


def _fused(flow: Flow, op: Op) -> Core:
    """Return the core of a fused kernel, whose first inputs are query, key and value of (b, heads, s, d)."""
    query, key, value = op.inputs[:3]
    shape, key_shape = flow.value(query).shape, flow.value(key).shape
    mask = next((i for i in op.inputs[3:] if flow.value(i).shape[-1:] == key_shape[-2:-1]), None)
    flags = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, bool)]
    drops = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, float)]
    names = {"is_causal": flags[0] if flags else False, **op.kwargs}
    return _core(
        flow,
        op,
        ops=(op.index,),
        sides=(query, key, value),
        heads=shape[-3],
        kv_heads=key_shape[-3],
        masks=[] if mask is None else _masks_within(flow, mask, key_shape[-2]) or [(mask, "add", False)],
        causal=bool(names["is_causal"]),
        dropout=bool(drops and drops[0] > 0 and names.get("scale") != drops[0]),
        biases=tuple(i for i in op.inputs[3:] if flow.value(i).active and not flow.static[i]),
        output=op.outputs[0],
    )


def _unfused(flow: Flow, softmax: Op) -> Core | None:
    """Return the core around a softmax, None if it is something else (a router)."""
    before = _scores(flow, softmax)
    after = _weighted(flow, softmax)
    if before is None or after is None:
        return None
    scores, inner = before
    product, outer = after
    left, right = refs(scores.args)[-2:]
    value = refs(product.args)[-1]
    shape, length = flow.value(left).shape, flow.value(right).shape[-1]
    path = [flow.trace.ops[i] for i in sorted({*inner, *outer})]
    batch = max(
        1, flow.value(softmax.outputs[0]).shape[0] if flow.value(softmax.outputs[0]).shape[1:-2] else 1
    )
    heads = flow.value(scores.outputs[0]).size // (shape[-2] * length * batch)
    masks = [m for op in path for m in _masks(flow, op, length)]
    if scores.name == "baddbmm":
        masks += [(refs(scores.args)[0], "add", False)]
    return _core(
        flow,
        softmax,
        ops=(scores.index, *(op.index for op in path), softmax.index, product.index),
        sides=(left, right, value),
        heads=heads,
        kv_heads=heads,
        masks=masks,
        causal=False,
        dropout=any(flow.value(i).random for op in path for i in op.inputs)
        or any("dropout" in o.name for o in path),
        biases=tuple(i for op in path for i in flow.moving(op) if _beside(flow, i, scores, path)),
        output=product.outputs[0],
        sinks=any(op.name == "cat" and any(flow.static[i] for i in op.inputs) for op in path),
    )


def _beside(flow: Flow, index: int, scores: Op, path: list[Op]) -> bool:
    """Return whether an input of the path comes from elsewhere."""
    maker = flow.maker(index)
    return maker is None or (maker is not scores and maker not in path and maker.name not in SOFTMAX)


def _scores(flow: Flow, softmax: Op) -> tuple[Op, tuple[int, ...]] | None:
    """Return the product of queries and keys before a softmax, and the operations between them."""
    between: list[int] = []
    found: list[Op] = []
    todo, seen = list(flow.moving(softmax)), set[int]()
    while todo:
        op = flow.maker(todo.pop())
        if op is None or op.index in seen:
            continue
        seen.add(op.index)
        if op.name in BATCHED and len(flow.moving(op)) >= 2:
            found.append(op)
        elif flow.value(op.outputs[0]).shape[-2:-1] == flow.value(softmax.outputs[0]).shape[-2:-1]:
            between.append(op.index)
            todo += flow.moving(op)
    if len(found) != 1:
        return None
    return found[0], tuple(i for i in between if _reaches(flow, found[0], flow.trace.ops[i], between))


def _reaches(flow: Flow, start: Op, op: Op, among: list[int]) -> bool:
    """Return whether an operation follows from ``start`` through the given ones."""
    makers = [m for m in map(flow.maker, flow.moving(op)) if m is not None]
    return any(m is start or (m.index in among and _reaches(flow, start, m, among)) for m in makers)


def _weighted(flow: Flow, softmax: Op) -> tuple[Op, tuple[int, ...]] | None:
    """Return the product of weights and values behind a softmax, and the operations between them."""
    between: list[int] = []
    at = softmax.outputs[0]
    for _ in range(8):
        readers = [op for op in flow.readers.get(flow.root[at], ()) if op.index != softmax.index]
        product = next((op for op in readers if op.name in BATCHED and len(flow.moving(op)) >= 2), None)
        if product is not None:
            return product, tuple(between)
        if len(readers) != 1:
            return None
        between.append(readers[0].index)
        at = readers[0].outputs[0]
    return None


def _masks(flow: Flow, op: Op, length: int) -> list[tuple[int, str, bool]]:
    """Return the masks that an operation applies: (value, way, whether true hides)."""
    name = plain(op.name)
    if name not in JOINS:
        return []
    found = []
    for i in op.inputs:
        if not flow.value(i).active and _is_mask(flow, i, length):
            found.append((i, name, name == "masked_fill"))
        elif name == "add" and flow.value(i).active:
            found += _masks_within(flow, i, length)
    return found


def _is_mask(flow: Flow, index: int, length: int) -> bool:
    shape = flow.value(index).shape
    return len(shape) >= 2 and shape[-1] == length


def _masks_within(flow: Flow, index: int, length: int) -> list[tuple[int, str, bool]]:
    """Return the masks that were joined with a learned bias before it met the scores (T5)."""
    op = flow.maker(index)
    if op is None or flow.value(op.outputs[0]).shape[-1:] != (length,) or plain(op.name) not in JOINS:
        return []
    return _masks(flow, op, length)


def _core(
    flow: Flow,
    op: Op,
    *,
    ops: tuple[int, ...],
    sides: tuple[int, int, int],
    heads: int,
    kv_heads: int,
    masks: list[tuple[int, str, bool]],
    causal: bool,
    dropout: bool,
    biases: tuple[int, ...],
    output: int,
    sinks: bool = False,
) -> Core:
    query, key, value = sides
    length = flow.value(query).shape[-2]
    key_length = flow.value(value).shape[-2]
    seen = _visible(flow, masks, length, key_length)
    assumed = seen is None and bool(masks) and not causal
    window = None
    if seen is not None:
        causal, window = _band(seen)
    elif assumed:
        causal = length == key_length and _says_causal(flow, op.scope)
    if window is None and causal:
        window = _declared_window(flow, op.scope, length)
    return Core(
        ops=ops,
        query=query,
        key=key,
        value=value,
        output=output,
        heads=heads,
        kv_heads=kv_heads // _copies(flow, key),
        head_dim=flow.value(query).shape[-1],
        v_head_dim=flow.value(value).shape[-1],
        causal=causal,
        window=window,
        dropout=dropout,
        biases=biases,
        sinks=sinks,
        assumed=assumed,
        scope=op.scope,
    )


def _copies(flow: Flow, index: int) -> int:
    """Return how often keys are repeated on their way from the product that made them (grouped queries)."""
    times = 1
    for op in flow.chain(index):
        if op.name in ("expand", "repeat"):
            times *= max(1, flow.value(op.outputs[0]).size // max(1, flow.value(op.inputs[0]).size))
    return times


def _visible(flow: Flow, masks: list[tuple[int, str, bool]], queries: int, keys: int) -> Any:
    """Return which keys each query sees, a (queries, keys) array of truth values; None if not known."""
    import numpy as np

    seen: Any = None
    for index, _, hides in masks:
        known = flow.value(index).known
        if known is None:
            return None
        array: Any = (
            known.numpy() if str(known.dtype) == "torch.bool" else known.float().numpy() > HIDDEN_BELOW
        )
        array = np.logical_not(array) if hides else np.asarray(array)
        both: Any = np.broadcast_to(array, np.broadcast_shapes(array.shape, (queries, keys)))
        both = both.reshape(-1, queries, keys).any(axis=0)
        seen = both if seen is None else seen & both
    return seen


def _band(seen: Any) -> tuple[bool, int | None]:
    """Return whether a mask is causal, and its window if it is banded.

    A window of w keys lets a causal query see itself and w - 1 keys before it; one that looks both ways
    sees w - 1 on either side.
    """
    import numpy as np

    queries, keys = seen.shape
    causal = queries == keys and keys > 1 and not np.triu(seen, 1).any()
    widest = int(seen.sum(axis=1).max(initial=0))
    if queries != keys or widest >= keys or widest == 0:
        return causal, None
    return causal, widest if causal else (widest + 1) // 2


def _says_causal(flow: Flow, scope: str) -> bool:
    said = flow.trace.attribute(scope, "is_causal", "causal", "is_decoder")
    return True if said is None else bool(said)


def _declared_window(flow: Flow, scope: str, length: int) -> int | None:
    """Return the window that an attention module itself declares if the example was too short to show it."""
    own = flow.trace.attributes.get(scope, {}) if scope else {}
    window = own.get("sliding_window", own.get("window_size"))
    if not isinstance(window, int) or isinstance(window, bool):
        return None
    return window if window >= length else None
