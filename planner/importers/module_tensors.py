"""Looking into trees of arguments and at tensors, without reading one."""

from collections.abc import Callable
from typing import Any, Final

from meshwright.planner.importers.module_trace import Ref

LARGEST_KNOWN: Final = 2**25
"""Elements up to which a constant is computed for real."""


def storage(tensor: Any) -> int:
    """Return what tensors that share memory have in common."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own (sparse, wrapped)
        return -id(tensor)


def real(tensor: Any) -> Any:
    """Return a tensor that lies in this machine's memory, else None."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        return getattr(tensor, "constant", None)
    return None if tensor.device.type != "cpu" or tensor.numel() > LARGEST_KNOWN else tensor


def tensors(tree: Any) -> list[Any]:
    """Return the tensors in a tree of arguments; outputs of models are trees or objects with values."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def refs(tree: Any, value: Callable[[Any], int]) -> Any:
    """Return arguments with each tensor replaced by its reference."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda x: Ref(value(x)) if isinstance(x, torch.Tensor) else x, tree)


def sizes(args: Any) -> list[int]:
    """Return the numbers in lists among arguments (the shape that a factory function is asked for)."""
    return [n for a in args if isinstance(a, (list, tuple)) for n in a]


def asked(args: Any) -> int:
    """Return the elements that a factory function is asked for, at most."""
    size = 1
    for n in sizes(args) or [a for a in args if isinstance(a, int)]:
        size *= max(1, abs(n))
    return size
