"""A cluster as a networkx graph, and the bandwidth of a group of ranks read from its cuts.

The graph knows nothing of the closed forms in :mod:`meshwright.hardware.span`: it has devices, NICs,
switches and links with capacities in bytes a second, one way. It serves to look at a cluster, to ask for one
concrete group of ranks, and as an independent referee of the closed forms.

Nodes are ``("leaf", i)`` (a device, or a block of them in a big cluster), ``("nic", tier, i)``,
``("uplink", tier, i)`` (what a block below shares) and ``("switch", tier, i)``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Cluster, Tier

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.Graph[Any]

MAX_LEAVES: Final = 512
AXES: Final = frozenset({"ring", "torus", "line"})


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """What one concrete group of ranks gets.

    Attributes
    ----------
    tier
        Index of the outermost tier that the group spans; -1 for a group of one.
    tier_name
        Its name; ``"device"`` for a group of one.
    members_per_nic
        The most members of the group that share one NIC of that tier.
    bandwidth_bytes_per_s
        One way, for each device, through that tier while all devices of the blocks send; infinite for a
        group of one.
    """

    tier: int
    tier_name: str
    members_per_nic: int
    bandwidth_bytes_per_s: float


def cluster_graph(cluster: Cluster, max_leaves: int = MAX_LEAVES) -> "Graph":
    """Return the links of a cluster as a graph whose edges carry ``capacity`` (bytes/s) and ``tier``.

    Up to ``max_leaves`` devices every device is a leaf. A bigger cluster is aggregated: the leaves are
    equal blocks of the innermost tier that leaves few enough of them; the graph attribute
    ``leaf_devices`` says how many devices a leaf has, ``leaf_tier`` which tier's block it is (-1: a device).

    Raises
    ------
    MeshwrightError
        If even the blocks of the second tier from outside are more than ``max_leaves``.
    """
    import networkx as nx

    leaf_tier, leaf_devices = _leaf_level(cluster, max_leaves)
    graph: Graph = nx.Graph(name=cluster.name, leaf_tier=leaf_tier, leaf_devices=leaf_devices)
    leaves = cluster.num_devices // leaf_devices
    graph.add_nodes_from((("leaf", i) for i in range(leaves)), kind="leaf", devices=leaf_devices)
    for k in range(leaf_tier + 1, len(cluster.tiers)):
        _add_tier(graph, cluster, k, leaf_devices, leaves)
    return graph


def group_route(cluster: Cluster, ranks: Sequence[int]) -> GroupRoute:
    """Return the tier that a group of ranks spans and each device's bandwidth through it, from the graph.

    Behind switches it is the smallest cut between one block's devices and the other blocks that the group
    touches, shared by all devices of the block since their groups send too; on a full mesh the flow that the
    links between members alone carry; on a torus axis the cut of the axis between the two halves of the
    group, shared by the groups interleaved with it. Only the block that holds the group is drawn.

    Raises
    ------
    MeshwrightError
        If the ranks are not distinct devices of the cluster.
    """
    members = sorted(set(ranks))
    if not members or len(members) != len(ranks) or members[0] < 0 or members[-1] >= cluster.num_devices:
        raise MeshwrightError(
            f"ranks: {list(ranks)[:8]} must be distinct, from 0 to {cluster.num_devices - 1}, and not empty"
        )
    if len(members) == 1:
        return GroupRoute(-1, "device", 1, float("inf"))
    k = next(t for t, block in enumerate(cluster.block_sizes) if members[0] // block == members[-1] // block)
    tier, below = cluster.tiers[k], _below(cluster, k)
    nics = Counter(rank // max(1, int(tier.devices_per_nic)) for rank in members)
    whole = replace(cluster, tiers=cluster.tiers[: k + 1])
    graph = cluster_graph(whole, max(MAX_LEAVES, tier.fan_out))
    leaf_devices = graph.graph["leaf_devices"]
    blocks = _by_block([rank % whole.num_devices for rank in members], below)
    measure = _axis_cut if tier.kind in AXES else _mesh_flow if tier.kind == "mesh" else _switch_cut
    links = _tier_only(graph, k)
    rate = min(measure(links, whole, k, blocks, block, leaf_devices) for block in _unlike(blocks))
    return GroupRoute(k, tier.name, max(nics.values()), rate)


def _unlike(blocks: dict[int, list[int]]) -> list[int]:
    """Return one block for each count of members: the blocks of a tier are equal in all else."""
    return list({len(members): block for block, members in blocks.items()}.values())


def _below(cluster: Cluster, k: int) -> int:
    """Return the devices in one sub-block that tier ``k`` joins."""
    return cluster.block_sizes[k - 1] if k else 1


def _leaf_level(cluster: Cluster, max_leaves: int) -> tuple[int, int]:
    sizes = (1, *cluster.block_sizes[:-1])
    for tier, devices in enumerate(sizes, start=-1):
        if cluster.num_devices // devices <= max_leaves:
            return tier, devices
    blocks = cluster.num_devices // sizes[-1]
    raise MeshwrightError(
        f"max_leaves: {max_leaves} is below the {blocks} blocks of {cluster.name}; raise it"
    )


def _add_tier(graph: "Graph", cluster: Cluster, k: int, leaf_devices: int, leaves: int) -> None:
    """Add the links of one tier between the leaves, directly or through NICs, uplinks and a switch."""
    tier, below = cluster.tiers[k], _below(cluster, k)
    step, span = below // leaf_devices, cluster.block_sizes[k] // leaf_devices
    if tier.kind != "mesh" and tier.kind not in AXES:
        for leaf in range(leaves):
            _add_switched_leaf(graph, tier, k, leaf, leaf // step, leaf // span, leaf_devices)
        for block in range(leaves // step):
            capacity = below * tier.bandwidth_bytes_per_s * tier.efficiency / tier.oversubscription
            graph.add_edge(
                ("uplink", k, block), ("switch", k, block * step // span), capacity=capacity, tier=k
            )
        return
    for start in (b * span + offset for b in range(leaves // span) for offset in range(step)):
        row = [start + i * step for i in range(tier.fan_out)]
        for a, b, capacity in _direct_links(tier, row, leaf_devices):
            graph.add_edge(("leaf", a), ("leaf", b), capacity=capacity, tier=k)


def _add_switched_leaf(
    graph: "Graph", tier: Tier, k: int, leaf: int, block: int, parent: int, leaf_devices: int
) -> None:
    """Join a leaf to its block's uplink, through the NIC that it may share with its neighbours."""
    rate = tier.bandwidth_bytes_per_s * tier.efficiency
    graph.add_node(("switch", k, parent), kind="switch", name=tier.name)
    graph.add_node(("uplink", k, block), kind="uplink", name=tier.name)
    sharing = max(1, int(tier.devices_per_nic)) if leaf_devices == 1 else 1
    nic, capacity = ("nic", k, leaf // sharing), rate * sharing * leaf_devices
    graph.add_node(nic, kind="nic", name=tier.name)
    graph.add_edge(("leaf", leaf), nic, capacity=capacity, tier=k)
    graph.add_edge(nic, ("uplink", k, block), capacity=capacity, tier=k)


def _direct_links(tier: Tier, row: list[int], leaf_devices: int) -> list[tuple[int, int, float]]:
    """Return the links of a full mesh or of an axis among the leaves of one row."""
    scale = leaf_devices * tier.efficiency / tier.oversubscription
    if tier.kind == "mesh":
        pair = tier.pair_bandwidth_bytes_per_s or tier.bandwidth_bytes_per_s
        return [(a, b, pair * scale) for a, b in combinations(row, 2)]
    one_way = tier.bandwidth_bytes_per_s * scale / (1 if tier.kind == "line" else 2)
    links = [(a, b, one_way) for a, b in pairwise(row)]
    if tier.kind != "line" and len(row) > 2:
        return [*links, (row[-1], row[0], one_way)]
    return [(a, b, capacity * (1 if tier.kind == "line" else 2)) for a, b, capacity in links]


def _by_block(members: list[int], below: int) -> dict[int, list[int]]:
    blocks: dict[int, list[int]] = {}
    for rank in members:
        blocks.setdefault(rank // below, []).append(rank)
    return blocks


def _tier_only(graph: "Graph", k: int) -> "Graph":
    edges: list[tuple[Any, Any, int]] = list(graph.edges(data="tier"))
    return graph.edge_subgraph([(a, b) for a, b, tier in edges if tier == k])


def _flow(graph: "Graph", sources: list[Any], sinks: list[Any]) -> float:
    """Return the largest flow from all sources together to all sinks together, in bytes/s."""
    import networkx as nx

    wired: Graph = nx.Graph(graph)
    wired.add_edges_from(("source", node) for node in sources)  # no capacity: unlimited
    wired.add_edges_from((node, "sink") for node in sinks)
    return float(nx.maximum_flow_value(wired, "source", "sink"))


def _switch_cut(
    graph: "Graph", cluster: Cluster, k: int, blocks: dict[int, list[int]], block: int, leaf_devices: int
) -> float:
    """Return the cut between a block and the others the group touches, for each device of the block."""
    below = _below(cluster, k)

    def leaves(index: int) -> list[Any]:
        """Return the leaves of a block."""
        return [
            ("leaf", i) for i in range(index * below // leaf_devices, (index + 1) * below // leaf_devices)
        ]

    others = [leaf for other in blocks if other != block for leaf in leaves(other)]
    return _flow(graph, leaves(block), others) / below


def _mesh_flow(
    graph: "Graph", cluster: Cluster, k: int, blocks: dict[int, list[int]], block: int, leaf_devices: int
) -> float:
    """Return what one member's links to its counterparts in the other sub-blocks carry."""
    below, tier = _below(cluster, k), cluster.tiers[k]
    mine = blocks[block][0] // leaf_devices
    step = below // leaf_devices
    peers = [("leaf", mine + (other - block) * step) for other in blocks if other != block]
    capacity = sum(graph.edges[("leaf", mine), peer]["capacity"] for peer in peers) / leaf_devices
    return min(float(capacity), tier.bandwidth_bytes_per_s * tier.efficiency / tier.oversubscription)


def _axis_cut(
    graph: "Graph", cluster: Cluster, k: int, blocks: dict[int, list[int]], block: int, leaf_devices: int
) -> float:
    """Return the cut of the axis between the halves of the group, shared by the interleaved groups."""
    tier, step = cluster.tiers[k], _below(cluster, k) // leaf_devices
    places = sorted(blocks)
    spacing = 0
    for a, b in pairwise(places):
        spacing = gcd(spacing, b - a)
    first = blocks[block][0] // leaf_devices - (block - places[0]) * step
    whole = len(places) * spacing == tier.fan_out
    start = first - (places[0] % tier.fan_out) * step if whole else first
    reach = tier.fan_out if whole else places[-1] - places[0] + 1
    row = [("leaf", start + i * step) for i in range(reach)]
    halves = [("leaf", first + (place - places[0]) * step) for place in places]
    middle = len(halves) // 2
    flow = _flow(graph.subgraph(row), halves[:middle], halves[middle:])
    return flow / spacing / leaf_devices
