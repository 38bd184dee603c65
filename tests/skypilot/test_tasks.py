"""SkyPilot itself reads every emitted task: its schema, its task and its names of accelerators.

It runs in an environment of its own, without a network, and writes into a home that is thrown away.
"""

import importlib.util
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from meshwright.hardware.catalogue import load_cluster
from meshwright.planner.emit import jobs
from meshwright.planner.emit.registry import EMITTERS
from meshwright.planner.emit.write import write_plan
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from tests.planner.emit.cases import case

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sky") is None,
    reason="skypilot is not installed: it has an environment of its own",
)

STRATEGY = {name: {"zero_stage": 3} for name in ("fsdp", "fsdp1", "torchtitan", "native")}
Read = tuple[Any, dict[str, Any]]
"""SkyPilot's task and what its file says."""


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Import SkyPilot with a home of its own, where its table of accelerators is what its code names."""
    home: Path = tmp_path_factory.mktemp("home")

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise OSError("these tests use no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("getaddrinfo", "create_connection"):
            patch.setattr(socket, name, refused)
        import sky
        from sky.catalog import common

        table = Path(common.get_catalog_path("common/accelerators.csv"))
        assert home in table.parents
        table.parent.mkdir(parents=True)
        table.write_text("\n".join(["AcceleratorName,Clouds", *(f"{name},[]" for name in sorted(known()))]))
        yield sky


def known() -> set[str]:
    """Return the accelerators that SkyPilot's own code names (its catalogue lies on a server)."""
    from sky import catalog
    from sky.provision.runpod.utils import GPU_NAME_MAP
    from sky.utils.gpu_names import CANONICAL_GPU_NAMES

    return {*CANONICAL_GPU_NAMES, *GPU_NAME_MAP, *catalog.get_common_gpus()}


def read(
    sky: ModuleType, problem: Problem, plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Read:
    """Return the emitted task as SkyPilot reads it in the emitted folder, checked by itself."""
    write_plan(problem, plan, folder / "out", launchers=["skypilot"])
    monkeypatch.chdir(folder / "out")
    task = sky.Task.from_yaml("skypilot.yaml")
    task.validate()
    return task, yaml.safe_load(Path("skypilot.yaml").read_text())


def accelerators(task: Any) -> list[dict[str, int]]:
    return [resources.accelerators for resources in task.resources]


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("target", EMITTERS)
def test_the_task_is_the_plan_s(
    sky: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, hosts: int
) -> None:
    batch = {"global_batch_size": 96}
    problem, plan = case(target, f"dgx-h100:{hosts}", job=batch, **STRATEGY.get(target, {}))
    task, said = read(sky, problem, plan, tmp_path, monkeypatch)
    assert task.num_nodes == hosts and accelerators(task) == [{"H100": 8}]
    assert Path(task.workdir).samefile(tmp_path / "out")
    assert task.run.strip() == said["run"].strip() and "exec bash launch.sh" in task.run
    assert task.name == said["name"]


@pytest.mark.parametrize("name", jobs.SKY_DEVICES)
def test_every_accelerator_has_skypilot_s_own_name(
    sky: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    problem, plan = case("any", "dgx-h100:1", tp=4, dp=1, job={"allow_idle": True})
    there = replace(problem, cluster=load_cluster(f"{name}:4"))
    task, _ = read(sky, there, plan, tmp_path, monkeypatch)
    [[(granted, count)]] = [list(found.items()) for found in accelerators(task)]
    # SkyPilot's spelling, not one that it mends; a name of nobody's would pass through it as it is.
    assert (granted, count) == (jobs.SKY_DEVICES[name], 4) and granted in known()


def test_memory_in_a_name_is_the_device_s(sky: ModuleType) -> None:
    from sky.utils.gpu_names import get_gpu_device_memory_gib

    told = {name: get_gpu_device_memory_gib(theirs) for name, theirs in jobs.SKY_DEVICES.items()}
    checked = {name: size for name, size in told.items() if size is not None}
    assert len(checked) >= 5
    for name, size in checked.items():
        have = load_cluster(f"{name}:1").accelerator.memory_bytes / 2**30
        assert abs(have - size) < 0.1 * size, name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 2}, "nodes"),
        ({"num_nodes": "two"}, "num_nodes|two"),
        ({"num_nodes": 0}, "num_nodes|0"),
        ({"resources": {"accelerators": "H100:eight"}}, "accelerators"),
        ({"resources": {"devices": "H100:8"}}, "devices"),
        ({"name": "a/b"}, "a/b"),
    ],
)
def test_a_wrong_task_is_refused(
    sky: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    _, task = read(sky, *case("any"), tmp_path, monkeypatch)
    Path("skypilot.yaml").write_text(yaml.safe_dump(task | change))
    with pytest.raises((ValueError, RuntimeError, AssertionError), match=said):
        sky.Task.from_yaml("skypilot.yaml").validate()
