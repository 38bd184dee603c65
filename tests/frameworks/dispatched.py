"""What PyTorch's operators move through memory, and what of it kernels without vector loads make."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that operators read and write, and elements made where tensors are slices or broadcast.

    Views move none, what broadcasts is read once.
    """

    bytes = strided = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        if func.is_view or name in ("_unsafe_view", "clone"):
            return out
        leaves, _ = torch.utils._pytree.tree_flatten((args, kwargs or {}, out))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor) and x.dim()]
        self.bytes += sum(touched(x) for x in tensors)
        apart = any(not x.is_contiguous() for x in tensors)
        broadcast = name != "cat" and len({tuple(x.shape) for x in tensors}) > 1
        if name == "slice_backward":  # zeros, and a copy into a slice of them; none into the whole
            self.strided += args[0].numel() % out.numel()
        elif apart or broadcast:
            self.strided += out.numel()
        return out


def touched(x: Any) -> int:
    """Return the bytes of a tensor's own elements."""
    elements = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        elements *= size if stride else 1
    return int(elements * x.element_size())
