"""Software profiles: what a training stack achieves and how it behaves, read from a data file.

*Hardware* says what the machine can do, a profile what the stack makes of it. Profiles inherit: one names
a parent and overrides what differs. The numbers, their units and their sources are in
``data/profiles.toml``. A name may carry switches that differ from the profile's own, in brackets:
``megatron-core[attention=flash-1,norm=eager]``; :func:`profile_with` writes such names. A name that ends in
``.toml`` is the path of a file with one profile of one's own, written like those of the data file: a table
whose ``inherits`` names a built-in profile and whose fields override it. It is read once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention_kernels import find_attention_kernel
from meshwright.costmodels.calibration import overlaid
from meshwright.costmodels.fusion import FUSIONS, GROUPS
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.work import Collective
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

FILE_SUFFIX: Final = ".toml"
MAX_FILE_BYTES: Final = 65536
"""Of a profile file: all of its fields with their sources take a tenth of it."""
MAX_VALUE: Final = 1e13


@dataclass(frozen=True, slots=True)
class Profile:
    """One training stack. Numeric fields may hold arrays.

    Attributes
    ----------
    attention
        Name of the attention kernel (:mod:`meshwright.costmodels.attention_kernels`).
    attention_fraction
        Factor on that kernel's measured rates.
    norm, activation, rotary, residual
        How these memory-bound operators run: ``fused`` or ``eager`` (:mod:`meshwright.costmodels.fusion`).
    gemm_fraction
        Factor on the accelerator's sustained GEMM rate (libraries of an architecture's first year).
    weight_gradient_fraction
        The same for products that make a weight's gradient (accumulation in fp32).
    grouped_fill
        Rows that starting each product of a group costs, in the time of that product (grouped products of
        experts run group by group: a group of ``m`` rows takes the time of ``m + grouped_fill``).
    expert_by_expert
        Whether the products of a group, and the casts of their operands, are issued one by one (on several
        streams) or as one kernel.
    expert_bias_bytes
        Bytes moved per element of a biased expert product's output, in each direction, to add the bias
        expert by expert and to sum its gradient; zero where the product's epilogue does it.
    expert_padding
        Whether experts' rows are copied to whole tiles before products of 8 and 4 bits, and back.
    low_gemm_fraction
        The same for 8- and 4-bit products (scaling by rows or blocks in the epilogue).
    permute_fraction
        Share of the streaming memory rate at which rows are permuted for experts and back.
    expand_fraction
        Share of the streaming memory rate at which quantised frozen weights are expanded for a product.
    accumulation_bytes
        Bytes moved to add one parameter's gradient of a micro-batch to the accumulated one; zero where the
        product's epilogue does it.
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
    low_dispatch
        Whether tokens are quantised before they are sent to their experts.
    dispatch_sync_s
        Time that the device waits at each dispatch until the host knows the rows of each expert.
    data_rate
        Share of the network's sustained rate that collectives over data-parallel ranks reach (buckets,
        protocols, tensors sent one by one).
    layer_rate
        The same for collectives of tensor, context and expert groups.
    scatter_rate
        Share of the rate of gathers that reduce-scatters reach.
    reduce_rate
        The same of all-reduces, which are two passes.
    reduce_whole
        Whether ZeRO-1 all-reduces whole gradients instead of scattering them.
    prefetch_units
        Layers gathered ahead under ZeRO-3, beside the one in use.
    root_unit
        Whether embedding and head are gathered together and stay so from the first to the last pass (ZeRO-3).
    reduce_last
        Whether sharded gradients stay whole under a pipeline until the last micro-batch, and weights too.
    placeholders
        Whether products that add to the accumulated gradient still hand autograd a gradient of the weight's
        type, of which one stays for every shape in a block.
    bucket_bytes
        Gradient bucket beside the gradients themselves; two are alive while reducing. Zero where buckets
        are views of the gradient buffer.
    loss
        Cross-entropy implementation (see :mod:`meshwright.costmodels.loss`).
    loss_parallel
        Whether a tensor-parallel group keeps the logits split over the vocabulary, or each rank gathers them.
    keeps_gathered
        Whether what a tensor-parallel group gathers for a product is kept for its weight's gradient; else the
        backward pass gathers it again.
    projections_apart
        Whether queries, keys, values, gate and up are modules of their own, each of which reduces its input's
        gradient over the tensor group; else one product makes them all.
    layer_host_s
        Host time that a block's pass costs whatever its operators (modules, hooks, random states of
        checkpoints).
    forward_host_s, backward_host_s
        Host time to issue one kernel or collective; the device idles where the host is slower. Recomputation
        issues its kernels as the forward pass does.
    gradient_hook_s
        Host time of a backward pass for each trained weight, whose hook sorts the gradient into a bucket.
    host_spread
        Share by which host time grows for each doubling of a tensor group, whose ranks wait for the slowest
        of their hosts: half of the deviation from host to host.
    host_share
        Share of that host time left by CUDA graphs (1: none captured, 0: whole passes replayed).
    expert_host_share
        The same for the experts' own kernels and exchanges, whose sizes change from step to step.
    host_sync
        Share of the shorter of host and device time that does not overlap with the longer (calls that wait
        for the device, queues that start empty).
    jitter
        Share by which every pass slows down for each doubling of the devices beyond one (stragglers).
    step_fixed_s
        Time of a step that nothing else explains (data, logging, synchronisation).
    communicator_bytes
        Memory of the communicators of one rank.
    fragmentation
        Reserved over allocated memory, minus one.
    optimizer_fraction
        Share of the memory bandwidth that the optimizer kernel reaches.
    owner_send_s
        Seconds of a step for each rank that owns a part of the states, where every owner sends its updated
        parameters by a broadcast of its own (ZeRO-1 and 2).
    gradient_passes
        Passes over the gradients beside the optimizer's own: norm, scaling, and setting them to zero.
    recompute_exit
        Whether full recompute also repeats the last product of a layer and its collective.
    """

    name: str
    title: str
    attention: str
    attention_fraction: Num
    norm: str
    activation: str
    rotary: str
    residual: str
    gemm_fraction: Num
    weight_gradient_fraction: Num
    grouped_fill: Num
    expert_by_expert: bool
    expert_bias_bytes: Num
    expert_padding: bool
    low_gemm_fraction: Num
    permute_fraction: Num
    expand_fraction: Num
    accumulation_bytes: Num
    gradient_bytes: Num
    working_copy: bool
    overlap_gradients: Num
    overlap_parameters: Num
    overlap_cost: Num
    overlap_tensor: Num
    overlap_experts: Num
    expert_dispatch: str
    low_dispatch: bool
    dispatch_sync_s: Num
    data_rate: Num
    layer_rate: Num
    scatter_rate: Num
    reduce_rate: Num
    reduce_whole: bool
    prefetch_units: Num
    root_unit: bool
    reduce_last: bool
    placeholders: bool
    bucket_bytes: Num
    loss: str
    loss_parallel: bool
    keeps_gathered: bool
    projections_apart: bool
    layer_host_s: Num
    forward_host_s: Num
    backward_host_s: Num
    gradient_hook_s: Num
    host_spread: Num
    host_share: Num
    expert_host_share: Num
    host_sync: Num
    jitter: Num
    step_fixed_s: Num
    communicator_bytes: Num
    fragmentation: Num
    optimizer_fraction: Num
    owner_send_s: Num
    gradient_passes: Num
    recompute_exit: bool
    sources: tuple[str, ...] = ()

    @property
    def flash_attention(self) -> bool:
        """Whether attention scores stay on chip."""
        return find_attention_kernel(self.attention).flash

    @property
    def fusions(self) -> Mapping[str, str]:
        """How each group of memory-bound operators runs."""
        return {group: getattr(self, group) for group in GROUPS}

    def backend_rate(self, collective: Collective) -> Num:
        """Return what the library of collectives reaches of the network's rate in one of them."""
        rates: dict[Collective, Num] = {"reduce_scatter": self.scatter_rate, "all_reduce": self.reduce_rate}
        return rates.get(collective, 1.0)


