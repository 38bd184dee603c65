"""Watching a forward pass on fake tensors: every operation, the module that ran it, and constants' values.

Values that follow from constants alone (positions, masks) are computed for real beside the fake ones, so
that a mask can be read and a branch on it taken. A random scalar (layer drop) counts as its mean.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from meshwright.planner.importers.module_experts import expert_layout
from meshwright.planner.importers.module_fake import fake_copy
from meshwright.planner.importers.module_inputs import call_inputs, told
from meshwright.planner.importers.module_tensors import (
    LARGEST_KNOWN,
    asked,
    real,
    refs,
    sizes,
    storage,
    tensors,
)
from meshwright.planner.importers.module_trace import Call, Op, Ref, Trace, TraceError, Value, Weight

RANDOM: Final = ("rand", "bernoulli", "normal_", "uniform", "multinomial", "exponential")
"""Words in the names of operations that draw numbers."""

FREE: Final = ("empty", *RANDOM)
"""Words in the names of operations whose result is no constant."""

LIKE: Final = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
"""Operations that take of their input the shape alone; with those that begin with ``new_``."""

EXPERTS: Final = "experts"
"""The name of the operation that stands for a module of batched experts."""


class Recorder:
    """Builds a :class:`Trace` while the forward pass runs."""

    def __init__(self, twin: Any, trace: Trace) -> None:
        self.trace = trace
        self.ids: dict[int, int] = {}
        self.alive: list[Any] = []
        self.sharing: dict[int, dict[int, Any]] = defaultdict(dict)
        self.stack: list[tuple[str, str]] = []
        self.broken: tuple[str, str] | None = None
        for name, parameter in twin.named_parameters():
            self._note(parameter, Value(tuple(parameter.shape), weight=name, active=True))

    def _note(self, tensor: Any, value: Value) -> int:
        """Remember a tensor's value; tensors stay alive so that their identities stay theirs."""
        value.floating = bool(tensor.is_floating_point() or tensor.is_complex())
        self.trace.values.append(value)
        self.alive.append(tensor)
        self.ids[id(tensor)] = len(self.trace.values) - 1
        self.sharing[storage(tensor)][id(tensor)] = tensor
        return len(self.trace.values) - 1

    def value(self, tensor: Any) -> int:
        """Return the value of a tensor; one never seen is a constant of the code."""
        found = self.ids.get(id(tensor))
        if found is None:
            known = real(tensor)
            found = self._note(tensor, Value(tuple(tensor.shape), known=known))
        return found

    def give(self, tensor: Any, fake: Any) -> None:
        """Note an input: floating ones are active; of others the values are known if they lie in memory."""
        active = bool(fake.is_floating_point())
        known = None if active else real(tensor)
        self._note(fake, Value(tuple(fake.shape), active=active, from_input=True, known=known))

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation, on fakes and, where all is known, for real; and write it down."""
        name = func._schema.name.split("::")[-1]
        leaves = tensors((args, kwargs))
        known = self._known(func, name, leaves, args, kwargs)
        if name in ("_local_scalar_dense", "is_nonzero", "equal") and known is not None:
            return known
        out = func(*args, **kwargs)
        if func.namespace == "prim" or not tensors(out):
            return out
        self._write(name, args, kwargs, leaves, out, known)
        return out

    def _write(self, name: str, args: Any, kwargs: Any, leaves: list[Any], out: Any, known: Any) -> None:
        values = self.trace.values
        inputs = tuple(self.value(t) for t in leaves)
        given = refs(args, self.value), refs(kwargs, self.value)
        shapes = name in LIKE or name.startswith("new_")
        active = not shapes and any(values[i].active for i in inputs)
        from_input = not shapes and any(values[i].from_input for i in inputs)
        random = any(word in name for word in RANDOM) or any(values[i].random for i in inputs)
        index = len(self.trace.ops)
        outputs = []
        for fake, fact in zip(tensors(out), tensors(known) or [None] * len(tensors(out)), strict=False):
            value = Value(tuple(fake.shape), index, active=active, from_input=from_input, known=fact)
            value.random = random and not active
            outputs.append(self._note(fake, value))
        scope, kind = self.stack[-1] if self.stack else ("", "")
        self.trace.ops.append(Op(index, name, given[0], given[1], inputs, tuple(outputs), scope, kind))
        if name.endswith("_") and leaves and outputs:
            self._spread(leaves[0], outputs[0])

    def _spread(self, written: Any, value: int) -> None:
        """Note that a write into a tensor changed the tensors that share its memory (``x[..., :n] = y``).

        Wider ones now depend on what was written; the views of narrower ones are left as they were.
        """
        values = self.trace.values
        for other in list(self.sharing[storage(written)].values()):
            old = self.ids[id(other)]
            if id(other) == id(written) or values[old].size < values[value].size:
                continue
            whole = values[old].size == values[value].size
            inputs = (value,) if whole else (old, value)
            new = Value(values[old].shape, len(self.trace.ops))
            new.active = any(values[i].active for i in inputs)
            new.from_input = any(values[i].from_input for i in inputs)
            new.known = values[old].known if values[value].known is not None else None
            scope, kind = self.stack[-1] if self.stack else ("", "")
            name = "alias" if whole else "slice_scatter"
            both = tuple(Ref(i) for i in inputs)
            index = self._note(other, new)
            self.trace.ops.append(Op(len(self.trace.ops), name, both, {}, inputs, (index,), scope, kind))

    def _known(self, func: Any, name: str, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        """Return the operation's real result if it follows from constants and is small, else None."""
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.utils._pytree import tree_map

        values = [self.trace.values[self.value(t)] for t in leaves]
        if any(v.known is None for v in values) or any(v.active for v in values):
            return None
        if func.namespace == "prim" or any(word in name for word in FREE):
            scalar = name in ("rand", "uniform_") and not any(sizes(args))
            return torch.tensor(0.5) if scalar else None
        if max([v.size for v in values], default=0) > LARGEST_KNOWN:
            return None
        if not leaves and asked(args) > LARGEST_KNOWN:
            return None

        def swap(x: Any) -> Any:
            """Return what is known of a value."""
            return self.trace.values[self.value(x)].known if isinstance(x, torch.Tensor) else x

        try:
            with unset_fake_temporarily(), torch.no_grad():
                return func(*tree_map(swap, args), **tree_map(swap, kwargs))
        except Exception:  # a constant that cannot be computed is only unknown
            return None

    def enter(self, path: str, kind: str, given: Any) -> Call:
        """Note that a submodule's forward pass begins."""
        self.stack.append((path, kind))
        call = Call(path, kind, len(self.trace.ops))
        call.inputs = tuple(self.value(t) for t in tensors(given))
        self.trace.calls.append(call)
        return call

    def leave(self, call: Call, out: Any) -> None:
        """Note that it ended."""
        call.stop = len(self.trace.ops)
        call.outputs = tuple(self.value(t) for t in tensors(out))
        self.stack.pop()


