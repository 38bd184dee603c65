"""From validated file data to the SI objects of :mod:`meshwright.hardware.spec`."""

from math import prod
from typing import Final

from meshwright.hardware import units
from meshwright.hardware.errors import CatalogueError
from meshwright.hardware.schema import (
    MAX_DEVICES,
    AcceleratorData,
    AchievedData,
    ClusterData,
    LinkData,
    PriceData,
    SourceData,
    SupportData,
    TierData,
)
from meshwright.hardware.spec import (
    Accelerator,
    Achieved,
    Cluster,
    Link,
    Price,
    Source,
    Support,
    Tier,
)

DEFAULT_HOST_LINK: Final = Link("shared memory", 10 * units.GB, 10 * units.MICROSECOND, topology="host")


def accelerator_from_data(data: AcceleratorData) -> Accelerator:
    """Return the accelerator of one file, in SI; usable memory where the driver's figure is known."""
    return Accelerator(
        name=data.name,
        title=data.title,
        vendor=data.vendor,
        kind=data.kind,
        year=data.year,
        memory_bytes=_memory_bytes(data),
        memory_bandwidth_bytes_per_s=units.gb_per_s_to_bytes_per_s(data.bandwidth_gb_per_s),
        peak_flops_per_s={k: units.tflops_to_flops_per_s(v) for k, v in data.peak_dense_tflops.items()},
        num_cores=data.num_cores,
        on_package_link=_link(data.on_package_link),
        host_link=_link(data.host_link),
        power_w=data.power_w,
        list_price_usd=data.list_price_usd,
        prices=tuple(_price(price, devices_per_host=1) for price in data.prices),
        support=_support(data.support),
        achieved=_achieved(data.achieved),
        notes=tuple(data.notes),
        sources=_sources(data.sources),
        memory_only_fields=_memory_only(data.sources),
        aliases=tuple(data.aliases),
    )


def cluster_from_data(
    data: ClusterData, accelerator: Accelerator, count: int, shape: tuple[int, ...] | None = None
) -> Cluster:
    """Return ``count`` units of a node, rack or pod; ``shape`` cuts a slice out of a torus pod.

    Raises
    ------
    CatalogueError
        If the count or the shape does not fit the file.
    """
    inner = [_tier(tier, accelerator, data.name) for tier in data.tiers]
    if shape is not None:
        inner = _slice(data, inner, shape)
    tiers = tuple(inner) + _scale_out(data, accelerator, count)
    devices = prod(tier.fan_out for tier in tiers)
    if devices > MAX_DEVICES:
        raise CatalogueError(data.name, "devices", devices, f"at most {MAX_DEVICES}", "a smaller count")
    prices = tuple(_price(price, data.devices_per_host) for price in data.prices)
    return Cluster(
        name=data.name + _suffix(count, shape),
        accelerator=accelerator,
        tiers=tiers,
        devices_per_host=min(data.devices_per_host, devices),
        host_memory_bytes=_gib(data.host_memory_gib),
        usd_per_device_hour=prices[0].usd_per_device_hour if prices else accelerator.usd_per_hour,
        notes=tuple(data.notes),
        sources=_sources(data.sources),
        title=data.title or data.name,
        prices=prices,
        aliases=tuple(data.aliases),
    )


