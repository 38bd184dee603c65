"""A private copy of a module without its weights: parameters become fake tensors, nothing is allocated."""

import copy
from typing import Any, Final

from meshwright.planner.importers.module_inputs import told
from meshwright.planner.importers.module_trace import TraceError

LARGEST_BUFFER: Final = 2**25
"""Elements of a buffer up to which the copy keeps its values (masks, running statistics)."""

TRACEABLE: Final = ("eager", "sdpa")
"""Attention implementations that run on fake tensors of any device."""


def fake_copy(module: Any, mode: Any) -> Any:
    """Return a copy in training mode whose parameters and large buffers are fake; the original is untouched.

    Raises
    ------
    TraceError
        The module cannot be copied (it holds a process group, a lock or an open file), or has parameters
        or buffers whose shapes are not known yet.
    """
    import torch

    _refuse_lazy(module)
    memo: dict[int, Any] = {}
    with mode:
        for parameter in module.parameters():
            empty = torch.empty(tuple(parameter.shape), dtype=parameter.dtype, device="cpu")
            memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
        for buffer in module.buffers():
            if buffer.device.type != "cpu" or buffer.numel() > LARGEST_BUFFER:
                memo[id(buffer)] = torch.empty(tuple(buffer.shape), dtype=buffer.dtype, device="cpu")
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:
        raise TraceError(
            type(module).__name__,
            f"copy.deepcopy failed ({error})",
            "the plain module, before it is wrapped, compiled or sharded",
        ) from error
    twin.train()
    for part in twin.modules():
        _prepare_config(told(part, "config"))
    return twin


def _refuse_lazy(module: Any) -> None:
    """Raise TraceError naming the first parameter or buffer without a shape (``torch.nn.LazyLinear``)."""
    from torch.nn.parameter import is_lazy

    for named in (module.named_parameters(), module.named_buffers()):
        for name, tensor in named:
            if is_lazy(tensor):
                raise TraceError(
                    name,
                    "it is uninitialised: a lazy module has no shape before its first input",
                    "a forward pass of the module on one input first, or a module with its sizes given",
                )


def _prepare_config(config: Any) -> None:
    """Set a configuration (a copy) to run without a cache and without kernels that need a device."""
    if told(config, "use_cache"):
        config.use_cache = False
    if told(config, "_attn_implementation") not in (None, *TRACEABLE):
        config._attn_implementation = "sdpa"
