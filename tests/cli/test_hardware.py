"""``meshwright hardware``: the catalogue for people and for machines."""

import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from meshwright.cli.hardware import hardware
from meshwright.cli.ranks import read_ranks
from meshwright.hardware.catalogue import DATA_DIR, accelerator_names, cluster_names

app = typer.Typer()
app.command("hardware")(hardware)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def test_listing_names_everything():
    shown = run()
    assert shown.exit_code == 0
    for name in (*accelerator_names(), *cluster_names()):
        assert name in shown.stdout
    listed = json.loads(run("--json").stdout)
    assert listed["accelerators"] == list(accelerator_names())
    assert listed["clusters"] == list(cluster_names())
    assert listed["aliases"]["h100"] == "h100-sxm" and listed["aliases"]["p5"] == "aws-p5"


def test_an_accelerator_shows_numbers_units_and_sources():
    shown = run("h100").stdout
    for part in (
        "79.65 GiB",
        "3,350 GB/s",
        "bf16 989.4",
        "NVLink 4, 450 GB/s one way",
        "text-seen",
        "700 W",
        "$6.88",
    ):
        assert part in shown
    assert "Recollection only" in shown and "(nominal" not in shown
    assert "(nominal, not measured)" in run("tpu-v5e").stdout


def test_what_a_part_lacks_is_a_dash():
    shown = run("l40s").stdout
    assert any(line.split() == ["On-package", "link", "-"] for line in shown.splitlines())
    assert "Targets             -" in run("cerebras-cs2").stdout


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "dgx-h100:16",
            ["128 on 16", "infiniband-ndr (rail) joins 16, 50 GB/s a device", "2,048 GiB a host"],
        ),
        ("mi300x-8", ["xgmi (mesh) joins 8, 448 GB/s a device, 64 GB/s a pair"]),
        ("meta-24k-roce:768", ["oversubscribed 7:1"]),
        ("aws-p4d:2", ["2 devices a NIC"]),
        ("tpu-v5e-pod:4x8", ["ici-x (line) joins 4, 50 GB/s a device"]),
        ("a10g:2", ["host (pcie) joins 2"]),
        (
            str(DATA_DIR / "examples" / "two-racks-l40s.yaml"),
            ["own machines", "An example of the file format"],
        ),
    ],
)
def test_a_cluster_shows_its_tiers(name, parts):
    shown = run(name)
    assert shown.exit_code == 0
    assert all(part in shown.stdout for part in parts), shown.stdout


def test_machines_read_si_units():
    chip, cluster = json.loads(run("h100", "--json").stdout), json.loads(run("dgx-h100:2", "--json").stdout)
    assert chip["entry"] == "accelerator" and chip["memory_bandwidth_bytes_per_s"] == 3.35e12
    assert cluster["entry"] == "cluster" and cluster["num_devices"] == 16 and cluster["num_hosts"] == 2
    assert cluster["tiers"][1]["bandwidth_bytes_per_s"] == 50e9


def test_a_wrong_name_is_bad_input():
    wrong = run("dgx-h10")
    assert wrong.exit_code == 2 and "did you mean dgx-h100" in wrong.stderr
    assert json.loads(run("dgx-h100:0", "--json").stdout)["status"] == "ERROR"


def test_a_group_of_ranks_is_told_its_links():
    shown = run("dgx-h100:4", "--ranks", "0-24:8").stdout
    assert "infiniband-ndr" in shown and "48.00 GB/s" in shown
    told = json.loads(run("dgx-h100:4", "--ranks", "0-7", "--json").stdout)
    assert (told["tier"], told["tier_name"]) == (0, "nvlink")
    alone = json.loads(run("dgx-h100:4", "--ranks", "3", "--json").stdout)
    assert (alone["tier"], alone["bandwidth_bytes_per_s"]) == (-1, None)


@given(st.integers(0, 31), st.integers(0, 31), st.integers(1, 9))
def test_ranks_are_read_as_they_are_written(first, last, step):
    first, last = sorted((first, last))
    assert read_ranks(f"{first}-{last}:{step}", 32) == list(range(first, last + 1, step))
    assert read_ranks(f" {first} , {last}", 32) == [first, last]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dgx-h100:4", "--ranks", "0,x"], "'x' is no rank"),
        (["dgx-h100:4", "--ranks", ""], "'' is no rank"),
        (["dgx-h100:4", "--ranks", "0-7:0"], "'0-7:0' is no rank"),
        (["dgx-h100:4", "--ranks", "7-0"], "lowest first"),
        (["dgx-h100:4", "--ranks", "32"], "within 0-31"),
        (["dgx-h100", "--ranks", "0-56:8"], "such as dgx-h100:8"),
        (["dgx-h100:4", "--ranks", "1" * 5000], "is no rank"),
        (["dgx-h100:4", "--ranks", "0,0"], "must be distinct"),
        (["dgx-h100:4", "--ranks", ",".join(["0-31"] * 100_000)], "more ranks than the 32 devices"),
        (["h100", "--ranks", "0"], "h100-sxm is one device"),
        (["--ranks", "0"], "name the cluster"),
    ],
)
def test_ranks_that_are_none_are_refused(arguments, said):
    shown = run(*arguments)
    assert shown.exit_code != 0
    assert said in " ".join(shown.output.split())