def record(module: Any, example: Any) -> Trace:
    """Return the trace of one forward pass; nothing is allocated, and the module stays as it is.

    Raises
    ------
    TraceError
        The module cannot be copied or its forward pass does not run on fake tensors.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map

    args, kwargs = call_inputs(module, example)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = fake_copy(module, mode)
    trace = Trace(_weights(twin), lists=_lists(twin), attributes=_attributes(twin), plan=_plan(twin))
    recorder = Recorder(twin, trace)

    def fake(x: Any) -> Any:
        """Return a tensor without values in the place of a real one."""
        if not isinstance(x, torch.Tensor):
            return x
        twin_x = torch.empty(tuple(x.shape), dtype=x.dtype, device="cpu")
        recorder.give(x, twin_x)
        return twin_x

    watch = _dispatch_mode(recorder)
    with mode, torch.no_grad(), _watched(twin, recorder):
        args, kwargs = tree_map(fake, args), tree_map(fake, kwargs)
        try:
            with watch:
                out = twin(*args, **kwargs)
        except TraceError:
            raise
        except Exception as error:
            raise _explained(recorder, error) from error
    trace.outputs = tuple(recorder.value(t) for t in tensors(out) or tensors(getattr(out, "__dict__", {})))
    return trace


def _explained(recorder: Recorder, error: Exception) -> TraceError:
    """Return the error with the module where it happened and a remedy for its cause."""
    path, kind = recorder.broken or ("", type(error).__name__)
    where = f"{path or 'the module'} ({kind})"
    last = recorder.trace.ops[-1].name if recorder.trace.ops else "none"
    text = str(error).strip().splitlines() or [""]
    reason = f"{type(error).__name__}: {text[0][:200]} (last operation: {last})"
    if "DataDependent" in type(error).__name__ or "DynamicOutputShape" in type(error).__name__:
        return TraceError(
            where,
            f"control flow depends on the values of tensors: {reason}",
            "example inputs that avoid the branch, an implementation with fixed shapes (grouped or batched "
            "experts), or planning from its config.json",
        )
    return TraceError(
        where,
        f"its forward pass fails on the example inputs: {reason}",
        "example_inputs with which the module itself runs",
    )


@contextmanager
def _watched(twin: Any, recorder: Recorder) -> Iterator[None]:
    """Wrap the forward pass of every submodule of the copy."""
    for path, module in twin.named_modules():
        module.forward = _wrapped(path, module, recorder)
    yield


def _wrapped(path: str, module: Any, recorder: Recorder) -> Callable[..., Any]:
    """Return a forward pass that notes where it begins and ends; experts are one operation."""
    forward, kind = module.forward, type(module).__name__
    layout = expert_layout(module)

    def watched(*args: Any, **kwargs: Any) -> Any:
        """Run the module between the recorder's marks."""
        call = recorder.enter(path, kind, (args, kwargs))
        try:
            if layout is None:
                out = forward(*args, **kwargs)
            else:
                out = _experts(recorder, module, layout, args, kwargs)
        except Exception:
            recorder.broken = recorder.broken or (path, kind)
            raise
        recorder.leave(call, out)
        return out

    return watched


