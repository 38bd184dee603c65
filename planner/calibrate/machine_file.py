"""The files of a measured machine: a cluster in YAML, a software profile in TOML, the samples behind them.

``solve --cluster mine.yaml --profile mine.profile.toml`` takes the first two; ``mine.samples.jsonl`` is what
a later run is merged with. What cannot be measured (prices, power) is left open.
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from meshwright.hardware.build import accelerator_from_data, cluster_from_data
from meshwright.hardware.catalogue import accelerator_names, load_accelerator
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.schema import AcceleratorData, ClusterData, Name
from meshwright.hardware.spec import Cluster
from meshwright.hardware.units import (
    bytes_per_s_to_gb_per_s,
    bytes_to_gib,
    flops_per_s_to_tflops,
    s_to_us,
)
from meshwright.planner.calibrate.device_fits import KERNEL
from meshwright.planner.calibrate.fits import Constants
from meshwright.planner.calibrate.group_fits import TIERS
from meshwright.planner.calibrate.host_fits import STACK
from meshwright.planner.calibrate.machine import Machine
from meshwright.planner.calibrate.profile_file import digits, profile_text

MEASURED: Final = "measured"
"""Refinement of an architecture: constants fitted to runs on it do not count twice."""


def paths(output: Path) -> tuple[Path, Path, Path]:
    """Return the paths of cluster, profile and samples.

    Raises
    ------
    MeshwrightError
        If the output does not end in ``.yaml``.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise MeshwrightError(f"output: {output} is no YAML file; give a name such as mine.yaml")
    return output, output.with_suffix(".profile.toml"), output.with_suffix(".samples.jsonl")


def check_name(name: str) -> None:
    """Refuse before the measurement a name that no cluster may have.

    Raises
    ------
    MeshwrightError
        Saying what is allowed.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise MeshwrightError(
            f"name: {name!r} is no cluster's name; allowed: up to 64 lower-case letters, digits, dots, "
            "dashes and underscores, a letter or digit first; try my-node"
        ) from None


def cluster_data(machine: Machine, found: Constants, day: date) -> dict[str, Any]:
    """Return the cluster file's content."""
    unit, *rest = _tiers(machine, found)
    return {
        "name": machine.name,
        "title": f"{machine.title}, measured {day.isoformat()}",
        "accelerator": _accelerator(machine, found, day),
        "count": machine.across,
        "devices_per_host": machine.inside,
        "host_memory_gib": digits(bytes_to_gib(machine.host_memory_bytes)),
        "tiers": [unit],
        "scale_out": rest,
        "notes": [f"written by meshwright calibrate with {machine.software}"],
        "sources": [_source(["tiers", "scale_out", "host_memory_gib"], machine, day)],
    }


def _accelerator(machine: Machine, found: Constants, day: date) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": machine.name,
        "title": machine.title,
        "vendor": machine.vendor,
        "kind": machine.kind,
        "device": "rank" if machine.kind == "cpu" else "device",
        "year": day.year,
        "architecture": f"{machine.architecture}-{MEASURED}" if machine.architecture else "",
        "memory_gib": digits(bytes_to_gib(machine.memory_bytes)),
        "bandwidth_gb_per_s": digits(bytes_per_s_to_gb_per_s(found.memory_peak)),
        "peak_dense_tflops": {d: digits(flops_per_s_to_tflops(rate)) for d, rate in found.peaks.items()},
        "num_cores": machine.num_cores,
        "support": {
            "training": True,
            "inference": True,
            "parallelisms": ["dp", "tp", "pp", "cp", "ep", "zero"],
            "dtypes": sorted({"fp32" if d == "tf32" else d for d in found.peaks}),
            "targets": _targets(machine),
        },
        "achieved": {
            "gemm_fraction": 1.0,
            "memory_fraction": digits(min(found.memory / found.memory_peak, 1.0)),
            "kernel_launch_us": digits(s_to_us(found.launch_s)),
            "context_gib": digits(bytes_to_gib(machine.context_bytes)),
            "gemm_fill_k": digits(found.fill_k),
            "attention_shares": {KERNEL: {k: digits(v) for k, v in found.attention.items()}},
        },
        "notes": ["peak rates are those that products reached here, not a data sheet's"],
        "sources": [_source(["peak_dense_tflops", "bandwidth_gb_per_s", "memory", "achieved"], machine, day)],
    }
    if not found.attention:
        del data["achieved"]["attention_shares"]
    return data


