"""Names and files in, machines or one clear sentence out."""

import json

import pytest
import yaml

from meshwright.hardware.catalogue import DATA_DIR, cluster_names, load_accelerator, load_cluster
from meshwright.hardware.errors import CatalogueError, MeshwrightError, UnknownNameError
from tests.hardware.conftest import isolated

EXAMPLE = DATA_DIR / "examples" / "two-racks-l40s.yaml"
MINE = {
    "name": "mine",
    "accelerator": "l40s",
    "devices_per_host": 4,
    "tiers": [{"name": "pcie", "fan_out": 4, "link": "host"}],
}


@pytest.fixture
def write(tmp_path):
    def _write(data, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
        return path

    return _write


def changed(**fields):
    return {**MINE, **fields}


def tier(**fields):
    base = {"name": "net", "kind": "rail", "fan_out": 2, "bandwidth_gb_per_s": 50, "latency_us": 8.0}
    return {**base, **fields}


def test_example_file_is_what_its_comments_say():
    cluster = load_cluster(EXAMPLE)
    assert cluster.name == "two-racks-l40s:16"
    assert [(t.kind, t.fan_out) for t in cluster.tiers] == [("pcie", 4), ("rail", 8), ("fat-tree", 2)]
    assert cluster.tiers[0].efficiency == 0.41 and cluster.tiers[-1].oversubscription == 4.0
    assert cluster.usd_per_device_hour == 1.0
    assert load_cluster(f"{EXAMPLE}:4").num_devices == 16


def test_own_accelerator_in_place_or_beside_the_file(write):
    data = yaml.safe_load((DATA_DIR / "accelerators" / "l40s.yaml").read_text())
    data |= {"name": "own", "memory_gb": 24, "aliases": []}
    del data["usable_memory_mib"]
    write(data, "own.yaml")
    beside = load_cluster(write(changed(accelerator="own.yaml")))
    inline = load_cluster(str(write(changed(accelerator=data))))
    assert beside.accelerator == inline.accelerator == load_accelerator(write(data, "own.yaml"))
    assert inline.accelerator.memory_bytes == 24e9 - data["driver_reserved_mib"] * 2**20


def test_json_is_yaml_too(write):
    path = write(json.dumps(MINE), "mine.json")
    assert load_cluster(path).num_devices == 4


def test_a_file_is_read_again_when_it_has_changed(write):
    path = write(MINE)
    assert load_cluster(path).num_devices == 4
    write(changed(tiers=[{"name": "pcie", "fan_out": 2, "link": "host"}]))
    assert load_cluster(path).num_devices == 2


@pytest.mark.parametrize(
    "text",
    [
        "dgx-h100:0",
        "dgx-h100:-1",
        "dgx-h100:1.5",
        "dgx-h100:nan",
        "dgx-h100:",
        "dgx-h100:1000000000000",
        "dgx-h100:²",
    ],
)
def test_a_count_is_a_whole_number_within_reason(text):
    with pytest.raises(CatalogueError, match=r"count is .* allowed: a whole number from 1 to 1000000"):
        load_cluster(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgx-h100:200000", "at most 1000000"),
        ("meta-24k-roce:400", "up to 384, or a multiple of 384"),
        ("tpu-v5e-pod:32x4", "up to 16x16"),
        ("tpu-v5e-pod:4x4x4", "up to 16x16"),
        ("dgx-h100:4x4", "a count of nodes"),
        ("h100:4x2", "a count of devices"),
        ("a10g:9", "1 to 8"),
        ("tpu-v5e:4", "joined in a torus"),
    ],
)
def test_what_the_machine_cannot_be_is_refused(text, message):
    with pytest.raises(CatalogueError, match=message):
        load_cluster(text)


