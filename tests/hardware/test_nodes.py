"""The node, rack and pod files, and the clusters that they make."""

import math

import pytest
import yaml

from meshwright.hardware.catalogue import DATA_DIR, accelerator_names, aliases, cluster_names, load_cluster
from meshwright.hardware.units import GB, GIB

FILES = {path.stem: path for path in sorted((DATA_DIR / "nodes").glob("*.yaml"))}
# name: accelerator, devices in the unit, devices per host, GB/s a device between units
PUBLISHED = {
    "dgx-a100": ("a100-80gb-sxm", 8, 8, 25),
    "dgx-h100": ("h100-sxm", 8, 8, 50),
    "dgx-h200": ("h200-sxm", 8, 8, 50),
    "dgx-b200": ("b200-sxm", 8, 8, 50),
    "gb200-nvl72": ("gb200", 72, 4, 50),
    "gb300-nvl72": ("gb300", 72, 4, 100),
    "aws-p4d": ("a100-40gb-sxm", 8, 8, 6.25),
    "aws-p4de": ("a100-80gb-sxm", 8, 8, 6.25),
    "aws-p5": ("h100-sxm", 8, 8, 50),
    "aws-p5en": ("h200-sxm", 8, 8, 50),
    "gcp-a3-mega": ("h100-sxm", 8, 8, 25),
    "azure-ndh100v5": ("h100-sxm", 8, 8, 50),
    "mi300x-8": ("mi300x", 8, 8, 50),
    "l40s-pcie-8": ("l40s", 8, 8, 6.25),
    "gaudi2-8": ("gaudi2", 8, 8, 37.5),
    "gaudi3-8": ("gaudi3", 8, 8, 75),
    "dgx-1-v100": ("v100-32gb", 8, 8, 6.25),
    "dgx-2": ("v100-sxm3-32gb", 16, 16, 6.25),
    "tpu-v5e-pod": ("tpu-v5e", 256, 8, 3.125),
    "tpu-v5p-pod": ("tpu-v5p", 6144, 4, 6.25),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(name):
    accelerator, unit, per_host, between = PUBLISHED[name]
    pair = load_cluster(f"{name}:2")
    assert pair.accelerator.name == accelerator
    assert pair.num_devices == 2 * unit
    assert pair.devices_per_host == per_host
    assert pair.num_hosts == 2 * unit // per_host
    assert pair.tiers[-1].bandwidth_bytes_per_s == pytest.approx(between * GB)


@pytest.mark.parametrize("name", cluster_names())
@pytest.mark.parametrize("count", [1, 3])
def test_count_multiplies_the_unit_and_nothing_else(name, count):
    one, many = load_cluster(name), load_cluster(f"{name}:{count}")
    assert many.num_devices == count * one.num_devices
    assert many.tiers[: len(one.tiers)] == one.tiers
    assert math.prod(t.fan_out for t in many.tiers) == many.num_devices
    assert many.usd_per_device_hour == one.usd_per_device_hour


@pytest.mark.parametrize("name", cluster_names())
def test_every_tier_is_plausible(name):
    cluster = load_cluster(f"{name}:2")
    for tier in cluster.tiers:
        assert 0.5 * GB < tier.bandwidth_bytes_per_s <= 900 * GB
        assert 0 < tier.latency_s < 1e-4
        assert 0 < tier.efficiency <= 1
        assert (
            tier.kind != "mesh"
            or tier.pair_bandwidth_bytes_per_s * (tier.fan_out - 1) <= 1.2 * tier.bandwidth_bytes_per_s
        )
    rates = [t.bandwidth_bytes_per_s * t.efficiency for t in cluster.tiers]
    assert rates[-1] == min(rates)  # the network is the narrowest
    assert cluster.host_memory_bytes is None or 64 * GIB < cluster.host_memory_bytes <= 8192 * GIB
    assert cluster.title


@pytest.mark.parametrize("name", FILES)
def test_every_group_of_numbers_has_a_source(name):
    data = yaml.safe_load(FILES[name].read_text())
    backed = {field.split(".")[0] for source in data["sources"] for field in source["fields"]}
    for group in ("devices_per_host", "host_memory_gib", "tiers", "scale_out", "prices"):
        assert group not in data or group in backed, f"{name}: {group} has no source"


@pytest.mark.parametrize("name", FILES)
def test_prices_say_who_and_when(name):
    for price in load_cluster(name).prices:
        assert price.provider and any(year in price.date for year in ("2023", "2024", "2025", "2026"))


def test_names_and_aliases_mean_one_thing():
    declared = [alias for path in FILES.values() for alias in yaml.safe_load(path.read_text())["aliases"]]
    assert len(declared) == len(set(declared)) == len(aliases("nodes"))
    taken = {*accelerator_names(), *aliases("accelerators")}
    assert not {*declared, *FILES} & taken
    assert not set(declared) & set(FILES)
    assert all(load_cluster(alias).name == f"{name}:1" for alias, name in aliases("nodes").items())


def test_node_price_is_shared_by_its_devices():
    assert load_cluster("aws-p5:4").usd_per_device_hour == pytest.approx(55.04 / 8)


def test_a_node_without_a_price_takes_the_accelerators():
    cluster = load_cluster("dgx-h100")
    assert cluster.prices == () and cluster.usd_per_device_hour == cluster.accelerator.usd_per_hour


def test_rack_scale_domain_spans_hosts():
    rack = load_cluster("gb200-nvl72")
    assert len(rack.tiers) == 1 and rack.num_devices == 72 and rack.num_hosts == 18


def test_pods_of_a_blocking_fabric_fill_before_they_join():
    inside, across = load_cluster("meta-24k-roce:384"), load_cluster("meta-24k-roce:768")
    assert [t.fan_out for t in inside.tiers] == [8, 384]
    assert [t.fan_out for t in across.tiers] == [8, 384, 2]
    assert across.tiers[-1].oversubscription == 7.0


def test_torus_slice_wraps_only_on_whole_axes():
    pod, part = load_cluster("tpu-v5e-pod"), load_cluster("tpu-v5e-pod:16x4")
    assert [t.fan_out for t in part.tiers] == [16, 4] and part.num_devices == 64 and part.num_hosts == 8
    assert part.tiers[0] == pod.tiers[0]
    assert part.tiers[1].kind == "line"
    assert part.tiers[1].bandwidth_bytes_per_s == pod.tiers[1].bandwidth_bytes_per_s / 2


def test_cube_slice_wraps_on_all_axes_or_none():
    assert {t.kind for t in load_cluster("tpu-v4-pod:4x4x8").tiers} == {"torus"}
    assert {t.kind for t in load_cluster("tpu-v4-pod:2x2x4").tiers} == {"line"}


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("a10g:1", [("host", "pcie", 1)]),
        ("h100:4", [("on-package", "switch", 4)]),
        ("mi300x:2", [("on-package", "mesh", 2)]),
        ("rtx-4090:2", [("host", "host", 2)]),
        ("a100-80gb-pcie:4", [("on-package", "switch", 2), ("host", "pcie", 2)]),
        ("a100-80gb-pcie:3", [("host", "pcie", 3)]),
        ("tpu-v5e:1", [("on-package", "torus", 1)]),
        ("cpu:2", [("host", "host", 2)]),
    ],
)
def test_bare_devices_are_joined_by_the_link_that_they_have(text, tiers):
    box = load_cluster(text)
    assert [(t.name, t.kind, t.fan_out) for t in box.tiers] == tiers
    assert box.num_hosts == 1 and box.name.split(":")[1] == text.split(":")[1]


def test_without_a_link_or_a_count_one_device_is_meant():
    assert load_cluster("h100").num_devices == 1
    assert load_cluster("trainium2:1").num_devices == 1
