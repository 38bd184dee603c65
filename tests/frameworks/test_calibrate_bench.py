"""Cases really run with PyTorch on this machine: each has a time, and the files that come of it are read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from meshwright.costmodels.profiles import find_profile  # noqa: E402
from meshwright.hardware.catalogue import load_cluster  # noqa: E402
from meshwright.planner.calibrate.bench import Bench  # noqa: E402
from meshwright.planner.calibrate.cases import (  # noqa: E402
    TENSOR_PASSES,
    Core,
    Exchange,
    Host,
    Product,
    Stream,
    Tokens,
    Unit,
    Update,
)
from meshwright.planner.calibrate.samples import from_lines  # noqa: E402
from meshwright.planner.calibrate.session import calibrate  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]


CASES = (
    Product("fp32", 64, 64, 64),
    Product("bf16", 64, 32, 16, weight_gradient=True),
    Core("fp32", 1, 32, 2, 16, backward=False),
    Core("fp32", 1, 32, 2, 16, backward=True),
    *(Stream("fp32", 4096, what) for what in ("sum", "norm", "gate", "rotary")),
    Update(4096),
    Host("operator"),
    Host("forward"),
    Host("backward"),
    Host("step"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_has_a_time(case):
    seconds = Bench("cpu", None)(case)
    assert seconds is not None
    assert 0 < seconds < 1


def test_eight_times_the_work_takes_longer():
    bench = Bench("cpu", None)
    small, large = (min(bench(Product("fp32", 128, 128, k)) for _ in range(5)) for k in (256, 2048))
    assert large > small


def test_one_rank_writes_files_that_are_read(tmp_path):
    found = calibrate(tmp_path / "mine.yaml", budget_s=8.0, device="cpu", name="here")
    assert load_cluster(str(found.files[0])).accelerator.kind == "cpu"
    assert find_profile(str(found.files[1])).host_sync == 1.0
    assert len(from_lines(found.files[2].read_text(), "samples")) > 4


def test_two_ranks_measure_collectives_together(tmp_path):
    output = tmp_path / "two.yaml"
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "meshwright.cli.main"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "calibrate", "-o", str(output), "--budget", "20", "--device", "cpu"],
        cwd=CHECKOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(str(output))
    assert cluster.num_devices == 2
    assert cluster.tiers[0].bandwidth_bytes_per_s > 1e6
    cases = [s.case for s in from_lines(output.with_suffix(".samples.jsonl").read_text(), "samples")]
    assert {Exchange, Unit, Tokens} <= {type(case) for case in cases}  # among the first of any budget
    assert find_profile(str(output.with_suffix(".profile.toml"))).scatter_rate > 0
    # distributed tensors find layouts in Python, which no other host does for nothing
    assert {Host(what) for what in TENSOR_PASSES} <= set(cases)
    assert find_profile(str(output.with_suffix(".profile.toml"))).tensor_host_s > 0
