"""Starting ranks in processes of their own, and reading what they saw."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.planner.plan import Plan
from tests.frameworks import tiny

CHECKOUT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run: this checkout's modules, one thread a rank, our interpreter first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT), "PATH": path, **more}


ABORTED = "terminate called without an active exception"
"""What C++ says where a thread wants Python while its process leaves: a race that no run decides."""
TRIES = 3


def start(command: list[str], folder: Path = CHECKOUT, **more: str) -> str:
    """Run a command to its end in a folder and return what it printed; its last words if it fails.

    A run that was aborted on its way out is started again.
    """
    for _ in range(TRIES):
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(**more),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        if ABORTED not in done.stderr:
            break
    assert done.returncode == 0, f"{done.stderr[:2000]}\n...\n{done.stderr[-4000:]}"
    return done.stdout


def start_ranks(module: str, folder: Path, world: int) -> None:
    """Run a module of ranks over every plan in a folder."""
    start([sys.executable, "-m", f"tests.frameworks.{module}", str(folder), str(world)])


def write_case(
    folder: Path,
    world: int,
    model: tiny.Model,
    strategy: dict[str, Any],
    kind: str = "whole",
    **changes: Any,
) -> Plan:
    """Write a plan for ``native_ranks``, some of its fields changed, and its model; return the plan."""
    plan = replace(tiny.planned("native", f"cpu:{world}", model, **strategy)[1], **changes)
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "model.json").write_text(json.dumps({"model": vars(model), "kind": kind}))
    return plan


def read(folder: Path, world: int) -> list[dict[str, Any]]:
    """Return what each rank saw."""
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(world)]


def check_losses(losses: list[float], reference: tuple[float, ...], tolerance: float = 1e-4) -> None:
    """Assert that every loss is the reference's."""
    assert len(losses) == len(reference)
    for step, (own, wanted) in enumerate(zip(losses, reference, strict=True)):
        assert abs(own - wanted) <= tolerance * wanted, f"step {step}: {own}, not {wanted}"
