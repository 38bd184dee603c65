"""The processes of a run: the device of each, the process group, the device mesh."""

import hashlib
import os
from typing import TYPE_CHECKING

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan
from meshwright.planner.runtime.layout import REPLICATE, SHARD, mesh_shape

if TYPE_CHECKING:
    import torch
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


def check_same_plan(plan: Plan) -> None:
    """Refuse ranks that read different plans, of which each would apply its own.

    Raises
    ------
    MeshwrightError
        On every rank, naming those that differ from rank 0.
    """
    from torch import distributed

    seen: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(seen, hashlib.sha256(plan.to_json().encode()).hexdigest())
    others = [str(rank) for rank, digest in enumerate(seen) if digest != seen[0]]
    if others:
        raise MeshwrightError(
            f"plan: rank {', '.join(others)} read another plan than rank 0; give each host the same plan.json"
        )


def device_mesh(plan: Plan, device: "torch.device") -> "DeviceMesh":
    """Return the plan's mesh over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = mesh_shape(plan)
    return init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def data_rank(plan: Plan, mesh: "DeviceMesh") -> int:
    """Return which of the ``dp`` shares of a batch this rank reads."""
    shard = mesh_shape(plan)[SHARD]
    return int(mesh.get_local_rank(REPLICATE)) * shard + int(mesh.get_local_rank(SHARD))
