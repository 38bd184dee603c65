"""The cluster of a published run: the catalogue's node of its accelerator, cut or repeated to its devices.

What a row prints about the network between nodes replaces the catalogue's bandwidth. Accelerators that the
catalogue lacks stand in ``data/accelerators``.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Final

from benchmarks.row_model import NotExpressibleError
from benchmarks.rows import Row
from meshwright.hardware.catalogue import load_accelerator, load_cluster
from meshwright.hardware.spec import Accelerator, Cluster, Tier
from meshwright.hardware.units import gbit_per_s_to_bytes_per_s

EXTRA_ACCELERATORS: Final = Path(__file__).parent / "data" / "accelerators"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where an accelerator of the rows stands in the catalogue.

    Attributes
    ----------
    node
        A node, rack or pod of the catalogue; None: bare devices on one host.
    accelerator
        An accelerator of the catalogue, or a file in ``data/accelerators``; None: the node's own.
    slices
        Whether runs take slices of a torus pod.
    assumption
        What is not as printed.
    """

    node: str | None = None
    accelerator: str | None = None
    slices: bool = False
    assumption: str | None = None


MACHINES: Final = {
    "a100-sxm-80gb": Machine("dgx-a100"),
    "a100-sxm-40gb": Machine("dgx-a100-40gb"),
    "a100-pcie-80gb": Machine(None, "a100-80gb-pcie"),
    "a800-sxm-80gb": Machine("hgx-a800"),
    "h100-sxm-80gb": Machine("dgx-h100"),
    "h100-sxm-96gb-hbm2e": Machine("hgx-h100-96gb"),
    "h200-sxm-141gb": Machine("dgx-h200"),
    "b200-sxm": Machine("dgx-b200"),
    "b300-sxm": Machine("dgx-b300"),
    "gb200": Machine("gb200-nvl72"),
    "gb300": Machine("gb300-nvl72"),
    "a10g-24gb": Machine("aws-g5-48"),
    "v100-sxm2-32gb": Machine("dgx-1-v100"),
    "v100-sxm2-16gb": Machine("dgx-1-v100", "v100-16gb"),
    "rtx3090": Machine(None, "rtx-3090"),
    "rtx4090": Machine("rtx-4090-8"),
    "gaudi2": Machine("gaudi2-8"),
    "mi300x": Machine("mi300x-8"),
    "titan-rtx-24gb": Machine(None, "titan-rtx.yaml"),
    "RTX-A5000-24GB": Machine(None, "rtx-a5000.yaml"),
    "RTX-6000-Ada-48GB": Machine(None, "rtx-6000-ada.yaml"),
    "tpu-v4": Machine("tpu-v4-pod", slices=True),
    "tpu-v5e": Machine("tpu-v5e-pod", slices=True),
    "tpu-v5p": Machine("tpu-v5p-pod", slices=True),
    "24GB class": Machine(None, "rtx-3090", assumption="a device of the 24 GB class: RTX 3090"),
    "64GB device (8 per node)": Machine("frontier", assumption="64 GB and 8 a node: MI250X GCDs"),
}


def cluster_of(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """Return the cluster of a row, and what was assumed about it.

    Raises
    ------
    NotExpressibleError
        If the row names no accelerator or no count, or one that is not known.
    """
    if row.accelerator is None:
        raise NotExpressibleError("accelerator not stated")
    machine = MACHINES.get(row.accelerator)
    if machine is None:
        raise NotExpressibleError(f"accelerator not known: {row.accelerator}")
    devices, assumed = _devices(row)
    assumed += (machine.assumption,) if machine.assumption else ()
    if machine.slices:
        return _slices(machine.node or "", devices, slice_count(row)), assumed
    per_node = None if row.gpus_per_node is None else max(row.gpus_per_node, 1)
    bandwidth = network_bytes_per_s(row.inter_bw_note, row.gpus_per_node)
    bridged = not (row.intra_bw_note or "").startswith("PCIe")
    return _nodes(machine, devices, per_node, bandwidth, bridged), assumed


def _devices(row: Row) -> tuple[int, tuple[str, ...]]:
    if row.num_gpus is not None:
        return row.num_gpus, ()
    if row.dp is None:
        raise NotExpressibleError("number of devices not stated")
    devices = row.dp * (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
    return devices, (f"devices not stated: {devices}, the product of the degrees",)


@lru_cache(maxsize=1024)
def _nodes(
    machine: Machine, devices: int, per_node: int | None, network: float | None, bridged: bool
) -> Cluster:
    """Return nodes of equal size: the largest that divide the devices; bare devices may lack a bridge."""
    accelerator = _accelerator(machine.accelerator)
    if machine.node is None:
        assert accelerator is not None
        return _box(accelerator if bridged else replace(accelerator, on_package_link=None), devices)
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


def _box(accelerator: Accelerator, devices: int) -> Cluster:
    from meshwright.hardware.build import box_of

    return box_of(accelerator, devices)


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


def slice_count(row: Row) -> int:
    """Return the slices that the data-centre network joins, as the row's notes say."""
    said = re.search(r"slices joined by DCN: (\d+)", row.notes) or re.search(
        r"DP (\d+) pods", row.sharding or ""
    )
    return int(said.group(1)) if said else 1


@lru_cache(maxsize=256)
def _slices(pod: str, devices: int, slices: int) -> Cluster:
    """Return slices of a torus pod, each as cubic as fits, joined by the data-centre network."""
    full = load_cluster(pod)
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


def network_bytes_per_s(note: str | None, per_node: int | None) -> float | None:
    """Return one device's share of the network between nodes as a note prints it, None without a figure.

    Understood are ``8x 400 Gb/s ... per node``, ``1600 Gbps/node``, ``400 Gb/s ... per GPU`` and ``NDR400
    per GPU``.
    """
    found = re.search(r"(?:(\d+)\s*x\s*)?(?:NDR\s*)?(\d+)\s*(?:Gb|per GPU)", note or "")
    found = found or re.search(r"()NDR(\d+)", note or "")
    if found is None or note is None:
        return None
    total = int(found.group(1) or 1) * int(found.group(2))
    share = 1 if "per gpu" in note.lower() else per_node or 8
    return gbit_per_s_to_bytes_per_s(total / share)