def test_unknown_names_get_near_ones():
    with pytest.raises(UnknownNameError, match="dgx-h100"):
        load_cluster("dgx-h10:2")
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        load_accelerator("h100-smx")
    with pytest.raises(UnknownNameError, match=r"known: .* and \d+ more"):
        load_accelerator("zzzzzzzzzzz")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(tiers=[]), "tiers is"),
        (changed(tiers=[tier(bandwidth_gb_per_s=-1)]), r"tiers.0.bandwidth_gb_per_s is -1; .*greater than 0"),
        (changed(tiers=[tier(bandwidth_gb_per_s=float("nan"))]), "bandwidth_gb_per_s is nan"),
        (changed(tiers=[tier(bandwidth_gb_per_s="fast")]), "bandwidth_gb_per_s is 'fast'"),
        (changed(tiers=[tier(fan_out=0)]), "fan_out is 0"),
        (changed(tiers=[tier(fan_out=2.5)]), "fan_out is 2.5"),
        (changed(tiers=[tier(fan_out=True)]), "fan_out is True"),
        (changed(tiers=[tier(fan_out=10**12)]), "fan_out is 1000000000000"),
        (changed(tiers=[tier(kind="wormhole")]), "kind is 'wormhole'; allowed: .*switch"),
        (changed(tiers=[tier(kind="mesh")]), "a mesh needs pair_bandwidth_gb_per_s"),
        (changed(tiers=[tier(efficiency=1.5)]), "efficiency is 1.5"),
        (changed(tiers=[tier(oversubscription=0.5)]), "oversubscription is 0.5"),
        (
            changed(tiers=[tier(bandwidth=5)]),
            r"tiers.0.bandwidth is 5; allowed: a known field: bandwidth_gb_per_s",
        ),
        (changed(tiers=[{"name": "a", "fan_out": 2}]), "give kind, bandwidth_gb_per_s, latency_us"),
        (changed(tiers=[{"name": "a", "link": "host"}]), "tier a needs fan_out"),
        (changed(tiers=[{"name": "a", "fan_out": 2, "link": "on_package"}]), "a link that l40s has"),
        (changed(count=3), "the file names no scale_out tier"),
        (changed(count=3, scale_out=[tier(fan_out=2)]), "up to 2, or a multiple"),
        (changed(accelerator="l40z"), "did you mean"),
        (changed(accelerator={"name": "x"}), r"accelerator: title is 'missing'"),
        (changed(nodes=4), r"nodes is 4; allowed: a known field: .*count"),
        (changed(prices=[{"provider": "p", "kind": "k", "date": "2026"}]), "one of usd_per_device_hour"),
        ({"name": "mine"}, "accelerator is 'missing'; allowed: this field must be given"),
    ],
)
def test_wrong_fields_are_named_with_value_and_limit(write, data, message):
    with pytest.raises(MeshwrightError, match=message) as caught:
        load_cluster(write(data))
    assert len(str(caught.value)) < 1000


def test_a_mesh_link_or_memory_that_is_missing_is_named(write):
    data = yaml.safe_load((DATA_DIR / "accelerators" / "mi300x.yaml").read_text())
    del data["on_package_link"]["pair_bandwidth_gb_per_s"]
    with pytest.raises(CatalogueError, match="a mesh needs pair_bandwidth_gb_per_s"):
        load_accelerator(write(data))
    data = yaml.safe_load((DATA_DIR / "accelerators" / "l4.yaml").read_text())
    del data["usable_memory_mib"], data["memory_gb"]
    with pytest.raises(CatalogueError, match="give memory_gib, memory_gb or usable_memory_mib"):
        load_accelerator(write(data))
    assert load_accelerator(write({**data, "memory_gib": 8})).memory_bytes == 8 * 2**30


@pytest.mark.parametrize(("memory", "mib"), [("usable_memory_mib", 1), ("memory_gib", 1024)])
def test_a_driver_keeps_less_than_there_is(write, memory, mib):
    data = yaml.safe_load((DATA_DIR / "accelerators" / "a100-80gb-sxm.yaml").read_text())
    del data["usable_memory_mib"], data["memory_gb"]
    data[memory] = 80 * 1024 // mib
    assert load_accelerator(write(data)).memory_bytes == (80 * 1024 - 870) * 2**20
    with pytest.raises(CatalogueError, match=r"driver_reserved_mib is 90000.*less than its memory of 80 GiB"):
        load_accelerator(write({**data, "driver_reserved_mib": 90000.0}))


def test_listing_names_loads_neither_pydantic_nor_yaml():
    seen = isolated("import meshwright.hardware.catalogue as c; c.cluster_names(); c.accelerator_names()")
    assert not seen & {"pydantic", "yaml", "networkx"}
    assert "pydantic" in isolated("import meshwright.hardware.catalogue as c; c.load_cluster('dgx-h100')")


def test_names_are_sorted_and_known():
    assert list(cluster_names()) == sorted(cluster_names()) and "dgx-h100" in cluster_names()


@pytest.mark.parametrize("value", [3, ["a"]])
def test_a_field_of_several_kinds_is_called_by_its_own_name(write, value):
    with pytest.raises(CatalogueError, match=": accelerator is "):
        load_cluster(write(changed(accelerator=value)))
