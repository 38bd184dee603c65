"""The flow of a trace: views resolved, weights told from activations, and who reads what."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from meshwright.planner.importers.module_trace import Op, Ref, Trace, Value

VIEWS: Final = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "t",
        "transpose",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "unsafe_split",
        "unsafe_chunk",
        "chunk",
        "unbind",
        "alias",
        "detach",
        "as_strided",
        "clone",
        "contiguous",
        "_to_copy",
        "lift_fresh",
        "lift",
        "narrow",
        "diagonal",
        "unfold",
        "movedim",
        "swapaxes",
        "numpy_T",
        "real",
        "imag",
        "view_as_real",
        "view_as_complex",
        "_conj",
        "lift_fresh_copy",
        "positive",
        "resolve_conj",
        "im2col",
    ]
)
"""Operations that move nothing that a fused kernel would not: views, copies into another layout."""

SCALINGS: Final = frozenset(["mul", "div", "add", "sub", "rsub", "true_divide"])
"""Operations that fuse into their neighbour when the other operand is a single number."""

PRODUCTS: Final = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "mv",
        "addmv",
        "matmul",
        "linear",
        "convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "_grouped_mm",
    ]
)

REDUCTIONS: Final = frozenset(
    [
        "mean",
        "sum",
        "var",
        "var_mean",
        "std",
        "norm",
        "linalg_vector_norm",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
        "rms_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
        "_softmax",
        "softmax",
        "_log_softmax",
        "logsumexp",
        "amax",
        "amin",
        "argmax",
        "cumsum",
        "topk",
        "sort",
        "max",
        "min",
        "prod",
    ]
)
"""Operations that mix an axis: a group that holds one is a norm (or a softmax), and no activation."""

LINEAR: Final = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "neg",
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "roll",
        "flip",
        "masked_fill",
        "where",
        "constant_pad_nd",
        "repeat",
        "native_dropout",
        "dropout",
        "index_add",
        "index_put",
        "index_copy",
        "scatter",
        "scatter_add",
        "slice_scatter",
        "select_scatter",
        "masked_scatter",
        "copy",
        "pad",
        "embedding",
        "tril",
        "triu",
        "zero",
        "fill",
        "repeat_interleave",
        "upsample",
        "avg_pool2d",
        "pixel_unshuffle",
        "avg_pool1d",
        "pixel_shuffle",
    ]
)
"""Operations whose gradient needs no input; products with a constant (a rotary table) count as such."""


def plain(name: str) -> str:
    """Return an operation's name without the mark of writing in place."""
    return name[:-1] if name.endswith("_") and len(name) > 1 else name


@dataclass
class Flow:
    """A trace with its views resolved.

    Attributes
    ----------
    trace
        What was recorded.
    root
        For each value the one that it is a view of (itself if it is none).
    static
        Values that follow from weights alone, without a look-up: weights in another layout or type.
    """

    trace: Trace
    root: list[int] = field(default_factory=list)
    static: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        for i, value in enumerate(self.trace.values):
            op = None if value.producer is None else self.trace.ops[value.producer]
            self.root.append(i if op is None else self._root(op, i))
            self.static.append(value.weight is not None or (op is not None and self._static(op, value)))

    def _root(self, op: Op, own: int) -> int:
        name = plain(op.name)
        if name in VIEWS and op.inputs:
            return self.root[op.inputs[0]]
        if name == "copy" and len(op.inputs) == 2:  # what is written, not what it replaces
            return self.root[op.inputs[1]]
        if name in SCALINGS and (one := self._scaled(op)) is not None:
            return self.root[one]
        return own

    def _scaled(self, op: Op) -> int | None:
        """Return the one operand that is more than a number, if the others are numbers."""
        values = self.trace.values
        wide = [i for i in op.inputs if values[i].active]
        others = [i for i in op.inputs if not values[i].active]
        single = len(wide) == 1 and all(values[i].size == 1 and not values[i].random for i in others)
        return wide[0] if single and values[wide[0]].shape == values[op.outputs[0]].shape else None

    def _static(self, op: Op, value: Value) -> bool:
        if not value.active or plain(op.name) == "embedding":
            return False
        active = [i for i in op.inputs if self.trace.values[i].active]
        return not value.from_input and all(self.static[i] for i in active)

    def value(self, index: int) -> Value:
        """Return a value."""
        return self.trace.values[index]

    def is_view(self, op: Op) -> bool:
        """Return whether an operation is only another look at its input."""
        return all(self.root[o] != o for o in op.outputs)

    @cached_property
    def work(self) -> tuple[Op, ...]:
        """Operations that do something to activations, in order."""
        return tuple(op for op in self.trace.ops if self._works(op))

    @cached_property
    def live(self) -> frozenset[int]:
        """Operations from which something reaches what the module returns (all, if it returns no tensor)."""
        if not self.trace.outputs:
            return frozenset(range(len(self.trace.ops)))
        wanted = set(self.trace.outputs)
        found = []
        for op in reversed(self.trace.ops):
            if not wanted.isdisjoint(op.outputs):
                wanted.update(op.inputs)
                found.append(op.index)
        return frozenset(found)

    def _works(self, op: Op) -> bool:
        first = op.outputs[0]
        if op.index not in self.live:
            return False
        return self.value(first).active and not self.static[first] and not self.is_view(op)

    @cached_property
    def readers(self) -> dict[int, tuple[Op, ...]]:
        """For each root the operations that read it or a view of it."""
        found: dict[int, list[Op]] = defaultdict(list)
        for op in self.work:
            for root in dict.fromkeys(self.root[i] for i in op.inputs):
                found[root].append(op)
        return {root: tuple(ops) for root, ops in found.items()}

    def maker(self, index: int) -> Op | None:
        """Return the operation that made the root of a value, if it does any work."""
        producer = self.value(self.root[index]).producer
        if producer is None or not self._works(self.trace.ops[producer]):
            return None
        return self.trace.ops[producer]

    def moving(self, op: Op) -> tuple[int, ...]:
        """Return the inputs that are activations: neither constants nor weights."""
        return tuple(i for i in op.inputs if self.value(i).active and not self.static[i])

    def weights(self, index: int) -> tuple[str, ...]:
        """Return the parameters that a static value follows from."""
        value = self.value(index)
        if value.weight is not None:
            return (value.weight,)
        if value.producer is None or not self.static[index]:
            return ()
        inputs = self.trace.ops[value.producer].inputs
        return tuple(dict.fromkeys(w for i in inputs for w in self.weights(i)))

    def chain(self, index: int) -> Iterator[Op]:
        """Yield the view operations from a value back to its root."""
        while self.root[index] != index:
            producer = self.value(index).producer
            if producer is None:
                return
            op = self.trace.ops[producer]
            yield op
            index = next(i for i in op.inputs if self.root[i] == self.root[index])


def refs(tree: Any) -> list[int]:
    """Return the values of references in arguments, in order."""
    if isinstance(tree, Ref):
        return [tree.value]
    if isinstance(tree, (list, tuple)):
        return [v for x in tree for v in refs(x)]
    return []
