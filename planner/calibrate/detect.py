"""Which machine this is: asked of PyTorch and of the operating system."""

import os
import platform
import re
from pathlib import Path
from typing import Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import GIB
from meshwright.planner.calibrate.machine import Machine

ARCHITECTURES: Final = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
"""By the major compute capability (CUDA C++ programming guide, table of features)."""
ADA: Final = (8, 9)
AMD: Final = {"gfx90a": "cdna2", "gfx942": "cdna3", "gfx950": "cdna4"}
"""By ROCm's name of the instruction set (ROCm documentation, accelerator specifications)."""
DTYPES: Final = {"cpu": ("fp32", "bf16", "fp16"), "gpu": ("bf16", "tf32", "fp32", "fp16")}
CPU_INFO: Final = Path("/proc/cpuinfo")


def device_of(wanted: str | None) -> str:
    """Return the PyTorch device of this rank: the one asked for, else a GPU where there is one.

    Raises
    ------
    MeshwrightError
        If there is no such device.
    """
    import torch

    if wanted not in (None, "cpu", "cuda"):
        raise MeshwrightError(f"device: {wanted!r} is not known; allowed: cpu, cuda (ROCm's name as well)")
    if wanted == "cpu" or (wanted is None and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise MeshwrightError("device: PyTorch sees no GPU here; allowed: cpu")
    own = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(own)
    return f"cuda:{own}"


def ranks() -> tuple[int, int]:
    """Return ranks on each host, and hosts, as the launcher says.

    Raises
    ------
    MeshwrightError
        If hosts have different numbers of ranks.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    if inside < 1 or world % inside:
        raise MeshwrightError(f"calibrate: {world} ranks on hosts of {inside}; start as many on each host")
    return inside, world // inside


def machine(device: str, dtypes: tuple[str, ...], name: str | None) -> Machine:
    """Return the machine that this rank runs on.

    Parameters
    ----------
    dtypes
        To multiply in; the device's usual one where empty.
    name
        Of the file's cluster; made from the device's where None.
    """
    import torch
    import torch.distributed as dist

    kind = "cpu" if device == "cpu" else "gpu"
    inside, across = ranks()
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    title = _cpu_title() if kind == "cpu" else torch.cuda.get_device_name(device)
    usual = ("fp32",) if kind == "cpu" else ("bf16", "tf32")
    unknown = [d for d in dtypes if d not in DTYPES[kind]]
    if unknown:
        raise MeshwrightError(f"dtypes: {unknown[0]!r} is not measured; allowed: {', '.join(DTYPES[kind])}")
    context, communicator = (0.0, 0.0) if kind == "cpu" else _taken_bytes(device)
    backend = dist.get_backend() if dist.is_initialized() else "none"
    return Machine(
        name=name or _slug(title),
        title=title,
        vendor="any" if kind == "cpu" else "amd" if torch.version.hip else "nvidia",
        kind=kind,
        architecture="" if kind == "cpu" else _architecture(device),
        memory_bytes=host / inside if kind == "cpu" else _gpu_memory(device),
        host_memory_bytes=host,
        context_bytes=context,
        communicator_bytes=communicator,
        num_cores=torch.get_num_threads() if kind == "cpu" else _processors(device),
        dtypes=dtypes or usual,
        inside=inside,
        across=across,
        backend=backend,
        software=f"PyTorch {torch.__version__}, {backend}, Python {platform.python_version()}",
    )


def _cpu_title() -> str:
    """Return the processor's name as Linux tells it, else the platform's."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "measured"


def _architecture(device: str) -> str:
    import torch

    if torch.version.hip:
        name = str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        return AMD.get(name, "")
    capability = torch.cuda.get_device_capability(device)
    return "ada" if capability == ADA else ARCHITECTURES.get(capability[0], "")


def _gpu_memory(device: str) -> float:
    import torch

    return float(torch.cuda.get_device_properties(device).total_memory)


def _processors(device: str) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _taken_bytes(device: str) -> tuple[float, float]:
    """Return what driver and runtime take before the first tensor, and what the first collective takes.

    Other processes on the device count as well: measure on one that is free.
    """
    import torch
    import torch.distributed as dist

    small = torch.ones(1, device=device)
    torch.mm(small[None], small[None])  # the library's workspace belongs to the context
    torch.cuda.synchronize()

    def outside() -> float:
        """Return the bytes in use that the allocator does not hold."""
        free, total = torch.cuda.mem_get_info(device)
        return float(total - free - torch.cuda.memory_reserved(device))

    before = outside()
    if dist.is_initialized():
        dist.all_reduce(torch.ones(2**18, device=device))
        torch.cuda.synchronize()
    return min(before, 16.0 * GIB), max(outside() - before, 0.0)
