"""The processes of a run: the device of each, the process group, the device mesh."""

import hashlib
import os
from typing import TYPE_CHECKING

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan
from meshwright.planner.runtime.layout import CONTEXT, REPLICATE, SHARD, mesh_shape

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def world_size() -> int:
    """Return how many processes run, by the process group or by the environment that torchrun sets."""
    from torch import distributed

    if distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(wanted: str | None) -> "torch.device":
    """Return the device of this process: the ``LOCAL_RANK``-th GPU of its host, or the CPU without any."""
    import torch

    kind = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def start_processes(device: "torch.device") -> None:
    """Start the process group unless it runs; one process alone needs no address."""
    from torch import distributed

    if distributed.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)


def check_same(plan: Plan, model: "nn.Module") -> None:
    """Refuse ranks that read different plans, or start from different weights: each would go its own way.

    Of the weights the first element of each parameter is compared.

    Raises
    ------
    MeshwrightError
        On every rank, naming those that differ from rank 0.
    """
    if others := _differing(plan.to_json()):
        raise MeshwrightError(
            f"plan: rank {others} read another plan than rank 0; give each host the same plan.json"
        )
    first = [float(p.detach().flatten()[0]) for p in model.parameters() if p.numel() and not p.is_meta]
    if others := _differing(repr(first)):
        raise MeshwrightError(
            f"model: rank {others} has other weights than rank 0; load the same ones in each process, or set "
            "the same seed before they are drawn"
        )


def _differing(text: str) -> str:
    """Return the ranks whose text is not rank 0's."""
    from torch import distributed

    seen: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(seen, hashlib.sha256(text.encode()).hexdigest())
    return ", ".join(str(rank) for rank, digest in enumerate(seen) if digest != seen[0])


def device_mesh(plan: Plan, device: "torch.device") -> "DeviceMesh":
    """Return the plan's mesh over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = mesh_shape(plan)
    return init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def with_context(mesh: "DeviceMesh", dim: str) -> "DeviceMesh":
    """Return the ranks along a dimension and along the context ranks as one: they share the same weights."""
    if mesh.size(mesh.mesh_dim_names.index(CONTEXT)) == 1:
        return mesh[dim]
    joined = tuple(name for name in mesh.mesh_dim_names if name in (dim, CONTEXT))
    return mesh[joined]._flatten(f"{dim}_{CONTEXT}")


def data_rank(plan: Plan, mesh: "DeviceMesh") -> int:
    """Return which of the ``dp`` shares of a batch this rank reads."""
    shard = mesh_shape(plan)[SHARD]
    return int(mesh.get_local_rank(REPLICATE)) * shard + int(mesh.get_local_rank(SHARD))
