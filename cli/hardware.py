"""``meshwright hardware``: the catalogue as a table, and one entry with its sources."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.errors import ExitCode, guarded
from meshwright.hardware import units
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Accelerator, Cluster, Link, Price, Tier

if TYPE_CHECKING:
    from rich.table import Table

Facts = list[tuple[str, str]]


@guarded
def hardware(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Accelerator, node such as dgx-h100:16, or YAML.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="What a group of a cluster's devices gets: 0,8,16 or 0-7 or 0-56:8.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """List accelerators, nodes and pods, or show one of them with its sources, or a group of its ranks."""
    if ranks is not None:
        show_group(name, ranks, as_json=as_json)
        return ExitCode.FOUND
    if as_json:
        from meshwright.cli.tables import write_json

        write_json(_listing() if name is None else _plain(_load(name)))
    elif name is None:
        list_table()
    else:
        show(name)
    return ExitCode.FOUND


def show_group(name: str | None, ranks: str, *, as_json: bool) -> None:
    """Print which links join a group of ranks, and what each device gets of them."""
    from meshwright.cli.ranks import route_facts, route_of
    from meshwright.cli.tables import facts, screen, write_json

    if name is None:
        raise MeshwrightError("ranks: name the cluster whose devices they are, such as dgx-h100:4")
    route = route_of(_load(name), ranks)
    if as_json:
        write_json(asdict(route))
    else:
        screen().print(facts(route_facts(route)))


def list_table() -> None:
    """Print the catalogue, a line an entry; TFLOP/s are dense bf16 (fp16 where there is no bf16)."""
    from meshwright.cli.tables import screen

    console = screen()
    console.print(_accelerator_table(), "", _cluster_table(), "", sep="\n")
    console.print("dgx-h100:16 is sixteen nodes, tpu-v5e-pod:4x8 a slice of a pod, a10g:2 two bare devices.")


def show(name: str) -> None:
    """Print one accelerator, node or cluster: numbers, notes, and where each number comes from."""
    from meshwright.cli.tables import bullets, facts, grid, plain, screen, section

    thing = _load(name)
    parts: list[Any] = [plain(f"{thing.name}: {thing.title}", "bold")]
    parts.append(facts(_cluster_facts(thing) if isinstance(thing, Cluster) else _accelerator_facts(thing)))
    if thing.notes:
        parts += section("Notes", bullets(thing.notes))
    if thing.sources:
        table = grid("What", "Kind", "From")
        for source in thing.sources:
            where = "" if source.reference == "memory" else f" <{source.reference}>"
            table.add_row(*map(plain, (", ".join(source.fields), source.kind, source.title + where)))
        parts += section("Sources", table)
    console = screen()
    for part in parts:
        console.print(part)


def _load(name: str) -> Accelerator | Cluster:
    """Return what a name means: an accelerator where one has this very name, else a cluster."""
    from meshwright.hardware.catalogue import accelerator_names, aliases, load_accelerator, load_cluster

    if name.strip().lower() in {*accelerator_names(), *aliases("accelerators")}:
        return load_accelerator(name)
    return load_cluster(name)


def _listing() -> dict[str, Any]:
    from meshwright.hardware.catalogue import accelerator_names, aliases, cluster_names

    return {
        "accelerators": list(accelerator_names()),
        "clusters": list(cluster_names()),
        "aliases": aliases("accelerators") | aliases("nodes"),
    }


def _plain(thing: Accelerator | Cluster) -> dict[str, Any]:
    """Return an entry as plain data, in SI units as in the library."""
    if isinstance(thing, Cluster):
        return {
            "entry": "cluster",
            **asdict(thing),
            "num_devices": thing.num_devices,
            "num_hosts": thing.num_hosts,
        }
    return {"entry": "accelerator", **asdict(thing)}


def _accelerator_table() -> "Table":
    from meshwright.cli.tables import grid
    from meshwright.hardware.catalogue import accelerator_names, load_accelerator

    headers = ("Accelerator", "GiB", "GB/s", "TFLOP/s", "Link GB/s", "$/h", "For")
    table = grid(*headers, right=range(1, 6))
    table.columns[0].no_wrap = True
    for name in accelerator_names():
        chip = load_accelerator(name)
        half = chip.peak_flops_per_s.get("bf16") or chip.peak_flops_per_s["fp16"]
        table.add_row(
            name,
            f"{units.bytes_to_gib(chip.memory_bytes):.1f}",
            _gb_per_s(chip.memory_bandwidth_bytes_per_s),
            f"{units.flops_per_s_to_tflops(half):,.1f}",
            _gb_per_s(chip.on_package_link.bandwidth_bytes_per_s) if chip.on_package_link else "-",
            _money(chip.usd_per_hour),
            "training" if chip.support.training else "inference",
        )
    return table


def _cluster_table() -> "Table":
    from meshwright.cli.tables import grid
    from meshwright.hardware.catalogue import cluster_names, load_cluster

    table = grid("Node, rack, pod", "Accelerator", "Devices", "$/device-h", "Inside it", right=(2, 3))
    table.columns[0].no_wrap = True
    for name in cluster_names():
        cluster = load_cluster(name)
        tiers = ", ".join(f"{t.name} {_gb_per_s(t.bandwidth_bytes_per_s)}" for t in cluster.tiers)
        usd = _money(cluster.usd_per_device_hour)
        table.add_row(name, cluster.accelerator.name, f"{cluster.num_devices:,}", usd, tiers)
    return table


def _accelerator_facts(chip: Accelerator) -> Facts:
    peaks = ", ".join(f"{k} {units.flops_per_s_to_tflops(v):,.1f}" for k, v in chip.peak_flops_per_s.items())
    nominal = " (nominal, not measured)" if chip.memory_is_nominal else ""
    uses = [use for use in ("training", "inference") if getattr(chip.support, use)]
    return [
        ("Aliases", _words(chip.aliases)),
        ("Vendor, year", f"{chip.vendor}, {chip.year}"),
        ("One device is", chip.device),
        ("Usable memory", f"{units.bytes_to_gib(chip.memory_bytes):.2f} GiB{nominal}"),
        ("Memory bandwidth", f"{_gb_per_s(chip.memory_bandwidth_bytes_per_s)} GB/s"),
        ("Dense peak TFLOP/s", peaks),
        ("Cores", f"{chip.num_cores:,}"),
        ("On-package link", _link(chip.on_package_link)),
        ("Host link", _link(chip.host_link)),
        ("Power", "-" if chip.power_w is None else f"{chip.power_w:,.0f} W"),
        ("List price", "-" if chip.list_price_usd is None else f"${chip.list_price_usd:,.0f}"),
        ("Prices seen", _prices(chip.prices)),
        ("For", _words(uses)),
        ("Parallelisms", _words(sorted(chip.support.parallelisms))),
        ("Dtypes", _words(sorted(chip.support.dtypes))),
        ("Targets", _words(sorted(chip.support.targets))),
        ("Achieves", _achieved(chip)),
        ("Recollection only", _words(chip.memory_only_fields)),
    ]


def _drives(cluster: Cluster) -> str:
    """Say what the drives of a host move and hold."""
    rate, size = cluster.nvme_bytes_per_s, cluster.nvme_bytes
    if rate is None:
        return "-"
    holds = "" if size is None else f", {size / units.TB:,.4g} TB"
    return f"{units.bytes_per_s_to_gb_per_s(rate):,.4g} GB/s{holds} a host"


def _cluster_facts(cluster: Cluster) -> Facts:
    host, usd = cluster.host_memory_bytes, cluster.usd_per_device_hour
    whole = "" if usd is None else f" a device-hour, ${usd * cluster.num_devices:,.2f} an hour"
    return [
        ("Aliases", _words(cluster.aliases)),
        ("Accelerator", f"{cluster.accelerator.name} ({cluster.accelerator.title})"),
        ("Devices, hosts", f"{cluster.num_devices:,} on {cluster.num_hosts:,}"),
        *((f"Tier {k}", _tier(tier)) for k, tier in enumerate(cluster.tiers)),
        ("Host memory", "-" if host is None else f"{units.bytes_to_gib(host):,.0f} GiB a host"),
        ("NVMe drives", _drives(cluster)),
        ("Price", _money(usd, "$") + whole),
        ("Prices seen", _prices(cluster.prices or cluster.accelerator.prices)),
    ]


def _words(names: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(names) or "-"


def _money(usd: float | None, sign: str = "") -> str:
    return "-" if usd is None else f"{sign}{usd:.2f}"


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{units.bytes_per_s_to_gb_per_s(bytes_per_s):,.2f}".rstrip("0").rstrip(".")


def _us(seconds: float) -> str:
    return f"{seconds / units.MICROSECOND:.1f} us"


def _achieved(chip: Accelerator) -> str:
    achieved = chip.achieved
    return (
        f"GEMM {achieved.gemm_fraction:.2f}, memory {achieved.memory_fraction:.2f} of nominal; launch "
        f"{_us(achieved.kernel_launch_s)}; context {units.bytes_to_gib(achieved.context_bytes):.1f} GiB"
    )


def _link(link: Link | None) -> str:
    if link is None:
        return "-"
    rate = f"{_gb_per_s(link.bandwidth_bytes_per_s)} GB/s one way"
    return f"{link.name}, {rate}, {link.topology}, {_us(link.latency_s)}, achieves {link.efficiency:.2f}"


def _tier(tier: Tier) -> str:
    """Return one tier as a line; what is not there (oversubscription, shared NICs) is not said."""
    pair = tier.pair_bandwidth_bytes_per_s if tier.kind == "mesh" else None
    parts = [
        f"{tier.name} ({tier.kind}) joins {tier.fan_out:,}",
        f"{_gb_per_s(tier.bandwidth_bytes_per_s)} GB/s a device",
        "" if pair is None else f"{_gb_per_s(pair)} GB/s a pair",
        _us(tier.latency_s),
        f"achieves {tier.efficiency:.2f}",
        f"oversubscribed {tier.oversubscription:g}:1" if tier.oversubscription > 1 else "",
        f"{tier.devices_per_nic:g} devices a NIC" if tier.devices_per_nic > 1 else "",
    ]
    return ", ".join(filter(None, parts))


def _named(price: Price) -> str:
    return f"{price.provider} {price.instance}".strip()


def _prices(prices: tuple[Price, ...]) -> str:
    """Return one price a line, each with provider and date."""
    lines = (f"{_money(p.usd_per_device_hour, '$')} {_named(p)}, {p.kind} [{p.date}]" for p in prices)
    return "\n".join(lines) or "-"
