"""Host memory and drives as places for states and activations: links, bandwidths, and the optimizer.

Every device has its own way to the host (PCIe or C2C) and an equal share of the host's memory bandwidth,
which one socket of eight channels of DDR4-3200 gives at 8 x 25.6 GB/s (ZeRO-Offload, arXiv 2101.06840, runs
Adam at the host's memory bandwidth). Drives lie behind it (ZeRO-Infinity, arXiv 2104.07857): every device has
an equal share of their rate, reading and writing overlap the update and the host link, so that the slowest of
them is what takes time. Left out: a second socket, pinned buffers between drives and link, drives that
write more slowly than they read, and devices of one host without links of their own (PCIe), whose collectives
cross the same port as what is offloaded.
"""

from typing import Final

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, Num
from meshwright.hardware.spec import Cluster
from meshwright.hardware.units import gb_per_s_to_bytes_per_s

HOST_MEMORY_BYTES_PER_S: Final = gb_per_s_to_bytes_per_s(204.8)


def host_link_bytes_per_s(cluster: Cluster) -> float:
    """Return what one device moves to or from its host; infinite where no link is known."""
    link = cluster.accelerator.host_link
    return np.inf if link is None else link.bandwidth_bytes_per_s * link.efficiency


def host_memory_bytes_per_s(cluster: Cluster) -> float:
    """Return a device's share of its host's memory bandwidth.

    A link that is faster than a socket's whole memory joins a superchip, whose CPU has memory for it (Grace:
    512 GB/s for two devices of which each moves some 200).
    """
    link = cluster.accelerator.host_link
    if link is not None and link.bandwidth_bytes_per_s > HOST_MEMORY_BYTES_PER_S:
        return host_link_bytes_per_s(cluster)
    return HOST_MEMORY_BYTES_PER_S / cluster.devices_per_host


def activation_bytes_per_s(cluster: Cluster) -> float:
    """Return at what rate one device's activations go to its host or come back.

    All devices of a host move theirs at once, so that each has its link or its share of the host's memory
    bandwidth, whichever is less.
    """
    return min(host_link_bytes_per_s(cluster), host_memory_bytes_per_s(cluster))


def nvme_bytes_per_s(cluster: Cluster) -> float:
    """Return a device's share of what its host's drives read or write; infinite where it is not known."""
    whole = cluster.nvme_bytes_per_s
    return np.inf if whole is None else whole / cluster.devices_per_host


def nvme_share_bytes(cluster: Cluster) -> float:
    """Return a device's share of what its host's drives hold; infinite where it is not known."""
    whole = cluster.nvme_bytes
    return np.inf if whole is None else whole / cluster.devices_per_host


def home_bytes_per_s(cluster: Cluster, on_nvme: BoolArray) -> FloatArray:
    """Return what one device moves to or from the place of its offloaded states; broadcasts."""
    link = host_link_bytes_per_s(cluster)
    return np.where(on_nvme, min(link, nvme_bytes_per_s(cluster)), link)


def host_memory_share_bytes(cluster: Cluster) -> float:
    """Return a device's share of host memory; infinite where its size is not known."""
    whole = cluster.host_memory_bytes
    return np.inf if whole is None else whole / cluster.devices_per_host


def host_update_s(
    cluster: Cluster, touched_bytes: Num, moved_bytes: Num, on_nvme: BoolArray | bool = False
) -> FloatArray:
    """Return seconds of an optimizer step on the host.

    Parameters
    ----------
    touched_bytes
        Read and written by the optimizer for one device's share of the states; broadcasts.
    moved_bytes
        Weights up over the device's link, and gradients down that are not there yet; broadcasts.
    on_nvme
        Whether the states come from drives and go back to them meanwhile; broadcasts.
    """
    share = host_memory_bytes_per_s(cluster)
    update = touched_bytes / np.where(on_nvme, min(share, nvme_bytes_per_s(cluster)), share)
    return np.asarray(update + moved_bytes / host_link_bytes_per_s(cluster))
