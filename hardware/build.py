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
from meshwright.hardware.tiers import scale_out_tiers, slice_tiers, tier_from_data, tier_of_link

MAX_BOX: Final = 8
MAX_BIG_BOX: Final = 16  # a DGX-2
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
        device=data.device,
        architecture=data.architecture,
        memory_is_nominal=data.usable_memory_mib is None or data.usable_memory_is_nominal,
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
    inner = [tier_from_data(tier, accelerator, data.name) for tier in data.tiers]
    if shape is not None:
        inner = slice_tiers(data, inner, shape)
    tiers = tuple(inner) + scale_out_tiers(data, accelerator, count)
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
        nvme_bytes_per_s=_scaled(data.nvme_gb_per_s, units.GB),
        nvme_bytes=_scaled(data.nvme_tb, units.TB),
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
    if bridge is not None and bridge.topology in ("ring", "torus") and count > 1:
        allowed = f"1: its devices are joined in a {bridge.topology}"
        raise CatalogueError(
            accelerator.name, "devices", count, allowed, "a node, or a slice of a pod such as 2x2"
        )
    limit = min(max(MAX_BOX, (bridge.max_devices or 0) if bridge else 0), MAX_BIG_BOX)
    if count > limit:
        hint = f"a node preset, or {accelerator.name}:{limit}"
        raise CatalogueError(accelerator.name, "devices on one host", count, f"1 to {limit}", hint)
    reach = (bridge.max_devices or count) if bridge else 1
    if bridge is not None and reach >= count:
        tiers: tuple[Tier, ...] = (tier_of_link(bridge, "on-package", count),)
    elif bridge is not None and reach > 1 and count % reach == 0:
        tiers = (
            tier_of_link(bridge, "on-package", reach),
            tier_of_link(host, "host", count // reach),
        )
    else:
        tiers = (tier_of_link(host, "host", count),)
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


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _gib(gib: float | None) -> float | None:
    return None if gib is None else units.gib_to_bytes(gib)


def _memory_bytes(data: AcceleratorData) -> float:
    """Return what processes may take together: the device's memory, less what its driver keeps."""
    kept, whole = units.mib_to_bytes(data.driver_reserved_mib), _whole_bytes(data)
    if kept >= whole:
        raise CatalogueError(
            data.name,
            "driver_reserved_mib",
            data.driver_reserved_mib,
            f"less than its memory of {units.bytes_to_gib(whole):.4g} GiB",
            "leave it out if unknown",
        )
    return whole - kept


def _whole_bytes(data: AcceleratorData) -> float:
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
        low_gemm_fractions={str(k): v for k, v in data.low_gemm_fractions.items()},
        gemm_fill_k=data.gemm_fill_k,
        attention_shares={name: shares.model_dump() for name, shares in data.attention_shares.items()},
    )


def _sources(data: list[SourceData]) -> tuple[Source, ...]:
    return tuple(Source(tuple(s.fields), s.title, s.reference, s.kind) for s in data)


def _memory_only(data: list[SourceData]) -> tuple[str, ...]:
    seen = {name for source in data if source.kind != "memory" for name in source.fields}
    recalled = [name for source in data if source.kind == "memory" for name in source.fields]
    return tuple(sorted({name for name in recalled if name not in seen}))
