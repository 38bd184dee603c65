"""What one concrete group of ranks gets of a cluster's links, read from the cluster's graph."""

from math import isfinite

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Accelerator, Cluster
from meshwright.hardware.topology import GroupRoute, group_route
from meshwright.hardware.units import bytes_per_s_to_gb_per_s

MOST_DIGITS = 9
"""Of a rank; no cluster has more, and a longer range would fill the memory before it is refused."""


def route_of(thing: Accelerator | Cluster, text: str) -> GroupRoute:
    """Return what the ranks in a text get.

    Raises
    ------
    MeshwrightError
        If the thing is no cluster, the text is no list of ranks, or they are no distinct devices of it.
    """
    if not isinstance(thing, Cluster):
        raise MeshwrightError(
            f"ranks: {thing.name} is one device; name a node or cluster, such as dgx-h100:4"
        )
    return group_route(thing, read_ranks(text, thing.num_devices))


def read_ranks(text: str, devices: int) -> list[int]:
    """Return the ranks in a text such as ``0,8,16``, ``0-7`` or ``0-56:8`` (every eighth)."""
    found: list[int] = []
    for item in text.split(","):
        span, _, step = item.strip().partition(":")
        first, dash, last = span.partition("-")
        numbers = (first, last if dash else first, step or "1")
        if not all(n.isdecimal() and len(n) <= MOST_DIGITS for n in numbers) or int(numbers[2]) < 1:
            raise MeshwrightError(
                f"ranks: {item.strip()!r} is no rank, FIRST-LAST or FIRST-LAST:STEP, for example 0-56:8"
            )
        start, stop, every = map(int, numbers)
        if not start <= stop < devices:
            raise MeshwrightError(
                f"ranks: {item.strip()!r} is not within 0-{devices - 1}, lowest first; "
                "a cluster of more nodes is named with their number, such as dgx-h100:8"
            )
        found += range(start, stop + 1, every)
        if len(found) > devices:  # before a text of many ranges fills the memory
            raise MeshwrightError(f"ranks: {item.strip()!r} makes more ranks than the {devices} devices")
    return found


def route_facts(route: GroupRoute) -> list[tuple[str, str]]:
    """Return a route as lines for people."""
    if not isfinite(route.bandwidth_bytes_per_s):
        return [("Joined by", "nothing: it is one device")]
    rate = bytes_per_s_to_gb_per_s(route.bandwidth_bytes_per_s)
    return [
        ("Joined by", f"tier {route.tier}, {route.tier_name}"),
        ("Each device has", f"{rate:,.2f} GB/s one way while all devices send"),
        ("Members on a NIC", str(route.members_per_nic)),
    ]
