"""Tiers of a cluster from file data: inside a unit, between units, and along the axes of a torus slice."""

from dataclasses import replace

from meshwright.hardware import units
from meshwright.hardware.errors import CatalogueError
from meshwright.hardware.schema import ClusterData, TierData
from meshwright.hardware.spec import Accelerator, Link, Tier

FABRICS = frozenset({"rail", "fat-tree", "ethernet"})
FABRIC_CONGESTION = 0.05
"""Per doubling of nodes beyond four: ring reduce-scatter on H100 nodes falls from 360 to 260 GB/s between 4
and 128 nodes, 0.077 a doubling (NCCL issue 1229); all-reduces of 256 MiB from 273 to 222 GB/s between 4 and
256 nodes, 0.038 a doubling, part of it the levels of their tree (arXiv 2411.13055)."""


def tier_of_link(link: Link, name: str, fan_out: int) -> Tier:
    """Return the tier of ``fan_out`` devices joined by their own links."""
    return Tier(
        name=name,
        kind=link.topology,
        fan_out=fan_out,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        efficiency=link.efficiency,
        pair_bandwidth_bytes_per_s=link.pair_bandwidth_bytes_per_s,
    )


def tier_from_data(data: TierData, accelerator: Accelerator, where: str, fan_out: int | None = None) -> Tier:
    """Return one tier: the file's own numbers over those of the accelerator's link that it names.

    Raises
    ------
    CatalogueError
        If the accelerator has no such link.
    """
    base: dict[str, object] = {}
    if data.link is not None:
        link = accelerator.on_package_link if data.link == "on_package" else accelerator.host_link
        if link is None:
            allowed = f"a link that {accelerator.name} has"
            raise CatalogueError(where, f"tiers.{data.name}.link", data.link, allowed, "giving the numbers")
        base = {
            "kind": link.topology,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
            "latency_s": link.latency_s,
            "efficiency": link.efficiency,
            "pair_bandwidth_bytes_per_s": link.pair_bandwidth_bytes_per_s,
        }
    own: dict[str, object] = {
        "kind": data.kind,
        "bandwidth_bytes_per_s": _scaled(data.bandwidth_gb_per_s, units.GB),
        "latency_s": _scaled(data.latency_us, units.MICROSECOND),
        "efficiency": data.efficiency,
        "pair_bandwidth_bytes_per_s": _scaled(data.pair_bandwidth_gb_per_s, units.GB),
    }
    fields = base | {key: value for key, value in own.items() if value is not None}
    return Tier(
        name=data.name,
        fan_out=fan_out or data.fan_out or 1,
        oversubscription=data.oversubscription,
        devices_per_nic=data.devices_per_nic,
        congestion_per_doubling=_congestion(data, fields),
        **fields,  # type: ignore[arg-type]
    )


def _congestion(data: TierData, fields: dict[str, object]) -> float:
    """Return the file's own congestion, else what fabrics between nodes show and nothing inside a node."""
    if data.congestion_per_doubling is not None:
        return data.congestion_per_doubling
    return FABRIC_CONGESTION if fields["kind"] in FABRICS else 0.0


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def scale_out_tiers(data: ClusterData, accelerator: Accelerator, count: int) -> tuple[Tier, ...]:
    """Return the tiers that join ``count`` units: each filled before the next one is used.

    Raises
    ------
    CatalogueError
        If the file has no tier for more than one unit, or the count does not fill the inner ones.
    """
    if count == 1:
        return ()
    if not data.scale_out:
        allowed = "1: the file names no scale_out tier"
        raise CatalogueError(data.name, f"{data.unit}s", count, allowed, "adding scale_out to the file")
    tiers, left = [], count
    for tier in data.scale_out:
        if left == 1:
            break
        fan_out = left if tier.fan_out is None or left <= tier.fan_out else tier.fan_out
        if left % fan_out or (tier is data.scale_out[-1] and fan_out != left):
            limit = tier.fan_out or 1
            allowed = f"up to {limit}, or a multiple of {limit} where a further tier joins them"
            raise CatalogueError(data.name, f"{data.unit}s", count, allowed)
        tiers.append(tier_from_data(tier, accelerator, data.name, fan_out))
        left //= fan_out
    return tuple(tiers)


def slice_tiers(data: ClusterData, tiers: list[Tier], shape: tuple[int, ...]) -> list[Tier]:
    """Return the torus axes of a slice: those that do not wrap around have one direction only.

    Raises
    ------
    CatalogueError
        If the unit is no torus, or the shape does not fit into it.
    """
    full = tuple(tier.fan_out for tier in tiers)
    fits = len(shape) == len(full) and all(a <= b for a, b in zip(sorted(shape), sorted(full), strict=True))
    if data.wrap_multiple is None or not fits or min(shape) < 1:
        allowed = f"up to {'x'.join(map(str, full))}" if data.wrap_multiple else f"a count of {data.unit}s"
        raise CatalogueError(data.name, "slice", "x".join(map(str, shape)), allowed)
    whole = [axis % data.wrap_multiple == 0 for axis in shape]
    wraps = [all(whole) if data.wrap_all_axes else each for each in whole]
    return [_axis(tier, axis, wrap) for tier, axis, wrap in zip(tiers, shape, wraps, strict=True)]


def _axis(tier: Tier, fan_out: int, wraps: bool) -> Tier:
    if wraps:
        return replace(tier, fan_out=fan_out)
    return replace(tier, fan_out=fan_out, kind="line", bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / 2)
