"""What machines are: accelerators, links, tiers and clusters as frozen data.

Everything is SI (see :mod:`meshwright.hardware.units`). Bandwidths are one way and per device; peak
rates are dense. Nothing here reads files: :mod:`meshwright.hardware.catalogue` builds these objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

SourceKind = Literal["text-seen", "memory", "user"]
LinkTopology = Literal["switch", "mesh", "ring", "torus", "line", "pcie", "host"]
TierKind = Literal["switch", "mesh", "ring", "torus", "line", "pcie", "host", "fat-tree", "rail", "ethernet"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a group of numbers comes from; ``kind`` says whether a text backs it or recollection."""

    fields: tuple[str, ...]
    title: str
    reference: str
    kind: SourceKind


@dataclass(frozen=True, slots=True)
class Link:
    """A link of one device: one-way bandwidth, latency, and how several devices are joined by it.

    Attributes
    ----------
    bandwidth_bytes_per_s
        One way, all links of this kind of one device together.
    latency_s
        One hop, end to end in software.
    efficiency
        Fraction of the wire rate that large collectives reach.
    topology
        How a box joins its devices by this link: behind a ``switch``, in a full ``mesh``, a ``ring``, over
        ``pcie`` peer to peer, or staged through the memory of the ``host``.
    pair_bandwidth_bytes_per_s
        For a mesh: what one pair of devices has. ``None`` behind a switch.
    max_devices
        How many devices the link joins at most (2 for an NVLink bridge, 8 for an HGX board).
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    topology: LinkTopology = "switch"
    pair_bandwidth_bytes_per_s: float | None = None
    max_devices: int | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """A price for one device-hour, with where and when it was seen."""

    usd_per_device_hour: float
    provider: str
    kind: str
    date: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Support:
    """What an accelerator can be used for; ``solve`` refuses by name what is lacking here."""

    training: bool = True
    inference: bool = True
    parallelisms: frozenset[str] = frozenset({"dp", "tp", "pp", "cp", "ep", "zero"})
    dtypes: frozenset[str] = frozenset({"fp32", "bf16"})
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Achieved:
    """Fractions of the nominal rates that sustained training reaches, and fixed costs.

    Attributes
    ----------
    gemm_fraction
        Large, sustained, random-data GEMM over the dense peak.
    memory_fraction
        Streaming kernels over the nominal memory bandwidth.
    kernel_launch_s
        Back-to-back launch gap of one kernel.
    context_bytes
        Driver context and runtime workspace taken from the usable memory.
    low_gemm_fractions
        As ``gemm_fraction``, of the 8- or 4-bit peaks where they differ, by dtype.
    gemm_fill_k
        Inner length that filling and draining a GEMM tile's pipeline costs, where it was measured.
    attention_shares
        By attention kernel, where they were measured: shares of the dense peak (``forward``, ``backward``,
        ``half_length``, ``narrow``; :mod:`meshwright.costmodels.attention_kernels`).
    """

    gemm_fraction: float
    memory_fraction: float
    kernel_launch_s: float
    context_bytes: float
    low_gemm_fractions: Mapping[str, float] = field(default_factory=dict)
    gemm_fill_k: float | None = None
    attention_shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Accelerator:
    """One device as the framework sees it (a GPU, a GCD, a TPU chip, a CPU socket).

    Attributes
    ----------
    memory_bytes
        Usable memory: what the driver reports, less what it keeps itself; the nominal size where
        ``memory_is_nominal``.
    peak_flops_per_s
        Dense peak per dtype: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4`` where they exist.
    num_cores
        SMs, CUs or matrix units: what a GEMM's tiles are dealt to.
    on_package_link
        The scale-up link (NVLink, Infinity Fabric, ICI ...) if there is one.
    host_link
        The way to host memory (PCIe, C2C).
    device
        What one entry is: a GPU, one of two GCDs of a card, a chip.
    architecture
        The vendor's name of its generation (``ampere``, ``hopper``, ``cdna3``), a refinement behind a dash;
        it tells which attention kernels run on it.
    """

    name: str
    title: str
    vendor: str
    kind: Literal["gpu", "tpu", "npu", "wafer", "cpu"]
    year: int
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    num_cores: int
    on_package_link: Link | None
    host_link: Link | None
    power_w: float | None
    list_price_usd: float | None
    prices: tuple[Price, ...]
    support: Support
    achieved: Achieved
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    memory_only_fields: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    device: str = "device"
    architecture: str = ""
    memory_is_nominal: bool = False

    @property
    def usd_per_hour(self) -> float | None:
        """The typical (first listed, on-demand) price of one device-hour."""
        return self.prices[0].usd_per_device_hour if self.prices else None


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the topology: ``fan_out`` blocks of the tier below joined by one kind of link.

    Attributes
    ----------
    bandwidth_bytes_per_s
        One way, per device, after sharing of NICs: what each device gets when all send at once
        through this tier, before oversubscription.
    latency_s
        One hop, end to end in software (not the switch's port latency).
    efficiency
        Fraction of the wire rate that large collectives reach on this tier (measured).
    oversubscription
        Bandwidth below over bandwidth above the switches; 1 is non-blocking.
    kind
        ``ring`` and ``torus`` axes wrap around and count both directions in the bandwidth; a ``line`` is
        an axis that does not wrap and has one direction.
    pair_bandwidth_bytes_per_s
        For full meshes without a switch: what one pair of devices has. ``None`` behind a switch.
    devices_per_nic
        How many devices share one NIC (1 or less: each has its own). Already inside the bandwidth.
    congestion_per_doubling
        Bandwidth lost, as a share of what is left, for each doubling of the blocks that a group joins
        beyond four: large rings meet more shared links and slower members.
    """

    name: str
    kind: TierKind
    fan_out: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    oversubscription: float = 1.0
    pair_bandwidth_bytes_per_s: float | None = None
    devices_per_nic: float = 1.0
    congestion_per_doubling: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Equal devices on a tree of tiers, innermost first.

    ``nvme_bytes_per_s`` is what the drives of one host read or write together, ``nvme_bytes`` what they hold;
    None where a host's drives are not known.
    """

    name: str
    accelerator: Accelerator
    tiers: tuple[Tier, ...]
    devices_per_host: int
    host_memory_bytes: float | None = None
    nvme_bytes_per_s: float | None = None
    nvme_bytes: float | None = None
    usd_per_device_hour: float | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = field(default=(), repr=False)
    title: str = ""
    prices: tuple[Price, ...] = field(default=(), repr=False)
    aliases: tuple[str, ...] = ()

    @cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """Devices inside one block of each tier, innermost first: cumulative product of fan-outs."""
        return tuple(prod(t.fan_out for t in self.tiers[: i + 1]) for i in range(len(self.tiers)))

    @property
    def num_devices(self) -> int:
        """All devices of the cluster."""
        return self.block_sizes[-1] if self.tiers else 1

    @property
    def num_hosts(self) -> int:
        """Hosts (launch units); a rack-scale NVLink domain spans several."""
        return -(-self.num_devices // self.devices_per_host)
