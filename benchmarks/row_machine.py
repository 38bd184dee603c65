"""Where the accelerator of a published run stands in the catalogue, whatever its author calls it.

Names of the built-in rows are in a table. Others are looked for among the catalogue's names and aliases by
their letters and digits alone (``NVIDIA H800-SXM5-80GB`` is ``h800-sxm5``), with the catalogue's own node of
that accelerator.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from meshwright.hardware.catalogue import accelerator_names, aliases, cluster_names, load_cluster


@dataclass(frozen=True, slots=True)
class Machine:
    """Where an accelerator of the rows stands in the catalogue.

    Attributes
    ----------
    node
        A node, rack or pod of the catalogue; None: bare devices on one host.
    accelerator
        An accelerator of the catalogue, or a file in ``data/accelerators``; None: the node's own.
    slices
        Whether runs take slices of a torus pod.
    assumption
        What is not as printed.
    """

    node: str | None = None
    accelerator: str | None = None
    slices: bool = False
    assumption: str | None = None


MACHINES: Final = {
    "a100-sxm-80gb": Machine("dgx-a100"),
    "a100-sxm-40gb": Machine("dgx-a100-40gb"),
    "a100-pcie-80gb": Machine(None, "a100-80gb-pcie"),
    "a800-sxm-80gb": Machine("hgx-a800"),
    "h100-sxm-80gb": Machine("dgx-h100"),
    "h100-sxm-96gb-hbm2e": Machine("hgx-h100-96gb"),
    "h200-sxm-141gb": Machine("dgx-h200"),
    "b200-sxm": Machine("dgx-b200"),
    "b300-sxm": Machine("dgx-b300"),
    "gb200": Machine("gb200-nvl72"),
    "gb300": Machine("gb300-nvl72"),
    "a10g-24gb": Machine("aws-g5-48"),
    "v100-sxm2-32gb": Machine("dgx-1-v100"),
    "v100-sxm2-16gb": Machine("dgx-1-v100", "v100-16gb"),
    "rtx3090": Machine(None, "rtx-3090"),
    "rtx4090": Machine("rtx-4090-8"),
    "gaudi2": Machine("gaudi2-8"),
    "mi300x": Machine("mi300x-8"),
    "titan-rtx-24gb": Machine(None, "titan-rtx.yaml"),
    "RTX-A5000-24GB": Machine(None, "rtx-a5000.yaml"),
    "RTX-6000-Ada-48GB": Machine(None, "rtx-6000-ada.yaml"),
    "tpu-v4": Machine("tpu-v4-pod", slices=True),
    "tpu-v5e": Machine("tpu-v5e-pod", slices=True),
    "tpu-v5p": Machine("tpu-v5p-pod", slices=True),
    "24GB class": Machine(None, "rtx-3090", assumption="a device of the 24 GB class: RTX 3090"),
    "64GB device (8 per node)": Machine("frontier", assumption="64 GB and 8 a node: MI250X GCDs"),
}
"""By the names that the built-in rows use."""

_VENDORS: Final = re.compile(
    r"nvidia|amd|intel|habana|google|amazon|aws|cloud|geforce|tesla|instinct|gpus?|\d+x "
)
_CLOUDS: Final = ("aws", "gcp", "azure", "oci")
_SHORTEST: Final = 2
"""Letters and digits that a name must share (``L4``, ``T4``)."""


@lru_cache(maxsize=256)
def find_machine(name: str) -> Machine | None:
    """Return the machine of an accelerator's name, None if the catalogue has nothing like it."""
    if name in MACHINES:
        return MACHINES[name]
    accelerator = _catalogued(name)
    if accelerator is None:
        return None
    node = _node_of(accelerator)
    told = f"{name}: taken as the catalogue's {accelerator}"
    return Machine(node, None if node else accelerator, slices=accelerator.startswith("tpu"), assumption=told)


def _catalogued(name: str) -> str | None:
    """Return the accelerator whose name begins the given one, the longest; else one that the given begins."""
    said = _letters(name)
    known = {_letters(n): n for n in accelerator_names()}
    known |= {_letters(alias): n for alias, n in aliases("accelerators").items()}
    begins = [k for k in known if said.startswith(k) and len(k) >= _SHORTEST]
    if begins:
        return known[max(begins, key=len)]
    longer = [k for k in known if k.startswith(said) and len(said) > _SHORTEST]
    return known[min(longer, key=len)] if longer else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _VENDORS.sub("", name.lower()))


def _node_of(accelerator: str) -> str | None:
    """Return a node of an accelerator: one that no cloud names, the one of most devices."""
    nodes = {n: load_cluster(n) for n in cluster_names()}
    own = {n: c.num_devices for n, c in nodes.items() if c.accelerator.name == accelerator}
    return min(own, key=lambda n: (n.startswith(_CLOUDS), -own[n], n), default=None)
