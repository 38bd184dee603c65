"""A network between hosts in one word: ``100GbE``, ``2x200GbE``, ``8xNDR``.

``--cluster dgx-a100:4@100GbE`` is four nodes of the catalogue behind another network than theirs. The word
says the ports of one host and their rate; the devices of the host share them.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meshwright.hardware import units
from meshwright.hardware.errors import CatalogueError

if TYPE_CHECKING:
    from meshwright.hardware.schema import ClusterData

PORT_GBIT: Final = {"EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0}
"""Of four lanes of InfiniBand's generations (InfiniBand Trade Association, roadmap)."""
FASTEST_GBIT: Final = 1600.0
"""Of a port of Ethernet (IEEE P802.3dj)."""
_WORD: Final = re.compile(r"(?:([1-9]\d?)x)?(?:([1-9]\d{0,3}(?:\.\d)?)gbe|(edr|hdr|ndr|xdr))", re.IGNORECASE)
_FABRICS: Final = {
    "ethernet": ("ethernet", 20.0, 0.9, "the catalogue's gcp-a2"),
    "infiniband": ("fat-tree", 8.0, 0.96, "the catalogue's dgx-2"),
}
"""By name: topology, microseconds of a hop, share of the rate that is reached, whose figures these are."""


@dataclass(frozen=True)
class Network:
    """Ports of one host, the rate of each, ``ethernet`` or ``infiniband``, and the word for it all."""

    ports: int
    gbit_per_s: float
    name: str
    word: str


def split_network(text: str, files: tuple[str, ...]) -> tuple[str, str | None]:
    """Return a cluster's text without its network, and the network's word, None without one.

    An ``@`` in a path, whose end is one of ``files``, tells none.
    """
    rest, at, word = text.rpartition("@")
    return (rest, word) if at and "/" not in word and not word.endswith(files) else (text, None)


def read_network(word: str) -> Network:
    """Return the network that a word tells.

    Raises
    ------
    CatalogueError
        If it tells none.
    """
    found = _WORD.fullmatch(word.strip())
    if found is None or float(found[2] or 0) > FASTEST_GBIT:
        allowed = (
            f"up to 99 ports of a host and their rate: 100GbE (up to {FASTEST_GBIT:.0f}GbE), 2x200GbE, 8xNDR "
            "(EDR, HDR, NDR, XDR)"
        )
        raise CatalogueError("cluster", "network", word, allowed, "dgx-a100:4@100GbE")
    ports, rate = int(found[1] or 1), found[2]
    port = f"{rate}GbE" if rate else found[3].upper()
    gbit = float(rate) if rate else PORT_GBIT[port]
    return Network(
        ports, gbit, "ethernet" if rate else "infiniband", f"{ports}x{port}" if ports > 1 else port
    )


def with_network(data: "ClusterData", network: Network) -> "ClusterData":
    """Return a node, rack or pod whose hosts are joined by a network."""
    from meshwright.hardware.schema import SourceData, TierData

    kind, latency_us, efficiency, whose = _FABRICS[network.name]
    together = units.gbit_per_s_to_bytes_per_s(network.ports * network.gbit_per_s)
    tier = TierData(
        name=network.name,
        kind=kind,  # type: ignore[arg-type]  # a topology of the table above
        bandwidth_gb_per_s=units.bytes_per_s_to_gb_per_s(together) / data.devices_per_host,
        latency_us=latency_us,
        efficiency=efficiency,
        devices_per_nic=data.devices_per_host / network.ports,
    )
    told = SourceData(
        fields=["scale_out"],
        title=f"{network.word} of each host as given; latency and efficiency are those of {whose}",
        reference="the cluster's name",
        kind="user",
    )
    kept = ([f for f in source.fields if not f.startswith("scale_out")] for source in data.sources)
    others = [
        source.model_copy(update={"fields": fields})
        for source, fields in zip(data.sources, kept, strict=True)
        if fields
    ]
    return data.model_copy(update={"scale_out": [tier], "sources": [*others, told]})