def box_of(accelerator: Accelerator, count: int) -> Cluster:
    """Return ``count`` bare devices on one host, joined by the link that such a box would have.

    One tier of the on-package link where it joins as many; otherwise pairs (or quads) on the on-package
    bridge and the host link above them; the host link alone where there is no other.

    Raises
    ------
    CatalogueError
        If one host cannot hold that many devices.
    """
    bridge, host = accelerator.on_package_link, accelerator.host_link or DEFAULT_HOST_LINK
    limit = max(8, (bridge.max_devices or 8) if bridge else 8)
    if count > limit:
        hint = f"a node preset, or {accelerator.name}:{limit}"
        raise CatalogueError(accelerator.name, "devices on one host", count, f"1 to {limit}", hint)
    reach = (bridge.max_devices or count) if bridge else 1
    if bridge is not None and reach >= count:
        tiers: tuple[Tier, ...] = (_tier_of_link(bridge, "on-package", count),)
    elif bridge is not None and reach > 1 and count % reach == 0:
        tiers = (
            _tier_of_link(bridge, "on-package", reach),
            _tier_of_link(host, "host", count // reach),
        )
    else:
        tiers = (_tier_of_link(host, "host", count),)
    return Cluster(
        name=f"{accelerator.name}:{count}",
        accelerator=accelerator,
        tiers=tiers,
        devices_per_host=count,
        usd_per_device_hour=accelerator.usd_per_hour,
        title=f"{count} x {accelerator.title} on one host",
        prices=accelerator.prices,
        sources=accelerator.sources,
    )


def _suffix(count: int, shape: tuple[int, ...] | None) -> str:
    return ":" + ("x".join(map(str, shape)) if shape else str(count))


def _gib(gib: float | None) -> float | None:
    return None if gib is None else units.gib_to_bytes(gib)


def _memory_bytes(data: AcceleratorData) -> float:
    if data.usable_memory_mib is not None:
        return units.mib_to_bytes(data.usable_memory_mib)
    if data.memory_gib is not None:
        return units.gib_to_bytes(data.memory_gib)
    assert data.memory_gb is not None  # the schema has refused a file without any
    return data.memory_gb * units.GB


def _link(data: LinkData | None) -> Link | None:
    if data is None:
        return None
    pair = data.pair_bandwidth_gb_per_s
    return Link(
        name=data.name,
        bandwidth_bytes_per_s=units.gb_per_s_to_bytes_per_s(data.bandwidth_gb_per_s),
        latency_s=units.us_to_s(data.latency_us),
        efficiency=data.efficiency,
        topology=data.topology,
        pair_bandwidth_bytes_per_s=None if pair is None else units.gb_per_s_to_bytes_per_s(pair),
        max_devices=data.max_devices,
    )


def _price(data: PriceData, devices_per_host: int) -> Price:
    per_device = data.usd_per_device_hour
    if per_device is None:
        assert data.usd_per_node_hour is not None  # the schema asks for exactly one
        per_device = data.usd_per_node_hour / devices_per_host
    return Price(per_device, data.provider, data.kind, data.date, data.instance)


def _support(data: SupportData) -> Support:
    return Support(
        training=data.training,
        inference=data.inference,
        parallelisms=frozenset(data.parallelisms),
        dtypes=frozenset(data.dtypes),
        targets=frozenset(data.targets),
    )


def _achieved(data: AchievedData) -> Achieved:
    return Achieved(
        gemm_fraction=data.gemm_fraction,
        memory_fraction=data.memory_fraction,
        kernel_launch_s=units.us_to_s(data.kernel_launch_us),
        context_bytes=units.gib_to_bytes(data.context_gib),
    )


def _sources(data: list[SourceData]) -> tuple[Source, ...]:
    return tuple(Source(tuple(s.fields), s.title, s.reference, s.kind) for s in data)


def _memory_only(data: list[SourceData]) -> tuple[str, ...]:
    seen = {name for source in data if source.kind != "memory" for name in source.fields}
    recalled = [name for source in data if source.kind == "memory" for name in source.fields]
    return tuple(sorted({name for name in recalled if name not in seen}))


def _tier_of_link(link: Link, name: str, fan_out: int) -> Tier:
    return Tier(
        name=name,
        kind=link.topology,
        fan_out=fan_out,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        efficiency=link.efficiency,
        pair_bandwidth_bytes_per_s=link.pair_bandwidth_bytes_per_s,
    )


def _tier(data: TierData, accelerator: Accelerator, where: str, fan_out: int | None = None) -> Tier:
    """Return one tier: the file's own numbers over those of the accelerator's link it names."""
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
        **fields,  # type: ignore[arg-type]
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _scale_out(data: ClusterData, accelerator: Accelerator, count: int) -> tuple[Tier, ...]:
    """Return the tiers that join ``count`` units: each filled before the next one is used."""
    if count == 1:
        return ()
    if not data.scale_out:
        allowed = "1: the file names no scale_out tier"
        raise CatalogueError(data.name, f"{data.unit}s", count, allowed, "adding scale_out to the file")
    tiers, left = [], count
    for tier in data.scale_out:
        fan_out = left if tier.fan_out is None or left <= tier.fan_out else tier.fan_out
        if left % fan_out or (tier is data.scale_out[-1] and fan_out != left):
            limit = tier.fan_out or 1
            allowed = f"up to {limit}, or a multiple of {limit} where a further tier joins them"
            raise CatalogueError(data.name, f"{data.unit}s", count, allowed)
        tiers.append(_tier(tier, accelerator, data.name, fan_out))
        left //= fan_out
        if left == 1:
            break
    return tuple(tiers)


def _slice(data: ClusterData, tiers: list[Tier], shape: tuple[int, ...]) -> list[Tier]:
    """Return the torus axes of a slice: those that do not wrap around have one direction only."""
    full = tuple(tier.fan_out for tier in tiers)
    fits = len(shape) == len(full) and all(a <= b for a, b in zip(sorted(shape), sorted(full), strict=True))
    if data.wrap_multiple is None or not fits or min(shape) < 1:
        allowed = f"up to {'x'.join(map(str, full))}" if data.wrap_multiple else f"a count of {data.unit}s"
        raise CatalogueError(data.name, "slice", "x".join(map(str, shape)), allowed)
    whole = [axis % data.wrap_multiple == 0 for axis in shape]
    wraps = [all(whole) if data.wrap_all_axes else each for each in whole]
    return [_axis(tier, axis, wrap) for tier, axis, wrap in zip(tiers, shape, wraps, strict=True)]


def _axis(tier: Tier, fan_out: int, wraps: bool) -> Tier:
    from dataclasses import replace

    if wraps:
        return replace(tier, fan_out=fan_out)
    return replace(tier, fan_out=fan_out, kind="line", bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / 2)
