"""One calibration from start to end: find the machine, measure, fit, write."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import read_text
from meshwright.hardware.units import MIB
from meshwright.hardware.yaml_core import to_yaml
from meshwright.planner.calibrate.cases import CPU, GPU, Case, Sample, grid
from meshwright.planner.calibrate.collect import Progress, collect, merged
from meshwright.planner.calibrate.fits import Constants, fitted
from meshwright.planner.calibrate.machine import Machine
from meshwright.planner.calibrate.machine_file import (
    check_name,
    cluster_data,
    cluster_of,
    machine_profile_text,
    paths,
)
from meshwright.planner.calibrate.profile_file import check_place, write_whole
from meshwright.planner.calibrate.samples import from_lines, to_lines

if TYPE_CHECKING:
    from meshwright.planner.calibrate.bench import Bench

MAX_SAMPLE_BYTES: Final = 16 * MIB
"""Of a file of samples: some 100,000 of them."""


@dataclass(frozen=True)
class Calibration:
    """A measured machine.

    Attributes
    ----------
    left_out
        Cases that the budget did not reach.
    files
        What was written: cluster, profile and samples; none on other ranks than the first.
    """

    machine: Machine
    constants: Constants
    left_out: tuple[Case, ...]
    files: tuple[Path, ...]


def calibrate(
    output: Path,
    *,
    budget_s: float,
    merge: Sequence[Path] = (),
    device: str | None = None,
    dtypes: tuple[str, ...] = (),
    name: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Calibration:
    """Measure the machine that this runs on, and write its files.

    Under a launcher (``torchrun``) all ranks measure together and the first one writes.

    Parameters
    ----------
    budget_s
        Seconds to measure for.
    merge
        Files of samples that earlier runs wrote.

    Raises
    ------
    MeshwrightError
        If PyTorch or the device is missing, a file is wrong, or the budget is too small for anything.
    """
    if not budget_s > 0:
        raise MeshwrightError(f"budget: {budget_s!r} is no positive number of seconds")
    if name is not None:
        check_name(name)
    files, earlier = paths(output), [_samples(path) for path in merge]
    first = os.environ.get("RANK", "0") == "0"
    for path in files if first else ():
        check_place(path)
    with _measured_with_torch(device) as (bench, where):
        from meshwright.planner.calibrate.detect import machine as this_machine

        here = this_machine(where, dtypes, name)
        scale = GPU if here.kind == "gpu" else CPU
        cases = grid(scale, here.dtypes, here.inside, here.across, graphs=here.kind == "gpu")
        got = collect(cases, bench, budget_s, bench.clock, progress)
    constants = fitted(merged([got.samples, *earlier]), here)
    if first:
        write(files, here, constants, merged([got.samples, *earlier]))
    return Calibration(here, constants, got.left_out, files if first else ())


def write(files: Sequence[Path], machine: Machine, constants: Constants, samples: Sequence[Sample]) -> None:
    """Write the three files, all or none; nothing is written that would not be read."""
    today = date.today()
    data = cluster_data(machine, constants, today)
    cluster_of(data)
    texts = (to_yaml(data), machine_profile_text(machine, constants, today), to_lines(samples))
    write_whole(dict(zip(files, texts, strict=True)))


def _samples(path: Path) -> list[Sample]:
    return from_lines(read_text(path, MAX_SAMPLE_BYTES), str(path))


@contextmanager
def _measured_with_torch(device: str | None) -> "Iterator[tuple[Bench, str]]":
    """Yield what times cases, with the ranks joined while it is in use, and the device."""
    try:
        import torch.distributed as dist
    except ImportError:
        raise MeshwrightError("calibrate: PyTorch is not installed here; pip install torch") from None
    from meshwright.planner.calibrate.bench import Bench
    from meshwright.planner.calibrate.bench_groups import make_groups
    from meshwright.planner.calibrate.detect import device_of, ranks

    where = device_of(device)
    inside, across = ranks()
    joined = inside * across > 1 and not dist.is_initialized()
    if joined:
        dist.init_process_group("gloo" if where == "cpu" else "nccl")
    try:
        yield Bench(where, make_groups(inside) if inside * across > 1 else None), where
    finally:
        if joined:
            dist.destroy_process_group()
