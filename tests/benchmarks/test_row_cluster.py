"""The cluster of a published run: its accelerator, its machine, and the network that its row prints."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.row_cluster import cluster_of, most_cubic, network_bytes_per_s, slice_count
from benchmarks.row_machine import EXTRA_ACCELERATORS, MACHINES, find_machine
from benchmarks.row_model import NotExpressibleError
from meshwright.hardware.catalogue import accelerator_names, load_accelerator
from meshwright.hardware.units import gbit_per_s_to_bytes_per_s
from tests.benchmarks.cases import PLAIN, ROWS


@pytest.mark.parametrize(
    ("printed", "accelerator"),
    [
        ("NVIDIA H800 SXM5 80GB", "h800-sxm"),
        ("H100-PCIe-80GB", "h100-pcie"),
        ("GeForce RTX 5090", "rtx-5090"),
        ("L40S 48GB", "l40s"),
        ("AMD Instinct MI250", "mi250x"),
        ("TPU v6e", "tpu-v6e"),
        ("Google TPU7x (Ironwood)", "tpu-v7x"),
        ("AMD Instinct MI300X 192GB", "mi300x"),
        ("8x H100", "h100-sxm"),
        ("NVIDIA L40 48GB", "l40"),
        ("V100-SXM2-16GB-LS", "v100-16gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("GH200 96GB", "gh200"),
        ("Ascend 910B3", "ascend-910b"),
    ],
)
def test_an_accelerator_is_found_under_other_names(printed: str, accelerator: str) -> None:
    row = replace(PLAIN, accelerator=printed, num_gpus=16, gpus_per_node=8)
    cluster, assumed = cluster_of(row)
    assert cluster.accelerator.name == accelerator
    assert cluster.num_devices == 16
    assert any(accelerator in note for note in assumed)


def test_an_accelerator_like_none_of_the_catalogue_is_a_reason() -> None:
    assert find_machine("abacus") is None
    with pytest.raises(NotExpressibleError, match="abacus"):
        cluster_of(replace(PLAIN, accelerator="abacus", accelerator_as_printed=None))


def test_an_accelerator_may_be_printed_alone() -> None:
    printed, named = (
        cluster_of(replace(PLAIN, accelerator=name, accelerator_as_printed=other))[0]
        for name, other in ((None, "NVIDIA H100 SXM5 80GB"), ("h100-sxm-80gb", None))
    )
    assert printed.accelerator == named.accelerator


@given(st.integers(1, 40), st.sampled_from([4, 64, 256]))
def test_more_chips_than_a_pod_are_as_few_slices_as_there_can_be(pods: int, chips: int) -> None:
    row = replace(PLAIN, accelerator="tpu-v5e", num_gpus=pods * chips, notes="", sharding=None)
    slices = slice_count(row)
    assert slices >= pods * chips / 256
    assert chips < 256 or slices == pods
    assert cluster_of(row)[0].num_devices == pods * chips


@pytest.mark.parametrize("name", ["L400", "Trainium3", "H1000", "A1000", "MI2500"])
def test_a_longer_number_is_another_part(name: str) -> None:
    assert find_machine(name) is None


@pytest.mark.parametrize("file", sorted(EXTRA_ACCELERATORS.glob("*.yaml")), ids=lambda file: file.stem)
def test_accelerators_beside_the_catalogue_are_found_by_name_and_alias(file: Path) -> None:
    for name in (file.stem, load_accelerator(file).name):
        machine = find_machine(name.upper())
        assert machine is not None
        assert machine.accelerator == file.name


def test_cards_on_pcie_have_no_link_of_the_boards_of_their_chip() -> None:
    board, cards = (
        cluster_of(replace(PLAIN, accelerator=name, num_gpus=8, gpus_per_node=8))[0]
        for name in ("V100-SXM2-32GB", "V100-PCIe-32GB")
    )
    assert cards.accelerator.memory_bytes == board.accelerator.memory_bytes
    assert cards.tiers[0].bandwidth_bytes_per_s < board.tiers[0].bandwidth_bytes_per_s


@given(st.sampled_from(sorted(accelerator_names())), st.sampled_from(["{}", "NVIDIA {} GPU", "2x {}"]))
def test_every_part_of_the_catalogue_is_found_by_its_own_name(name: str, written: str) -> None:
    machine = find_machine(written.format(name))
    assert machine is not None
    row = replace(PLAIN, accelerator=written.format(name), num_gpus=1, gpus_per_node=1)
    assert cluster_of(row)[0].accelerator.name == name


def test_bare_devices_of_several_hosts_have_a_network_between_them() -> None:
    row = replace(PLAIN, accelerator="rtx3090", num_gpus=16, gpus_per_node=4, inter_bw_note=None)
    cluster, _ = cluster_of(row)
    assert cluster.devices_per_host == 4
    assert cluster.tiers[-1].fan_out == 4
    assert cluster.tiers[-1].bandwidth_bytes_per_s < cluster.tiers[0].bandwidth_bytes_per_s


def test_every_named_machine_gives_the_devices_that_a_row_uses() -> None:
    seen = {
        (r.accelerator, r.num_gpus, r.gpus_per_node): r for r in ROWS.values() if r.accelerator in MACHINES
    }
    assert {name for name, _, _ in seen} == set(MACHINES)
    for (_, devices, _), row in seen.items():
        cluster, _ = cluster_of(row)
        assert devices is None or cluster.num_devices == devices
        assert prod(t.fan_out for t in cluster.tiers) == cluster.num_devices


@pytest.mark.parametrize(
    ("note", "per_node", "gbit_per_s"),
    [
        ("8x 400 Gb/s NDR InfiniBand per node", 8, 400),
        ("1600 Gbps/node RoCE", 8, 200),
        ("4 x 100 Gb RoCE per node", 8, 50),
        ("400 Gb/s RDMA per GPU", 8, 400),
        ("Eos DGX H100 SuperPOD, NDR400 per GPU", 8, 400),
        ("800 Gb/s RDMA per node", 4, 200),
        ("EFA, 3.2 Tb/s per node", 8, 400),
        ("25 GB/s per device", 8, 200),
        ("8x NDR", 8, 400),
        ("4x HDR200 InfiniBand", 8, 100),
        ("10 Gbit/s Ethernet", 4, 2.5),
        ("100GbE/GPU", 8, 100),
    ],
)
def test_a_printed_network_is_a_devices_share(note: str, per_node: int, gbit_per_s: float) -> None:
    assert network_bytes_per_s(note, per_node) == gbit_per_s_to_bytes_per_s(gbit_per_s)


@pytest.mark.parametrize(
    "note", [None, "InfiniBand HDR", "DGX SuperPOD InfiniBand", "RoCE RDMA between up to 4 nodes"]
)
def test_a_network_without_a_figure_is_the_catalogues(note: str | None) -> None:
    assert network_bytes_per_s(note, 8) is None


def test_the_printed_network_is_the_one_that_is_priced() -> None:
    fast, _ = cluster_of(replace(PLAIN, inter_bw_note=None))
    slow, _ = cluster_of(replace(PLAIN, inter_bw_note="100 Gb/s per GPU"))
    assert slow.tiers[-1].bandwidth_bytes_per_s == fast.tiers[-1].bandwidth_bytes_per_s / 4


@given(chips=st.integers(1, 4096), limits=st.lists(st.integers(1, 16), min_size=1, max_size=3))
def test_a_slice_has_its_chips_within_the_pod(chips: int, limits: list[int]) -> None:
    shape = most_cubic(chips, tuple(limits))
    if shape is not None:
        assert prod(shape) == chips
        assert all(a <= b for a, b in zip(shape, limits, strict=True))
