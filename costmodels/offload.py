"""Host memory as a place for states and activations: the link, the host's own bandwidth, and the optimizer.

Every device has its own way to the host (PCIe or C2C) and an equal share of the host's memory bandwidth,
which one socket of eight channels of DDR4-3200 gives at 8 x 25.6 GB/s (ZeRO-Offload, arXiv 2101.06840, runs
Adam at the host's memory bandwidth). Left out: a second socket, and NVMe behind the host.
"""

from typing import Final

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num
from meshwright.hardware.spec import Cluster
from meshwright.hardware.units import gb_per_s_to_bytes_per_s

HOST_MEMORY_BYTES_PER_S: Final = gb_per_s_to_bytes_per_s(204.8)


def host_link_bytes_per_s(cluster: Cluster) -> float:
    """Return what one device moves to or from its host; infinite where no link is known."""
    link = cluster.accelerator.host_link
    return np.inf if link is None else link.bandwidth_bytes_per_s * link.efficiency


def host_memory_share_bytes(cluster: Cluster) -> float:
    """Return a device's share of host memory; infinite where its size is not known."""
    whole = cluster.host_memory_bytes
    return np.inf if whole is None else whole / cluster.devices_per_host


def host_update_s(cluster: Cluster, touched_bytes: Num, moved_bytes: Num) -> FloatArray:
    """Return seconds of an optimizer step on the host.

    Parameters
    ----------
    touched_bytes
        Read and written by the optimizer for one device's share of the states; broadcasts.
    moved_bytes
        Gradients down and weights up over the device's link; broadcasts.
    """
    share = HOST_MEMORY_BYTES_PER_S / cluster.devices_per_host
    return np.asarray(touched_bytes / share + moved_bytes / host_link_bytes_per_s(cluster))
