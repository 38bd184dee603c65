"""Gradients between the backward pass and the optimizer: sums over ranks, the norm, clipping."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from meshwright.planner.runtime.layout import PIPELINE, REPLICATE
from meshwright.planner.runtime.ranks import with_context

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def settle(parameters: Iterable["torch.nn.Parameter"]) -> None:
    """Sum gradients that are still one summand on each rank (norms under sequence parallelism)."""
    for parameter in parameters:
        grad: Any = parameter.grad
        if grad is not None and any(p.is_partial() for p in getattr(grad, "placements", ())):
            parameter.grad = grad.redistribute(placements=parameter.placements)


def average_copies(parameters: Iterable["torch.nn.Parameter"], mesh: "DeviceMesh") -> None:
    """Average gradients over the ranks that hold copies of the same weights, once a step.

    Left out: the overlap with the backward pass.
    """
    from torch import distributed

    group = with_context(mesh, REPLICATE).get_group()
    grads = [_local(p.grad).div_(group.size()) for p in parameters if p.grad is not None]
    for work in [distributed.all_reduce(grad, group=group, async_op=True) for grad in grads]:
        work.wait()


def gradient_norm(parameters: Iterable["torch.nn.Parameter"], mesh: "DeviceMesh") -> "torch.Tensor":
    """Return the Euclidean norm of the whole model's gradient, the same on every rank.

    Squares are summed on the rank, then over the dimensions of their mesh along which gradients are sharded
    (copies count once), one collective for each, then over the pipeline.
    """
    import torch
    from torch import distributed

    zero = torch.zeros((), dtype=torch.float32, device=mesh.device_type)
    sums: dict[tuple[Any, ...], torch.Tensor] = defaultdict(lambda: zero.clone())
    for parameter in parameters:
        if parameter.grad is not None:
            sums[_sharded(parameter.grad)] += _local(parameter.grad).float().square().sum()
    total = zero.clone()
    for groups, value in sums.items():
        for group in groups:
            distributed.all_reduce(value, group=group)
        total += value
    distributed.all_reduce(total, group=mesh.get_group(PIPELINE))
    return total.sqrt()


def _sharded(grad: Any) -> tuple[Any, ...]:
    """Return the groups of ranks over which a gradient's elements are dealt out."""
    placements = getattr(grad, "placements", ())
    return tuple(grad.device_mesh.get_group(i) for i, p in enumerate(placements) if not p.is_replicate())


def clip(parameters: Iterable["torch.nn.Parameter"], norm: "torch.Tensor", max_norm: float) -> None:
    """Scale gradients in place so that their norm is at most ``max_norm``."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            _local(parameter.grad).mul_(scale)


def _local(grad: Any) -> Any:
    """Return the elements that this rank holds."""
    return grad.to_local() if hasattr(grad, "to_local") else grad
