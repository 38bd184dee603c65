"""The cluster of a published run: the catalogue's node of its accelerator, cut or repeated to its devices.

What a row prints about the network between nodes replaces the catalogue's bandwidth. Accelerators that the
catalogue lacks stand in ``data/accelerators``.
"""

import re
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Final

from benchmarks.row_machine import EXTRA_ACCELERATORS, Machine, find_machine
from benchmarks.row_model import NotExpressibleError
from benchmarks.rows import Row
from meshwright.hardware.catalogue import MAX_COUNT, load_accelerator, load_cluster
from meshwright.hardware.spec import Accelerator, Cluster, Tier
from meshwright.hardware.units import gbit_per_s_to_bytes_per_s

USUAL_HOST: Final = 8
"""Devices of a host that nobody describes."""
USUAL_NETWORK: Final = gbit_per_s_to_bytes_per_s(100)
"""Of such a host: one 100 Gb/s port, shared by its devices."""
USUAL_LATENCY_S: Final = 20e-6
USUAL_EFFICIENCY: Final = 0.9
"""As the catalogue's generic hosts on Ethernet have them."""


def cluster_of(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """Return the cluster of a row, and what was assumed about it.

    Raises
    ------
    NotExpressibleError
        If the row names no accelerator or no count, or one that is not known.
    """
    machine = _machine(row)
    devices, assumed = _devices(row)
    assumed += (machine.assumption,) if machine.assumption else ()
    if machine.slices:
        count = slice_count(row)
        if count > 1 and not _stated_slices(row):
            assumed += (f"slices not stated: {count}, the fewest that the pod has",)
        return _slices(machine.node or "", devices, count), assumed
    per_node = None if row.gpus_per_node is None else max(row.gpus_per_node, 1)
    bandwidth = network_bytes_per_s(row.inter_bw_note, row.gpus_per_node)
    bridged = machine.bridged and not (row.intra_bw_note or "").startswith("PCIe")
    return _nodes(machine, devices, per_node, bandwidth, bridged), assumed


def _machine(row: Row) -> Machine:
    """Return the machine of a row's accelerator, or of what is printed where no name is given."""
    named = [name for name in (row.accelerator, row.accelerator_as_printed) if name is not None]
    if not named:
        raise NotExpressibleError("accelerator not stated")
    found = next(filter(None, map(find_machine, named)), None)
    if found is None:
        raise NotExpressibleError(f"accelerator not known: {named[0]}")
    return found


def _devices(row: Row) -> tuple[int, tuple[str, ...]]:
    assumed: tuple[str, ...] = ()
    devices = row.num_gpus
    if devices is None:
        if row.dp is None:
            raise NotExpressibleError("number of devices not stated")
        devices = row.dp * (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
        assumed = (f"devices not stated: {devices}, the product of the degrees",)
    if devices > MAX_COUNT:
        raise NotExpressibleError(f"{devices} devices; allowed: at most {MAX_COUNT}")
    return devices, assumed


@lru_cache(maxsize=1024)
def _nodes(
    machine: Machine, devices: int, per_node: int | None, network: float | None, bridged: bool
) -> Cluster:
    """Return nodes of equal size: the largest that divide the devices; bare devices may lack a bridge."""
    accelerator = _accelerator(machine.accelerator)
    if machine.node is None:
        assert accelerator is not None
        return _bare(
            accelerator if bridged else replace(accelerator, on_package_link=None), devices, per_node, network
        )
    single = load_cluster(machine.node)
    size = single.num_devices
    if per_node is not None and single.devices_per_host == size:  # a rack's hosts share one domain
        size = min(size, per_node) if devices > per_node else size
    unit = devices if devices <= size else next(d for d in range(size, 0, -1) if devices % d == 0)
    tiers = _cut(single.tiers, unit)
    if devices > unit:
        above = load_cluster(f"{machine.node}:2").tiers[len(single.tiers)]
        rate = above.bandwidth_bytes_per_s if network is None else network
        tiers += (replace(above, fan_out=devices // unit, bandwidth_bytes_per_s=rate),)
    return replace(
        single,
        name=f"{machine.node} {devices}",
        accelerator=accelerator or single.accelerator,
        tiers=tiers,
        devices_per_host=min(single.devices_per_host, unit),
    )


def _accelerator(name: str | None) -> Accelerator | None:
    if name is None:
        return None
    return load_accelerator(EXTRA_ACCELERATORS / name if name.endswith(".yaml") else name)


def _bare(accelerator: Accelerator, devices: int, per_node: int | None, network: float | None) -> Cluster:
    """Return bare devices on one host, or on several of ``per_node`` (or eight) each."""
    from meshwright.hardware.build import box_of

    hosted = min(devices, per_node or USUAL_HOST)
    unit = next(d for d in range(hosted, 0, -1) if devices % d == 0)
    one = box_of(accelerator, unit)
    if devices == unit:
        return one
    rate = USUAL_NETWORK / unit if network is None else network
    above = Tier("network", "ethernet", devices // unit, rate, USUAL_LATENCY_S, efficiency=USUAL_EFFICIENCY)
    return replace(one, name=f"{accelerator.name} {devices}", tiers=(*one.tiers, above))


def _cut(tiers: tuple[Tier, ...], devices: int) -> tuple[Tier, ...]:
    """Return the inner tiers with ``devices`` below them, filled from the innermost."""
    kept: list[Tier] = []
    left = devices
    for tier in tiers:
        fan_out = left if left <= tier.fan_out else gcd(tier.fan_out, left)
        kept.append(replace(tier, fan_out=fan_out))
        left //= fan_out
        if left == 1:
            break
    kept[-1] = replace(kept[-1], fan_out=kept[-1].fan_out * left)
    return tuple(kept)


def _stated_slices(row: Row) -> int | None:
    said = re.search(r"slices joined by DCN: ([1-9]\d*)", row.notes) or re.search(
        r"DP ([1-9]\d*) pods", row.sharding or ""
    )
    return int(said.group(1)) if said else None


def slice_count(row: Row) -> int:
    """Return the slices that the data-centre network joins: as stated, else as few as the pod allows."""
    stated = _stated_slices(row)
    if stated is not None:
        return stated
    machine = _machine(row)
    return _fewest_slices(machine.node or "", _devices(row)[0]) if machine.slices else 1


@lru_cache(maxsize=256)
def _fewest_slices(pod: str, devices: int) -> int:
    limits = tuple(sorted(tier.fan_out for tier in load_cluster(pod).tiers))
    able = (n for n in range(1, devices + 1) if devices % n == 0 and most_cubic(devices // n, limits))
    return next(able)


@lru_cache(maxsize=256)
def _slices(pod: str, devices: int, slices: int) -> Cluster:
    """Return slices of a torus pod, each as cubic as fits, joined by the data-centre network."""
    full = load_cluster(pod)
    if not 1 <= slices <= devices:
        raise NotExpressibleError(f"{slices} slices of {pod} for {devices} chips; allowed: 1 to {devices}")
    chips = devices // slices
    shape = most_cubic(chips, tuple(sorted(tier.fan_out for tier in full.tiers)))
    if shape is None:
        raise NotExpressibleError(f"no slice of {pod} has {chips} chips")
    one = load_cluster(f"{pod}:{'x'.join(map(str, shape))}")
    if slices == 1:
        return one
    above = load_cluster(f"{pod}:2").tiers[len(full.tiers)]
    return replace(one, name=f"{one.name} x {slices}", tiers=(*one.tiers, replace(above, fan_out=slices)))


def most_cubic(chips: int, limits: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the factors of ``chips``, one within each limit, whose largest is smallest; None without any."""
    if not limits:
        return () if chips == 1 else None
    found = []
    for first in range(1, min(limits[0], chips) + 1):
        if chips % first == 0:
            rest = most_cubic(chips // first, limits[1:])
            found += [] if rest is None else [(first, *rest)]
    return min(found, key=lambda shape: (max(shape), sum(shape)), default=None)


_RATES: Final = re.compile(
    r"(?:(?P<ports>\d+)\s*x\s*)?(?:[EHNX]DR\s*)?(?P<rate>\d+(?:\.\d+)?)\s*"
    r"(?:(?P<tera>T)b|Gb|Gigabit|G\s*(?=IB\b|InfiniBand|Ethernet)|(?P<bytes>GB/s)|(?=per GPU))"
)
_GENERATIONS: Final = re.compile(r"(?:(?P<ports>\d+)\s*x\s*)?(?P<name>[EHNX]DR)(?P<rate>\d*)")
_PORT_GBIT: Final = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
"""Of four lanes of InfiniBand's generations."""
_DEVICE: Final = re.compile(r"(per |/)(gpu|device|accelerator|card|chip|npu)", re.IGNORECASE)
_BITS: Final = 8


def network_bytes_per_s(note: str | None, per_node: int | None) -> float | None:
    """Return one device's share of the network between nodes as a note prints it, None without a figure.

    Understood are ``8x 400 Gb/s ... per node``, ``1600 Gbps/node``, ``3.2 Tb/s``, ``50 GB/s``, ``400 Gb/s ...
    per GPU``, ``NDR400 per GPU`` and ``8x HDR``; a generation's name alone does not say how many ports.
    """
    said = note or ""
    if found := _RATES.search(said):
        each = float(found["rate"]) * (1000 if found["tera"] else _BITS if found["bytes"] else 1)
    elif (found := _GENERATIONS.search(said)) and (found["ports"] or found["rate"]):
        each = float(found["rate"] or _PORT_GBIT[found["name"]])
    else:
        return None
    share = 1 if _DEVICE.search(said) else per_node or USUAL_HOST
    together = int(found["ports"] or 1) * each / share
    return gbit_per_s_to_bytes_per_s(together) if together else None