def _experts(recorder: Recorder, module: Any, layout: Any, args: Any, kwargs: Any) -> Any:
    """Stand for the experts' forward pass: the shape of its first input comes out, one operation is noted."""
    import torch

    leaves = tensors((args, kwargs))
    hidden = next(t for t in leaves if t.is_floating_point())
    own = list(module.parameters(recurse=False))
    out = torch.empty_like(hidden)
    recorder._write(EXPERTS, (layout,), {}, [*leaves, *own], out, None)
    return out


def _dispatch_mode(recorder: Recorder) -> Any:
    """Return the mode that hands every operation to the recorder (its class needs torch to exist)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand an operation to the recorder."""
        return recorder.dispatch(func, args, kwargs or {})

    return type("Recording", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _weights(twin: Any) -> dict[str, Weight]:
    return {n: Weight(n, tuple(p.shape), bool(p.requires_grad)) for n, p in twin.named_parameters()}


def _plan(twin: Any) -> dict[str, str]:
    """Return the tensor-parallel plan that a module of transformers carries, empty for any other."""
    plan = dict(told(told(twin, "config"), "base_model_tp_plan") or {})
    plan |= told(twin, "_tp_plan") or {}
    return {str(k): v for k, v in plan.items() if isinstance(v, str)}


def _lists(twin: Any) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the containers whose children are numbered, with their entries."""
    found = {}
    for path, module in twin.named_modules():
        children = list(module.named_children())
        if children and all(name.isdigit() for name, _ in children):
            prefix = f"{path}." if path else ""
            found[path] = tuple((prefix + name, type(child).__name__) for name, child in children)
    return found


def _attributes(twin: Any) -> dict[str, dict[str, Any]]:
    """Return plain attributes of every module; the whole module's configuration stands behind its own."""
    found = {path: _plain(vars(module)) for path, module in twin.named_modules()}
    config = told(twin, "config")
    return found | {"": _plain(getattr(config, "__dict__", {})) | found[""]}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str))}
