"""Software profiles: what a training stack achieves and how it behaves, read from a data file.

*Hardware* says what the machine can do, a profile what the stack makes of it. Profiles inherit: one names
a parent and overrides what differs. The numbers, their units and their sources are in
``data/profiles.toml``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from meshwright.costmodels.arrays import Num
from meshwright.hardware.errors import MeshwrightError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Profile:
    """One training stack. Numeric fields may hold arrays.

    Attributes
    ----------
    flash_attention
        Whether scores stay on chip.
    attention_forward_fraction, attention_backward_fraction
        Share of the GEMM rate that the attention kernels reach on their own FLOPs.
    attention_half_length
        Sequence length at which attention reaches half of that (ramp of short sequences).
    gradient_bytes
        Bytes of an accumulated gradient under a 16-bit recipe.
    working_copy
        Whether a 16-bit copy of the weights lives beside the fp32 master (Megatron, DeepSpeed); FSDP2
        keeps fp32 shards alone and gathers in 16 bits.
    overlap_gradients, overlap_parameters
        Share of the last backward (first forward) pass that hides gradient reduction (parameter gather).
    overlap_cost
        Seconds of compute lost per second of communication that runs beside it (shared cores and memory
        bandwidth): ``1 - 1 / slowdown``.
    overlap_tensor
        Share of tensor-parallel traffic that hides behind the products next to it.
    overlap_experts
        Share of the experts' exchange that hides behind other compute.
    expert_dispatch
        ``alltoall`` sends every copy of a token by itself, ``deduplicated`` (DeepEP) once into each node.
    prefetch_units
        Layers gathered ahead under ZeRO-3, beside the one in use.
    bucket_bytes
        Gradient bucket beside the gradients themselves; two are alive while reducing. Zero where buckets
        are views of the gradient buffer.
    loss
        Cross-entropy implementation (see :mod:`meshwright.costmodels.loss`).
    layer_host_s
        Host time that a layer's pass costs however small its kernels are.
    step_fixed_s
        Time of a step that nothing else explains (data, logging, synchronisation).
    communicator_bytes
        Memory of the communicators of one rank.
    fragmentation
        Reserved over allocated memory, minus one.
    optimizer_fraction
        Share of the memory bandwidth that the optimizer kernel reaches.
    recompute_exit
        Whether full recompute also repeats the last product of a layer and its collective.
    """

    name: str
    title: str
    flash_attention: bool
    attention_forward_fraction: Num
    attention_backward_fraction: Num
    attention_half_length: Num
    gradient_bytes: Num
    working_copy: bool
    overlap_gradients: Num
    overlap_parameters: Num
    overlap_cost: Num
    overlap_tensor: Num
    overlap_experts: Num
    expert_dispatch: str
    prefetch_units: Num
    bucket_bytes: Num
    loss: str
    layer_host_s: Num
    step_fixed_s: Num
    communicator_bytes: Num
    fragmentation: Num
    optimizer_fraction: Num
    recompute_exit: bool
    sources: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    text = resources.files("meshwright.costmodels").joinpath("data/profiles.toml").read_text("utf-8")
    return tomllib.loads(text)


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(_table())


@lru_cache(maxsize=64)
def find_profile(name: str) -> Profile:
    """Return a profile with what it inherits.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    MeshwrightError
        If the data file misses a field or has an unknown one.
    """
    table = _table()
    if name not in table:
        raise UnknownNameError("profile", name, list(table))
    merged: dict[str, Any] = {}
    lineage = [name]
    while "inherits" in table[lineage[-1]]:
        lineage.append(str(table[lineage[-1]]["inherits"]))
    for ancestor in reversed(lineage):
        merged |= {k: v for k, v in table[ancestor].items() if k != "inherits"}
    merged["sources"] = tuple(merged.get("sources", ()))
    wanted = {f.name for f in fields(Profile)}
    if wanted ^ ({"name"} | set(merged)):
        raise MeshwrightError(f"profile {name}: fields differ: {sorted(wanted ^ ({'name'} | set(merged)))}")
    return Profile(name=name, **merged)