@lru_cache(maxsize=1)
def sourced_profiles() -> Mapping[str, Mapping[str, Any]]:
    """Return what each profile sets in ``data/profiles.toml``, without what was fitted to runs."""
    import tomllib

    text = resources.files("meshwright.costmodels").joinpath("data/profiles.toml").read_text("utf-8")
    return tomllib.loads(text)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Any]]:
    return overlaid(sourced_profiles())


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(_table())


def profile_with(name: str, switches: Mapping[str, Any]) -> str:
    """Return the name of a profile whose switches differ from its own; :func:`find_profile` reads it."""
    base, own = profile_parts(name)
    told = ",".join(f"{key}={_written(value)}" for key, value in sorted({**own, **switches}.items()))
    return f"{base}[{told}]" if told else base


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def profile_parts(name: str) -> tuple[str, dict[str, str]]:
    """Return the profile's own name and its switches as text."""
    base, bracket, rest = name.partition("[")
    pairs = [pair.partition("=") for pair in rest.removesuffix("]").split(",")] if bracket else []
    return base, {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


@lru_cache(maxsize=1024)
def find_profile(name: str) -> Profile:
    """Return a profile with what it inherits, and with the switches in brackets behind its name.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    MeshwrightError
        If the data file misses a field or has an unknown one, or a switch is unknown or has a wrong value.
    """
    base, switches = profile_parts(name)
    found = own_profile(Path(base)) if base.endswith(FILE_SUFFIX) else _found(base, _table())
    if not switches:
        return found
    values = {key: _value(found, key, text) for key, text in switches.items()}
    changed = replace(found, name=name, **values)
    _check(changed)
    return changed


def _value(profile: Profile, key: str, text: str) -> Any:
    """Return a switch's value in the type of the profile's own."""
    own = getattr(profile, key, None) if key in _SWITCHES else None
    if own is None:
        raise MeshwrightError(
            f"profile {profile.name}: {key!r} is not a switch; allowed: {', '.join(_SWITCHES)}"
        )
    if isinstance(own, bool):
        if text not in ("true", "false"):
            raise MeshwrightError(f"profile {profile.name}: {key} is {text!r}; allowed: true, false")
        return text == "true"
    if isinstance(own, str):
        return text
    try:
        return float(text)
    except ValueError as error:
        raise MeshwrightError(f"profile {profile.name}: {key} is {text!r}; a number is expected") from error


def _check(profile: Profile) -> None:
    """Raise UnknownNameError if a switch names what does not exist."""
    find_attention_kernel(profile.attention)
    find_loss(profile.loss)
    for group, how in profile.fusions.items():
        if how not in FUSIONS:
            raise UnknownNameError(group, how, list(FUSIONS))


def own_profile(path: Path) -> Profile:
    """Return the profile in a file of one's own; its name is the path.

    Raises
    ------
    MeshwrightError
        If the file cannot be read, holds no profile, or a field is unknown or of a wrong type.
    """
    own = _file_table(path)
    parent = _found(str(own.get("inherits", "generic")), _table())
    for key, value in own.items():
        if key not in ("inherits", "title", "sources"):
            _check_like(parent, key, value, path)
    sources = own.get("sources", [])
    if not (isinstance(sources, list) and all(isinstance(s, str) for s in [*sources, own.get("title", "")])):
        raise MeshwrightError(f"{path}: title is a text, sources a list of texts")
    changed = replace(parent, **{k: v for k, v in own.items() if k != "inherits"}, name=str(path))
    _check(changed)
    return replace(changed, sources=tuple(sources) or parent.sources)


def parent_of(name: str) -> str | None:
    """Return the name of the profile that one inherits from; None for the root of all."""
    base = profile_parts(name)[0]
    if base.endswith(FILE_SUFFIX):
        return str(_file_table(Path(base)).get("inherits", "generic"))
    found = sourced_profiles()[base].get("inherits")
    return None if found is None else str(found)


def _file_table(path: Path) -> Mapping[str, Any]:
    """Return the one table of a profile file."""
    import tomllib

    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
        table = tomllib.loads(raw.decode("utf-8")) if len(raw) <= MAX_FILE_BYTES else {}
    except OSError as error:
        raise MeshwrightError(f"profile {path}: {error.strerror}; give the path of a TOML file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise MeshwrightError(f"profile {path}: no TOML text ({error})") from None
    own = [value for value in table.values() if isinstance(value, dict)]
    if len(own) != 1 or len(table) != 1:
        raise MeshwrightError(
            f"profile {path}: one table [name] with a profile's fields is expected, of at most "
            f"{MAX_FILE_BYTES} bytes"
        )
    return own[0]


def _check_like(parent: Profile, key: str, value: Any, path: Path) -> None:
    """Refuse an unknown field, and a value of another type than the parent's or below 0."""
    if key not in _SWITCHES:
        raise MeshwrightError(f"profile {path}: {key!r} is not a field; allowed: {', '.join(_SWITCHES)}")
    wanted = getattr(parent, key)
    if isinstance(wanted, bool | str):
        fits, what = type(value) is type(wanted), "true or false" if isinstance(wanted, bool) else "a text"
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits, what = number and 0 <= value <= MAX_VALUE, f"a number from 0 to {MAX_VALUE:g}"
    if not fits:
        raise MeshwrightError(f"profile {path}: {key} is {value!r}; allowed: {what}")


def sourced_profile(name: str) -> Profile:
    """Return a profile of the data file as its sources have it, without constants fitted to runs."""
    return _found(name, sourced_profiles())


def _found(name: str, table: Mapping[str, Mapping[str, Any]]) -> Profile:
    """Return a profile of a table."""
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
    found = Profile(name=name, **merged)
    _check(found)
    return found


_SWITCHES: Final = tuple(f.name for f in fields(Profile) if f.name not in ("name", "title", "sources"))
