"""A node of the catalogue behind another network: its ports are shared by the devices of a host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.catalogue import DATA_DIR, load_cluster
from meshwright.hardware.errors import CatalogueError
from meshwright.hardware.network import PORT_GBIT, read_network
from meshwright.hardware.units import gbit_per_s_to_bytes_per_s

EXAMPLE = DATA_DIR / "examples" / "two-racks-l40s.yaml"


@given(
    st.integers(1, 99),
    st.sampled_from([1, 10, 25, 100, 200, 400, 800]),
    st.sampled_from(["dgx-a100", "rtx-4090-4"]),
)
def test_devices_of_a_host_share_its_ports(ports: int, gbit: int, node: str) -> None:
    cluster = load_cluster(f"{node}:3@{ports}x{gbit}GbE")
    own = load_cluster(f"{node}:3")
    last = cluster.tiers[-1]
    assert last.bandwidth_bytes_per_s * cluster.devices_per_host == pytest.approx(
        ports * gbit_per_s_to_bytes_per_s(gbit)
    )
    assert last.devices_per_nic == cluster.devices_per_host / ports
    assert cluster.tiers[:-1] == own.tiers[:-1]
    assert (cluster.num_devices, cluster.accelerator) == (own.num_devices, own.accelerator)


@pytest.mark.parametrize(
    ("word", "alike"), [("200GbE", "gcp-a2"), ("4xEDR", "dgx-2"), ("8xHDR", "dgx-1-v100")]
)
def test_a_network_behaves_as_one_of_the_catalogue(word: str, alike: str) -> None:
    mine, theirs = (load_cluster(name).tiers[-1] for name in (f"dgx-a100:4@{word}", f"{alike}:4"))
    assert (mine.kind, mine.latency_s, mine.efficiency) == (theirs.kind, theirs.latency_s, theirs.efficiency)


@pytest.mark.parametrize("text", ["dgx-a100:4@100GbE", "gcp-a2:2@8xHDR"])
def test_no_source_of_the_network_before_is_left(text: str) -> None:
    said = {
        source.kind for source in load_cluster(text).sources if any("scale_out" in f for f in source.fields)
    }
    assert said == {"user"}


@pytest.mark.parametrize("name", PORT_GBIT)
def test_generations_of_infiniband_double(name: str) -> None:
    faster = read_network(f"2x{name.lower()}")
    assert (faster.word, faster.ports * faster.gbit_per_s) == (f"2x{name}", 2 * PORT_GBIT[name])


@pytest.mark.parametrize(
    "text", ["dgx-a100:4@8xHDR", "dgx-a100:1@100GbE", "gb200-nvl72:2@4xNDR", "tpu-v5e-pod:2@25GbE"]
)
def test_a_name_leads_to_the_same_cluster_again(text: str) -> None:
    cluster = load_cluster(text)
    assert cluster.name.endswith(text.partition("@")[2])
    assert load_cluster(cluster.name) == cluster == load_cluster(text.upper())


def test_a_file_may_have_another_network_too_and_a_path_may_hold_the_sign(tmp_path) -> None:
    assert load_cluster(f"{EXAMPLE}:4@2x25GbE").tiers[-1].name == "ethernet"
    folder = tmp_path / "me@home"
    folder.mkdir()
    (folder / "mine.yaml").write_text(EXAMPLE.read_text())
    assert load_cluster(str(folder / "mine.yaml")) == load_cluster(EXAMPLE)
    assert load_cluster(str(folder / "mine.yaml@100GbE")) == load_cluster(f"{EXAMPLE}@100GbE")


@pytest.mark.parametrize(
    "word", ["", "foo", "100", "0GbE", "0x100GbE", "HDR100", "-1GbE", "1e9GbE", "9999GbE", "100x1GbE"]
)
def test_a_word_that_tells_no_network_is_refused(word: str) -> None:
    with pytest.raises(CatalogueError, match="network is"):
        load_cluster(f"dgx-a100:4@{word}")


def test_bare_devices_on_one_host_have_no_network() -> None:
    with pytest.raises(CatalogueError, match="one host"):
        load_cluster("h100-sxm:4@100GbE")
