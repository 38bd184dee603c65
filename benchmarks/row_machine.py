"""Where the accelerator of a published run stands in the catalogue, whatever its author calls it.

Names of the built-in rows are in a table. Others are looked for among the names and aliases of the catalogue
and of ``data/accelerators`` by their letters and digits alone (``NVIDIA H800-SXM5-80GB`` is ``h800-sxm5``),
with the catalogue's own node of that accelerator; cards called PCIe of a part that the catalogue has with
NVLink are bare ones on hosts.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from meshwright.hardware.catalogue import (
    accelerator_names,
    aliases,
    cluster_names,
    load_accelerator,
    load_cluster,
)
from meshwright.hardware.files import parse_yaml
from meshwright.hardware.units import bytes_to_gib

EXTRA_ACCELERATORS: Final = Path(__file__).parent / "data" / "accelerators"


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
    bridged
        Whether bare devices have the links that their accelerator may have.
    assumption
        What is not as printed.
    """

    node: str | None = None
    accelerator: str | None = None
    slices: bool = False
    bridged: bool = True
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
    r"\b(nvidia|amd|intel|habana|google|amazon|aws|cloud|geforce|tesla|instinct|gpus?|\d+x(?=\s))\b"
)
_CLOUDS: Final = ("aws", "gcp", "azure", "oci")
_SHORTEST: Final = 2
"""Letters and digits that a name must share (``L4``, ``T4``)."""

_BOARD: Final = 8
"""Devices that links on a package join where nodes are built of them; bridges join two or four cards."""
_SAME_MEMORY: Final = 0.15
"""Sizes of one memory differ by less: GB for GiB, and what the device keeps for itself."""


@lru_cache(maxsize=256)
def find_machine(name: str) -> Machine | None:
    """Return the machine of an accelerator's name, None if nothing is like it."""
    if name in MACHINES:
        return MACHINES[name]
    accelerator = _catalogued(name)
    if accelerator is None:
        return None
    accelerator = _of_memory(accelerator, name)
    told = f"{name}: taken as the catalogue's {accelerator.removesuffix('.yaml')}"
    if accelerator.endswith(".yaml"):
        return Machine(None, accelerator, assumption=told)
    node, link = _node_of(accelerator), load_accelerator(accelerator).on_package_link
    fits_node = link is not None and (link.max_devices or 0) >= _BOARD
    if fits_node and "pcie" in name.lower():
        return Machine(None, accelerator, bridged=False, assumption=f"{told}, cards without NVLink")
    if node is None and fits_node:
        node = next(filter(None, map(_node_of, _line(accelerator))), None)
        return Machine(node, accelerator, assumption=told)
    return Machine(node, None if node else accelerator, slices=accelerator.startswith("tpu"), assumption=told)


def _catalogued(name: str) -> str | None:
    """Return the accelerator whose name begins the given one, the longest; else one that the given begins."""
    said, ends = _letters(name), _word_ends(name)
    known = _known()
    begins = [k for k in known if len(k) >= _SHORTEST and _same_part(said, k, ends)]
    if begins:
        return known[max(begins, key=len)]
    longer = [k for k in known if len(said) > _SHORTEST and _same_part(k, said, ())]
    return known[min(longer, key=len)] if longer else None


def _line(accelerator: str) -> list[str]:
    """Return the catalogue's parts whose names begin with the same word."""
    return [n for n in accelerator_names() if n.split("-")[0] == accelerator.split("-")[0]]


def _of_memory(accelerator: str, name: str) -> str:
    """Return the part of the same line whose memory is nearest what a name states (``V100-PCIe-16GB``)."""
    said = re.search(r"([1-9]\d*) ?gi?b\b", name.lower())
    if said is None or accelerator.endswith(".yaml"):
        return accelerator
    line = _line(accelerator)
    off = {n: abs(bytes_to_gib(load_accelerator(n).memory_bytes) / int(said.group(1)) - 1) for n in line}
    best = min(off, key=lambda n: off[n])
    return best if off[best] < off[accelerator] - _SAME_MEMORY else accelerator


@lru_cache(maxsize=1)
def _known() -> dict[str, str]:
    """Return accelerators by the letters and digits of their names and aliases."""
    known = {_letters(n): n for n in accelerator_names()}
    known |= {_letters(alias): n for alias, n in aliases("accelerators").items()}
    for file in sorted(EXTRA_ACCELERATORS.glob("*.yaml")):
        line = next(t for t in file.read_text(encoding="utf-8").splitlines() if t.startswith("aliases:"))
        for own in (file.stem, *parse_yaml(line, str(file))["aliases"]):
            known.setdefault(_letters(own), file.name)
    return known


def _same_part(longer: str, shorter: str, ends: tuple[int, ...]) -> bool:
    """Return whether what follows a name inside a longer one is no number that makes it another part.

    ``ends`` are where words of the longer one end. Inside a word an ``L40`` is no ``L4`` and a ``Trainium3``
    no ``Trainium``, but an ``H100 SXM5`` is an ``H100 SXM``.
    """
    if not longer.startswith(shorter):
        return False
    number = longer[len(shorter) :][:1].isdigit() and (shorter[-1].isdigit() or shorter.isalpha())
    return len(shorter) in ends or not number


def _words(name: str) -> list[str]:
    plain = re.sub(r"\btpu[ -]?v?(?=\d)", "tpu-v", _VENDORS.sub("", name.lower()))
    return re.findall(r"[a-z0-9]+", plain)


def _word_ends(name: str) -> tuple[int, ...]:
    words = _words(name)
    return tuple(len("".join(words[:n])) for n in range(1, len(words) + 1))


def _letters(name: str) -> str:
    return "".join(_words(name))


def _node_of(accelerator: str) -> str | None:
    """Return a node of an accelerator: one that no cloud names, the one of most devices."""
    nodes = {n: load_cluster(n) for n in cluster_names()}
    own = {n: c.num_devices for n, c in nodes.items() if c.accelerator.name == accelerator}
    return min(own, key=lambda n: (n.startswith(_CLOUDS), -own[n], n), default=None)
