"""Launch scripts start the right command, however hostile the names in them."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.launch import hostfile, lay_out
from meshwright.planner.emit.text import code, job_name, printable, quoted_script
from meshwright.planner.emit.write import render, write_plan
from tests.planner.emit.cases import GOLDEN, case, cluster
from tests.strategies import launchable

HOSTILE = ["my train.py", "it's.py", 'a"b.py', "$(rm -rf x).py", "`id`.py", "a\nb.py", "-rf.py", "é;&|.py"]
ECHO = f"""#!{sys.executable}
import os, sys
with open(os.environ["SEEN"], "a") as seen:
    seen.write(repr([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run a script with launchers that only write down how they were called."""
    bin_dir, seen = tmp_path / "bin", tmp_path / "seen"
    bin_dir.mkdir()
    for name in ("torchrun", "deepspeed", "accelerate"):
        (bin_dir / name).write_text(ECHO)
        (bin_dir / name).chmod(0o755)

    def start(script: Path, *arguments: str, **environment: str) -> list[str]:
        env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "SEEN": str(seen), **environment}
        subprocess.run(["bash", script, *arguments], env=env, check=True, cwd=tmp_path, timeout=30)
        return list(eval(seen.read_text().splitlines()[-1]))

    return start


def shell_texts(files: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if text.startswith("#!")}


@given(launchable(), st.sampled_from(HOSTILE) | st.text(st.characters(exclude_characters="\0"), min_size=1))
@settings(max_examples=30, deadline=None)
def test_bash_accepts_every_script(drawn, script: str) -> None:
    try:
        files = shell_texts(render(*drawn, script=script))
    except MeshwrightError:
        assert not script.strip() or not script.isprintable()
        return
    assert files
    for text in files.values():
        done = subprocess.run(["bash", "-n"], input=text.encode("utf-8", "surrogateescape"), check=False)
        assert done.returncode == 0


SHELLCHECK = which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", GOLDEN)
def test_shellcheck_finds_nothing(name: str) -> None:
    target, machines, strategy = GOLDEN[name]
    for text in shell_texts(render(*case(target, machines, **strategy))).values():
        done = subprocess.run([SHELLCHECK, "-"], input=text, text=True, stdout=subprocess.PIPE, check=False)
        assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("script", HOSTILE)
@pytest.mark.parametrize("target", ["any", "fsdp", "deepspeed"])
def test_the_script_is_one_word_whatever_its_name(target: str, script: str, tmp_path: Path, run) -> None:
    out = tmp_path / "my plan's $(touch pwned)"
    write_plan(*case(target, "dgx-h100:1"), out, script=script)
    called = run(out / "launch.sh", "--epochs", "two words")
    word = f"./{script}" if script.startswith("-") else script
    assert called.count(word) == 1
    assert called[-2:] == ["--epochs", "two words"]
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "model", ["a b", "x'y\"z", "m\n#SBATCH --nodes=999\nrm -rf x", "$(touch pwned)", "``"]
)
def test_a_hostile_model_name_stays_inert(model: str) -> None:
    problem, plan = case("any")
    files = render(problem, replace(plan, model=model))
    assert files["job.sbatch"].count("--nodes=") == 1
    assert all("pwned)" not in text and "rm -rf x\n" not in text for text in shell_texts(files).values())
    title = files["README.md"].splitlines()[0]
    assert title.startswith("# `") and title.endswith("on `dgx-h100:2`")
    assert title.count("`") == 4


def test_torchrun_starts_the_devices_of_the_plan(tmp_path: Path, run) -> None:
    problem, plan = case("any", job={"allow_idle": True, "global_batch_size": 12}, dp=12)
    write_plan(problem, plan, tmp_path / "out")
    counts = []
    for rank in range(2):
        called = run(tmp_path / "out" / "launch.sh", NODE_RANK=str(rank), MASTER_ADDR="head")
        assert called[:2] == ["torchrun", "--nnodes=2"]
        assert f"--node-rank={rank}" in called and "--master-addr=head" in called
        counts.append(int(called[2].removeprefix("--nproc-per-node=")))
    assert counts == [8, 4] and sum(counts) == plan.num_devices


def test_deepspeed_over_several_hosts_refuses_names_that_it_would_not_quote(tmp_path: Path, run) -> None:
    write_plan(*case("deepspeed"), tmp_path / "out")
    called = run(tmp_path / "out" / "launch.sh", TRAIN_SCRIPT="src/train-1.py")
    config = str(tmp_path / "out" / "ds_config.json")
    assert called[called.index("src/train-1.py") :] == ["src/train-1.py", "--deepspeed_config", config]
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        run(tmp_path / "out" / "launch.sh", TRAIN_SCRIPT="$(id).py")
    # The launcher without ssh quotes for itself.
    assert "$(id).py" in run(tmp_path / "out" / "launch_torchrun.sh", TRAIN_SCRIPT="$(id).py")


def test_a_trainer_may_rename_the_option(tmp_path: Path, run) -> None:
    write_plan(*case("deepspeed", "dgx-h100:1"), tmp_path / "out")
    called = run(tmp_path / "out" / "launch.sh", CONFIG_OPTION="--deepspeed")
    assert called[-2:] == ["--deepspeed", str(tmp_path / "out" / "ds_config.json")]


def test_slurm_starts_one_launcher_on_each_host(tmp_path: Path, run) -> None:
    write_plan(*case("any", tp=4, pp=2), tmp_path / "out")
    stubs = {
        "scontrol": "#!/bin/bash\nprintf 'gpu-%s\\n' 7 8\n",
        "srun": '#!/bin/bash\nshift\nfor SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done\n',
    }
    for name, text in stubs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "gpu-[7-8]", "SLURM_SUBMIT_DIR": str(tmp_path / "out")}
    called = run(tmp_path / "out" / "job.sbatch", "--lr", "1", **slurm, NODE_RANK="5")
    assert "--master-addr=gpu-7" in called and "--node-rank=1" in called
    assert called[-3:] == ["train.py", "--lr", "1"]
    assert len((tmp_path / "seen").read_text().splitlines()) == 2


def test_slurm_job_says_where_to_submit_from(tmp_path: Path, run) -> None:
    write_plan(*case("any"), tmp_path / "out")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        run(tmp_path / "out" / "job.sbatch", SLURM_SUBMIT_DIR=str(tmp_path))


def test_slurm_grants_what_is_no_gpu_by_the_site_s_own_option() -> None:
    problem, plan = case("any", "dgx-h100:1")
    tpu = replace(problem.cluster, accelerator=replace(problem.cluster.accelerator, kind="tpu"))
    text = render(replace(problem, cluster=tpu), plan)["job.sbatch"]
    assert "--gpus-per-node" not in text and "grants 8 h100-sxm" in text


@pytest.mark.parametrize("hosts", [2, 2048])
def test_hostfile_lists_each_host_once_with_its_slots(hosts: int) -> None:
    problem, plan = case("any", f"dgx-h100:{hosts}", job={"global_batch_size": 8 * hosts})
    lines = [line for line in hostfile(problem, plan).splitlines() if not line.startswith("#")]
    assert lines == [f"node{i} slots=8" for i in range(hosts)]


def test_a_rack_is_launched_host_by_host() -> None:
    rack = cluster("gb200-nvl72:1")
    problem, plan = case("any", "gb200-nvl72:1", job={"global_batch_size": 72})
    hosts = lay_out(problem, plan)
    assert (hosts.count, hosts.per_host) == (rack.num_hosts, rack.devices_per_host)
    assert hosts.per_host < 72


@given(st.integers(1, 16))
@settings(deadline=None)
def test_processes_on_the_hosts_add_up_to_the_devices(dp: int) -> None:
    problem, plan = case("any", job={"allow_idle": True, "global_batch_size": dp}, dp=dp)
    hosts = lay_out(problem, plan)
    assert (hosts.count - 1) * hosts.per_host + hosts.last == plan.num_devices
    assert 1 <= hosts.last <= hosts.per_host <= 8


@pytest.mark.parametrize("script", ["", "  ", "a\0b", "\ud800.py"])
def test_no_file_name(script: str) -> None:
    with pytest.raises(MeshwrightError, match=r"script: .* is no file name"):
        quoted_script(script)


@given(st.text())
def test_printable_text_is_one_line_and_cannot_leave_its_code_span(text: str) -> None:
    assert printable(text).isprintable()
    assert "`" not in code(text)[1:-1]
    assert printable(printable(text)) == printable(text)
    assert set(job_name(text)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert job_name(text)
