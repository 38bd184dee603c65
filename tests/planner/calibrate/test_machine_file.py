"""The files of a measured machine are read like any other, and price plans."""

import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from meshwright.costmodels.profiles import find_profile
from meshwright.hardware.catalogue import load_accelerator, load_cluster
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.fits import fitted
from meshwright.planner.calibrate.machine_file import paths
from meshwright.planner.calibrate.profile_file import check_place, write_whole
from meshwright.planner.calibrate.samples import from_lines
from meshwright.planner.calibrate.session import write
from meshwright.planner.estimate import estimate
from meshwright.planner.targets import TARGETS
from tests.planner.calibrate.machines import GPU_MACHINE, LATENCY, MACHINE, PEAK, samples

JOB = {"global_batch_size": 8, "sequence_length": 512, "precision": "fp32"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    files = paths(tmp_path_factory.mktemp("machine") / "mine.yaml")
    write(files, MACHINE, fitted(samples(), MACHINE), samples())
    return files


def test_the_cluster_is_read_with_what_was_measured(written):
    cluster = load_cluster(str(written[0]))
    chip = cluster.accelerator
    assert cluster.num_devices == 2
    assert cluster.tiers[0].latency_s == pytest.approx(LATENCY, rel=0.3)
    assert chip.peak_flops_per_s["fp32"] == pytest.approx(PEAK, rel=0.03)
    assert chip.achieved.attention_shares["flash-2"]["forward"] == pytest.approx(0.5, rel=0.05)
    assert chip.sources[0].kind == "user"
    assert date.today().isoformat() in chip.sources[0].title


def test_the_profile_is_read_and_other_machines_fits_do_not_count(written):
    profile = find_profile(str(written[1]))
    assert (profile.gemm_fraction, profile.attention_fraction, profile.jitter) == (1.0, 1.0, 0.0)
    assert profile.scatter_rate == pytest.approx(0.25, rel=0.1)
    assert profile.norm == "eager"


def test_the_samples_are_there_to_be_merged(written):
    assert from_lines(written[2].read_text(), "samples") == samples()


def test_a_plan_is_priced_on_the_measured_machine(written):
    cluster, profile = str(written[0]), str(written[1])
    job = JOB | {"profile": profile}
    alone, both = (
        estimate("llama-3.2-1b", cluster, job, {"dp": n, "tp": 2 // n, "micro_batch_size": 1}) for n in (1, 2)
    )
    assert alone.model_flops / alone.step_time_s / 2 < PEAK  # two ranks, each below its peak
    assert both.breakdown["gradient_reduction"] > 0


def test_a_gpu_s_architecture_is_refined_so_that_its_fits_do_not_count_twice(tmp_path):
    files = paths(tmp_path / "gpu.yaml")
    machine = replace(GPU_MACHINE, across=2)
    write(files, machine, fitted(samples(GPU_MACHINE), GPU_MACHINE), samples())
    cluster = load_cluster(str(files[0]))
    assert cluster.accelerator.architecture == "hopper-measured"
    assert (cluster.num_devices, [t.name for t in cluster.tiers]) == (4, ["inside", "across"])
    assert set(cluster.accelerator.support.dtypes) == {"bf16", "fp32"}


@pytest.mark.parametrize(("architecture", "part"), [("hopper", "h100-sxm"), ("volta", "v100-16gb")])
def test_a_measured_gpu_runs_what_the_part_in_the_catalogue_runs(tmp_path, architecture, part):
    files, machine = paths(tmp_path / "gpu.yaml"), replace(GPU_MACHINE, architecture=architecture)
    write(files, machine, fitted(samples(GPU_MACHINE), GPU_MACHINE), samples())
    support = load_cluster(str(files[0])).accelerator.support
    assert support.targets == load_accelerator(part).support.targets


def test_a_gpu_of_no_known_generation_runs_all_frameworks_and_a_cpu_those_that_shard(tmp_path, written):
    machine = replace(GPU_MACHINE, architecture="")
    write(paths(tmp_path / "gpu.yaml"), machine, fitted(samples(GPU_MACHINE), GPU_MACHINE), samples())
    gpu, cpu = (load_cluster(str(f)).accelerator for f in (tmp_path / "gpu.yaml", written[0]))
    assert {t.needs for t in TARGETS.values() if t.name != "any"} == gpu.support.targets
    assert cpu.support.targets == load_accelerator("cpu").support.targets


def test_a_name_that_is_no_yaml_is_refused(tmp_path):
    with pytest.raises(MeshwrightError, match=r"mine\.yaml"):
        paths(tmp_path / "mine.json")


def test_files_are_written_all_or_none(tmp_path):
    files = paths(tmp_path / "mine.yaml")
    files[2].mkdir()
    with pytest.raises(MeshwrightError, match="directory"):
        write_whole(dict.fromkeys((files[2], *files[:2]), "text"))
    assert list(tmp_path.iterdir()) == [files[2]]
    with pytest.raises(MeshwrightError, match="is a folder"):
        check_place(files[2])


def test_samples_of_no_machine_are_told_by_field(tmp_path):
    constants = fitted(samples(), MACHINE)
    absurd = replace(constants, peaks=dict.fromkeys(constants.peaks, 1e40))
    with pytest.raises(MeshwrightError, match="peak_dense_tflops"):
        write(paths(tmp_path / "mine.yaml"), MACHINE, absurd, samples())
    assert not list(tmp_path.iterdir())


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path):
    true, link = tmp_path / "true.txt", tmp_path / "link.txt"
    link.symlink_to(true)
    for path in (link, Path(os.devnull)):
        check_place(path)
        write_whole({path: "text"})
    assert link.is_symlink()
    assert true.read_text() == "text"
    assert not Path(os.devnull).is_file()
    assert sorted(tmp_path.iterdir()) == [link, true]
