"""A plan is started by the launchers that were chosen, each on as many hosts and devices as it fills."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.jobs import RESOURCES, SKY_DEVICES, dns_name
from meshwright.planner.emit.launchers import LAUNCHERS
from meshwright.planner.emit.registry import EMITTERS, emit
from meshwright.planner.emit.write import render
from tests.planner.emit.cases import case


def test_without_a_choice_the_target_s_own_launchers_are_written() -> None:
    files = emit(*case("deepspeed"))
    assert {"launch.sh", "launch_torchrun.sh", "job.sbatch", "hostfile"} <= set(files)
    assert "exec deepspeed" in files["launch.sh"]
    assert "launch_torchrun.sh" in files["job.sbatch"]


def test_a_job_brings_the_script_that_it_starts_on_each_host() -> None:
    files = emit(*case("deepspeed"), launchers=["slurm"])
    assert not {"hostfile", "launch_deepspeed.sh"} & set(files)
    assert "exec torchrun" in files["launch.sh"]
    assert 'bash "$HERE/launch.sh"' in files["job.sbatch"]


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("target", EMITTERS)
def test_every_launcher_is_written_or_refused_by_name(target: str, name: str) -> None:
    stages = {"zero_stage": 3} if target == "fsdp" else {}
    problem, plan = case(target, **stages)
    tool = LAUNCHERS[name]
    if tool.kind != "job" and name not in EMITTERS[target].launchers:
        with pytest.raises(MeshwrightError, match=f"launcher: '{name}' does not start {target}; allowed: "):
            emit(problem, plan, launchers=[name])
        return
    files = render(problem, plan, launchers=[name])
    assert (tool.file if tool.kind == "job" else "launch.sh") in files
    assert f"level `{tool.level}`" in files["README.md"]


def test_an_unknown_launcher_is_named_with_those_there_are() -> None:
    with pytest.raises(MeshwrightError, match=r"'mpirun' .* allowed: torchrun, slurm, kubernetes, skypilot"):
        emit(*case("any"), launchers=["mpirun"])


def test_deepspeed_through_accelerate_reads_the_same_json() -> None:
    files = emit(*case("deepspeed", zero_stage=3), launchers=["accelerate"])
    config = yaml.safe_load(files["accelerate.yaml"])
    assert config["distributed_type"] == "DEEPSPEED"
    assert (config["num_machines"], config["num_processes"]) == (2, 16)
    assert config["deepspeed_config"]["zero3_init_flag"] is True
    assert '--deepspeed_config_file "$HERE/ds_config.json"' in files["launch.sh"]


def test_a_train_job_asks_for_the_vendor_s_devices_on_each_host() -> None:
    problem, plan = case("any", tp=4, pp=2)
    job = yaml.safe_load(emit(problem, plan, launchers=["kubernetes"])["trainjob.yaml"])
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert trainer["command"][-1] == "/meshwright/launch.sh"
    amd = replace(problem.cluster, accelerator=replace(problem.cluster.accelerator, vendor="AMD"))
    text = emit(replace(problem, cluster=amd), plan, launchers=["kubernetes"])["trainjob.yaml"]
    assert yaml.safe_load(text)["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"amd.com/gpu": "8"}}


def test_the_config_map_is_named_alike_in_the_job_and_in_the_readme() -> None:
    problem, plan = case("any")
    files = render(problem, plan, launchers=["kubernetes"])
    job = yaml.safe_load(files["trainjob.yaml"])
    name = job["metadata"]["name"]
    assert f"create configmap {name} --from-file=." in files["README.md"]
    spec = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    volumes = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": name} in [v.get("configMap") for v in volumes]


def test_a_sky_task_starts_every_host_from_the_first_one_s_address() -> None:
    task = yaml.safe_load(emit(*case("any"), launchers=["skypilot"])["skypilot.yaml"])
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:8")
    assert "SKYPILOT_NODE_RANK" in task["run"] and task["run"].endswith("exec bash launch.sh\n")


def test_devices_without_a_name_at_skypilot_are_refused() -> None:
    problem, plan = case("any", "dgx-h100:1")
    odd = replace(problem.cluster, accelerator=replace(problem.cluster.accelerator, name="tpu-v5p"))
    with pytest.raises(MeshwrightError, match="SkyPilot has no name for tpu-v5p"):
        emit(replace(problem, cluster=odd), plan, launchers=["skypilot"])


def test_names_of_accelerators_and_vendors_are_the_catalogue_s() -> None:
    folder = Path(__file__).resolve().parents[3] / "hardware" / "data" / "accelerators"
    files = {file.stem: yaml.safe_load(file.read_text()) for file in folder.glob("*.yaml")}
    assert set(SKY_DEVICES) <= set(files)
    assert {f["vendor"] for f in files.values()} - {"any", "Cerebras"} == set(RESOURCES)


@pytest.mark.parametrize("text", ["Llama 3.1/8B", "__", "x" * 90, "-a.b_"])
def test_names_are_those_that_kubernetes_takes(text: str) -> None:
    import re

    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", dns_name(text))


def test_an_uneven_last_host_is_refused_by_accelerate_alone() -> None:
    problem, plan = case("deepspeed", job={"allow_idle": True, "global_batch_size": 24}, dp=12)
    assert "launch.sh" in emit(problem, plan)
    with pytest.raises(MeshwrightError, match="equally many processes on each host"):
        emit(problem, plan, launchers=["accelerate"])


def test_a_script_of_one_s_own_takes_the_place_of_the_emitted_one() -> None:
    problem, plan = case("fsdp", zero_stage=3)
    files = emit(problem, plan)
    assert 'DEFAULT_SCRIPT="$HERE/train.py"' in files["launch.sh"]
    compile(files["train.py"], "train.py", "exec")
    mine = emit(problem, plan, script="mine.py")
    assert "train.py" not in mine and "DEFAULT_SCRIPT=mine.py" in mine["launch.sh"]
