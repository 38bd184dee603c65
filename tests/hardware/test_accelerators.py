"""The accelerator files: published numbers, a source beside each, nothing that physics forbids."""

import pytest
import yaml

from meshwright.hardware.catalogue import DATA_DIR, accelerator_names, aliases, load_accelerator
from meshwright.hardware.units import GB, GIB, MIB, TERA

FILES = {path.stem: path for path in sorted((DATA_DIR / "accelerators").glob("*.yaml"))}
ASKED_FOR = [
    "v100-16gb",
    "v100-32gb",
    "a100-40gb-sxm",
    "a100-80gb-sxm",
    "a100-80gb-pcie",
    "a800-sxm",
    "h100-sxm",
    "h100-pcie",
    "h100-96gb",
    "h200-sxm",
    "h800-sxm",
    "h20-sxm",
    "b200-sxm",
    "b300-sxm",
    "gb200",
    "gb300",
    "l4",
    "l40s",
    "a10g",
    "rtx-3090",
    "rtx-4090",
    "mi210",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "gaudi2",
    "gaudi3",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "trainium1",
    "trainium2",
    "inferentia2",
    "cerebras-cs2",
    "cpu",
]
# name: MiB that processes may take, memory GB/s, dense 16-bit TFLOP/s, one-way device link GB/s
PUBLISHED = {
    "v100-16gb": (16160, 900, 125, 150),
    "a100-80gb-sxm": (81050, 2039, 312, 300),
    "a100-40gb-sxm": (40536, 1555, 312, 300),
    "h100-sxm": (81007, 3350, 989.4, 450),
    "h200-sxm": (143165, 4800, 989.4, 450),
    "h800-sxm": (81007, 3350, 989.4, 200),
    "b200-sxm": (182630, 8000, 2250, 900),
    "mi300x": (196592, 5300, 1307.4, 448),
    "gaudi2": (98304, 2460, 432, 262.5),
    "tpu-v5p": (97280, 2765, 459, 600),
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_catalogue_covers_what_was_asked_for(name):
    assert load_accelerator(name).name == name


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers(name):
    memory, bandwidth, peak, link = PUBLISHED[name]
    chip = load_accelerator(name)
    assert chip.memory_bytes == memory * MIB
    assert chip.memory_bandwidth_bytes_per_s == bandwidth * GB
    rates = chip.peak_flops_per_s
    assert rates.get("bf16", rates.get("fp16")) == pytest.approx(peak * TERA)
    assert chip.on_package_link.bandwidth_bytes_per_s == pytest.approx(link * GB)


@pytest.mark.parametrize(
    ("name", "units_", "flops_per_clock", "mhz"),
    [
        ("v100-16gb", 80, 1024, 1530),
        ("a100-80gb-sxm", 108, 2048, 1410),
        ("h100-sxm", 132, 4096, 1830),
        ("mi300x", 304, 2048, 2100),
        ("rtx-4090", 128, 512, 2520),
    ],
)
def test_dense_peak_is_units_times_clock_times_flops(name, units_, flops_per_clock, mhz):
    chip = load_accelerator(name)
    rates = chip.peak_flops_per_s
    assert chip.num_cores == units_
    assert rates.get("bf16", rates.get("fp16")) == pytest.approx(
        units_ * flops_per_clock * mhz * 1e6, rel=0.005
    )


def test_measured_and_nominal_memory_are_told_apart():
    assert not load_accelerator("h100").memory_is_nominal
    assert (
        load_accelerator("tpu-v5e").memory_is_nominal and load_accelerator("cerebras-cs2").memory_is_nominal
    )


def test_no_peak_is_the_sparse_one():
    assert load_accelerator("h100").peak_flops_per_s["bf16"] < 1000 * TERA  # 1979 is with sparsity
    assert load_accelerator("rtx-a6000").peak_flops_per_s["fp16"] < 160 * TERA  # 309.7 is with sparsity


def test_what_a_part_lacks_is_absent():
    assert "bf16" not in load_accelerator("v100").support.dtypes
    assert "fp8" not in load_accelerator("a100").peak_flops_per_s
    assert not load_accelerator("inferentia2").support.training
    assert load_accelerator("cerebras-cs2").support.parallelisms == {"dp"}
    assert load_accelerator("l40s").on_package_link is None
    assert load_accelerator("rtx-4090").host_link.topology == "host"  # no peer-to-peer over PCIe


@pytest.mark.parametrize("name", accelerator_names())
def test_every_entry_is_plausible(name):
    chip = load_accelerator(name)
    rates = chip.peak_flops_per_s
    assert set(chip.support.dtypes) <= set(rates)
    assert chip.support.training or chip.support.inference
    assert 0 < chip.achieved.gemm_fraction <= 1 and 0 < chip.achieved.memory_fraction <= 1
    assert 0 <= chip.achieved.context_bytes < 0.1 * chip.memory_bytes
    assert chip.achieved.kernel_launch_s < 1e-4
    assert 1 * GIB < chip.memory_bytes < 1000 * GIB
    order = [rates[d] for d in ("fp32", "tf32", "fp16", "fp8", "fp4") if d in rates]
    assert order == sorted(order)  # fewer bits are never slower
    assert chip.usd_per_hour is None or 0.1 < chip.usd_per_hour < 50


@pytest.mark.parametrize("name", FILES)
def test_every_number_has_a_source(name):
    data = yaml.safe_load(FILES[name].read_text())
    backed = {field for source in data["sources"] for field in source["fields"]}
    memory = {"memory_gb": "memory", "memory_gib": "memory"}
    for path in _numbers(data):
        parts = memory.get(path, path).split(".")
        candidates = {".".join(parts[: i + 1]) for i in range(len(parts))}
        assert candidates & backed, f"{name}: {path} has no source"


@pytest.mark.parametrize("name", FILES)
def test_recollection_is_told_from_text(name):
    chip = load_accelerator(name)
    for source in chip.sources:
        assert source.kind in ("text-seen", "memory")
        assert (source.reference == "memory") <= (source.kind == "memory")
    seen = {f for s in chip.sources if s.kind == "text-seen" for f in s.fields}
    assert not seen & set(chip.memory_only_fields)


@pytest.mark.parametrize("name", FILES)
def test_prices_say_who_and_when(name):
    for price in load_accelerator(name).prices:
        assert price.provider and any(year in price.date for year in ("2023", "2024", "2025", "2026"))


def test_file_names_are_the_names_and_aliases_are_unique():
    declared = [alias for path in FILES.values() for alias in yaml.safe_load(path.read_text())["aliases"]]
    assert len(declared) == len(set(declared)) == len(aliases("accelerators"))
    assert not set(declared) & set(FILES)
    assert all(load_accelerator(alias).name == name for alias, name in aliases("accelerators").items())
    assert all(load_accelerator(name).name == name for name in FILES)


def test_loading_is_cached_and_case_does_not_matter():
    assert load_accelerator("H100") is load_accelerator(" h100-sxm ")


def _numbers(data, prefix=""):
    """Paths of all numbers outside lists, and of every list of prices."""
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _numbers(value, f"{path}.")
        elif key == "prices" or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield path
