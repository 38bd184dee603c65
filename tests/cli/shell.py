"""Running the command inside the test and outside it."""

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from meshwright.cli.main import app

CHECKOUT = Path(__file__).resolve().parents[2]
JOB = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--global-batch", "128", "--seq-len", "8192")


def run(*arguments: str) -> Result:
    """Run the command in this interpreter; stdout and stderr are apart."""
    return CliRunner().invoke(app, list(arguments))


def shell(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as a process of its own, not on a terminal."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COV", "MESHWRIGHT", "COLUMNS"))}
    return subprocess.run(
        [sys.executable, "-m", "meshwright.cli.main", *arguments],
        cwd=CHECKOUT,
        env=clean | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