def _targets(machine: Machine) -> list[str]:
    """Return the frameworks that run on the machine: a GPU has those of the parts of its generation.

    Without such parts it has those of all GPUs. A CPU has no FSDP through Accelerate, which starts there
    processes that do not shard, and says nothing.
    """
    if machine.kind == "cpu":
        return ["deepspeed", "pytorch"]
    parts = [chip for chip in map(load_accelerator, accelerator_names()) if chip.kind == machine.kind]
    alike = [chip for chip in parts if chip.architecture == machine.architecture] or parts
    return sorted(frozenset().union(*(chip.support.targets for chip in alike)))


def _tiers(machine: Machine, found: Constants) -> list[dict[str, Any]]:
    """Return a tier within a host, and one between hosts where there are several.

    A host with one rank has a tier of one, whose numbers nothing reads: those between hosts, or the memory's.
    """
    kinds = {"inside": "host" if machine.kind == "cpu" else "switch", "across": "ethernet"}
    sizes = {"inside": machine.inside, "across": machine.across}
    anything = next(iter(found.tiers.values()), (found.memory, 1e-6))
    return [
        {
            "name": name,
            "kind": kinds[name],
            "fan_out": sizes[name],
            "bandwidth_gb_per_s": digits(bytes_per_s_to_gb_per_s(found.tiers.get(name, anything)[0])),
            "latency_us": digits(s_to_us(found.tiers.get(name, anything)[1])),
        }
        for name in TIERS
        if name == "inside" or sizes[name] > 1
    ]


def _source(fields: list[str], machine: Machine, day: date) -> dict[str, Any]:
    title = f"meshwright calibrate on {day.isoformat()}, {machine.inside * machine.across} ranks"
    return {"fields": fields, "title": title, "reference": machine.software, "kind": "user"}


def cluster_of(data: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a file's content, checked as a file is; raises MeshwrightError if it is none."""
    try:
        checked = ClusterData.model_validate(dict(data))
        assert isinstance(checked.accelerator, dict)  # written in place
        own = AcceleratorData.model_validate(checked.accelerator)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise MeshwrightError(
            f"calibrate: the samples give {field} {first['input']!r}, which no machine has "
            f"({first['msg'].lower()}); give a larger --budget, and other files to --merge"
        ) from None
    accelerator = accelerator_from_data(own)
    return cluster_from_data(checked, accelerator, checked.count)


def measured_profile(machine: Machine, found: Constants) -> dict[str, float]:
    """Return the fields of the measured profile, those of other machines' runs set back to one or nothing."""
    neutral = {"gemm_fraction": 1.0, "attention_fraction": 1.0, "jitter": 0.0, "fragmentation": 0.0}
    held = {"communicator_bytes": machine.communicator_bytes, "bucket_bytes": 0.0}
    own = neutral if machine.kind == "cpu" else {k: v for k, v in neutral.items() if k != "fragmentation"}
    return {**own, **held, **found.profile}


def machine_profile_text(machine: Machine, found: Constants, day: date) -> str:
    """Return the text of the measured profile."""
    return profile_text(
        "measured",
        STACK,
        f"PyTorch with FSDP2 on {machine.title}, measured {day.isoformat()}",
        measured_profile(machine, found),
        [f"meshwright calibrate with {machine.software}"],
        ["Written by meshwright calibrate; units are in the names."],
    )
