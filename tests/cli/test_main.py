"""The command as a whole: help, version, estimate on the real price, and dozens of ways to be wrong."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

import meshwright
from meshwright.cli.main import main
from meshwright.cli.options import OPTIMIZER_HELP, PRECISION_HELP, SCHEDULE_HELP
from meshwright.costmodels.precision import OPTIMIZERS, PRECISIONS
from meshwright.costmodels.schedule import names
from meshwright.planner.emit.registry import EMITTERS
from tests.cli.shell import JOB, run, shell

COMMANDS = ("solve", "estimate", "hardware", "model", "targets", "calibrate", "learn")
EXPLICIT = (
    *("--tp", "2", "--pp", "2", "--dp", "2", "--vpp", "1", "--micro-batch", "2", "--zero", "1"),
    *("--sequence-parallel", "--schedule", "1f1b", "--placement", "tp,pp,dp"),
    *("--recompute", "0-3:full,8:selective", "--layers-per-stage", "17,15"),
)


def test_help_names_every_command_and_exit_code() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in COMMANDS)
    assert all(f" {code}  " in done.stdout for code in (0, 1, 2, 3, 4, 130))


def test_no_summary_of_a_command_is_cut_short() -> None:
    assert "..." not in run("--help").stdout.partition("Commands:")[2]


def test_nothing_asked_is_help_and_bad_input() -> None:
    done = run()
    assert done.exit_code == 2
    assert "Usage" in done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_within_80_columns(command: str) -> None:
    done = run(command, "-h")
    assert done.exit_code == 0
    assert "--json" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", ["solve", "estimate"])
def test_help_documents_the_exit_codes(command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    assert re.search(r"Exit codes: 0 .*, 2 bad input, 3 ", text)


def test_version_comes_from_the_package() -> None:
    assert run("--version").stdout == f"meshwright {meshwright.__version__}\n"


def test_targets_say_what_is_lost() -> None:
    text = " ".join(run("targets").stdout.split())
    assert "deepspeed DeepSpeed JSON deepspeed run" in text
    assert "any any framework generic syntax" in text
    assert "deepspeed: context and expert degrees" in text
    assert "any: nothing" in text
    for name, emitter in EMITTERS.items():
        assert f"{name} ({emitter.level}): {emitter.checked}" in text
    assert "accelerate deepspeed, fsdp, fsdp1 run" in text
    listed = json.loads(run("targets", "--json").stdout)
    assert listed["megatron"]["launchers"] == ["torchrun", "slurm", "kubernetes", "skypilot"]
    assert listed["fsdp"]["loses"] == [
        "every degree but data and context",
        "optimizer offload alone",
        "ZeRO 0 and 1",
        "selective recompute",
    ]


def test_main_answers_like_the_app(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["meshwright", "--version"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    assert meshwright.__version__ in capsys.readouterr().out


def test_estimate_prices_every_field_of_a_strategy() -> None:
    done = run("estimate", *JOB, *EXPLICIT, "--json")
    assert done.exit_code == 0, done.output
    price = json.loads(done.stdout)
    plan = price["plan"]
    wanted = {
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "vpp": 1,
        "micro_batch_size": 2,
        "num_microbatches": 32,
        "zero_stage": 1,
        "sequence_parallel": True,
        "schedule": "1f1b",
        "placement": ["tp", "cp", "pp", "dp"],
    }
    assert {key: plan[key] for key in wanted} == wanted
    assert [i - 1 for i, mode in enumerate(plan["recompute"]) if mode == "full"] == [0, 1, 2, 3]
    assert [i - 1 for i, mode in enumerate(plan["recompute"]) if mode == "selective"] == [8]
    assert plan["chunks"] == [{"rank": 0, "start": 0, "stop": 18}, {"rank": 1, "start": 18, "stop": 34}]
    assert sum(price["breakdown"].values()) == pytest.approx(price["step_time_s"], rel=1e-9)
    assert [sum(stage.values()) for stage in price["memory"]] == pytest.approx(price["peak_bytes"], rel=1e-9)
    assert price["fits"] is True


def test_estimate_gives_the_same_price_by_flags_by_file_and_by_plan(tmp_path: Path) -> None:
    by_flags = json.loads(run("estimate", *JOB, *EXPLICIT, "--json").stdout)
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.1-8b\ncluster: dgx-h100\nglobal_batch_tokens: 1048576\nsequence_length: 8192\n"
        "strategy: {tp: 2, pp: 2, dp: 2, micro_batch_size: 2, zero_stage: 1, sequence_parallel: true,\n"
        "  schedule: 1f1b, placement: [tp, pp, dp], layers_per_stage: [17, 15],\n"
        "  recompute: {0-3: full, 8: selective}}\n"
    )
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(by_flags["plan"]))
    for arguments in ((str(job),), ("--plan", str(plan)), ("--plan", str(plan), "--cluster", "dgx-h100:1")):
        done = run("estimate", *arguments, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == by_flags


@pytest.mark.parametrize("field", ["model", "cluster", "profile"])
def test_a_plan_made_from_a_file_says_which_flag_names_it_again(field: str, tmp_path: Path) -> None:
    made = json.loads(run("estimate", *JOB, "--zero", "3", "--json").stdout)["plan"]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({**made, field: "of-mine:1" if field == "cluster" else "of-mine"}))
    refused = run("estimate", "--plan", str(plan))
    assert refused.exit_code == 2
    assert f"given again (--{field} FILE)" in " ".join(refused.stderr.split())
    assert "given again" not in run("estimate", "--plan", str(plan), f"--{field}", "no-such").stderr


def test_estimate_page_when_piped() -> None:
    done = shell("estimate", *JOB, *EXPLICIT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert lines[0].startswith("FITS  ")
    headings = ["Plan", "Where the time goes", "Memory of a device, GiB"]
    assert [line for line in lines if line in headings] == headings


def test_estimate_that_does_not_fit_says_so_in_its_exit_code() -> None:
    done = run("estimate", *JOB, "--zero", "0")
    assert done.exit_code == 3
    assert done.stdout.startswith("DOES NOT FIT  ")
    assert "too much" in done.stdout
    assert "zero_stage 3" in done.stdout.partition("What would make it fit")[2]
    told = json.loads(run("estimate", *JOB, "--zero", "0", "--json").stdout)
    assert told["fits"] is False
    assert {"zero_stage": 3} in [one["changes"] for one in told["lighter"]]


def test_a_plan_is_priced_for_a_stack_that_is_known_better(tmp_path: Path) -> None:
    told = json.loads(run("estimate", *JOB, *EXPLICIT, "--json").stdout)["plan"]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(told))
    again = json.loads(run("estimate", "--plan", str(plan), "--profile", "deepspeed", "--json").stdout)
    assert again["plan"] == told | {"profile": "deepspeed"}
    written = run("estimate", *JOB, *EXPLICIT, "--profile", "deepspeed", "--loss", told["loss"], "--json")
    assert again["step_time_s"] == json.loads(written.stdout)["step_time_s"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_survives_a_poor_terminal(encoding: str) -> None:
    done = shell("targets", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")


MIXTRAL = str(Path(__file__).resolve().parents[1] / "data" / "hf_configs" / "Mixtral-8x7B.json")
EXPERTS = (
    *("--model", MIXTRAL, "--cluster", "dgx-h100:4", "--global-batch", "64", "--seq-len", "32768"),
    *("--tp", "2", "--cp", "4", "--pp", "2", "--dp", "2", "--ep", "4", "--etp", "2", "--ulysses", "2"),
    *("--kv-exchange", "all_gather", "--expert-load", "1.25", "--placement", "tp,cp,dp,pp"),
    *("--recompute", "every-2:full"),
)


def test_estimate_prices_experts_and_context_and_the_page_says_how() -> None:
    price = json.loads(run("estimate", *EXPERTS, "--json").stdout)
    plan = price["plan"]
    wanted = {
        "tp": 2,
        "cp": 4,
        "pp": 2,
        "dp": 2,
        "ep": 4,
        "etp": 2,
        "ulysses": 2,
        "kv_exchange": "all_gather",
    }
    assert {key: plan[key] for key in wanted} == wanted
    assert plan["expert_load"] == 1.25
    assert [m == "full" for m in plan["recompute"][1:-1]] == [i % 2 == 0 for i in range(32)]
    assert price["breakdown"]["expert_parallel"] > 0
    assert price["breakdown"]["context_parallel"] + price["hidden"]["context_parallel"] > 0
    text = " ".join(run("estimate", *EXPERTS).stdout.split())
    assert "mesh tp 2 × cp 4 × pp 2 × dp 2 = 32 devices" in text
    assert "experts ep 4 × etp 2 × 2 data ranks, busiest rank 1.25 × the mean" in text
    assert "2 ranks exchange heads and 2 ranks gather keys and values" in text
    assert "expert parallel" in text


def test_estimate_of_adapters_says_how_much_is_trained(tmp_path: Path) -> None:
    lora = run("estimate", *JOB, "--lora", "16", "--zero", "3", "--json")
    price = json.loads(lora.stdout)
    assert price["plan"]["tuning"].startswith("lora:r=16")
    assert 0 < price["trainable_parameters"] < price["parameters"] / 50
    by_text = run("estimate", *JOB, "--tuning", "lora:r=16", "--zero", "3", "--json")
    assert by_text.stdout == lora.stdout
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(price["plan"]))
    assert run("estimate", "--plan", str(plan), "--json").stdout == lora.stdout
    text = " ".join(run("estimate", *JOB, "--lora", "16", "--zero", "3").stdout.split())
    assert re.search(r"trained [\d,.]+ of [\d,.]+ parameters \(0\.\d\d %\)", text)
    assert "trained" not in run("estimate", *JOB, "--zero", "3").stdout


def test_a_plan_keeps_its_headroom_and_a_flag_gives_another(tmp_path: Path) -> None:
    tight = json.loads(run("estimate", *JOB, "--zero", "3", "--headroom", "0", "--json").stdout)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(tight["plan"]))
    again = json.loads(run("estimate", "--plan", str(plan), "--json").stdout)
    assert again["usable_bytes"] == tight["usable_bytes"] == tight["capacity_bytes"]
    other = json.loads(run("estimate", "--plan", str(plan), "--headroom", "0.5", "--json").stdout)
    assert other["usable_bytes"] == tight["capacity_bytes"] / 2
    measured = json.loads(run("estimate", "--plan", str(plan), "--oom-risk", "0.3", "--json").stdout)
    assert measured["headroom"]["oom_risk"] == 0.3
    assert measured["usable_bytes"] == pytest.approx(
        tight["capacity_bytes"] * (1 - measured["headroom"]["share"])
    )


def test_the_help_of_schedules_names_them_all() -> None:
    words = set(re.findall(r"\w+", SCHEDULE_HELP))
    assert set(names()) <= words


BAD = """
solve --nonsense
solve --seq-len
solve a.yaml b.yaml
solve no-such-job.yaml
solve .
solve
solve --model llama-3.1-8b
solve --model llama-3.1-8b --cluster dgx-h100
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch 8
solve --model '' --cluster dgx-h100 --global-batch 8 --seq-len 128
solve --model no-such-model --cluster dgx-h100 --global-batch 8 --seq-len 128
solve --model no/such/folder --cluster dgx-h100 --global-batch 8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h1000 --global-batch 8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100:0 --global-batch 8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100:-1 --global-batch 8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100:x --global-batch 8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch 0 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch -8 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch 1.5 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch eight --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch 8 --seq-len 1e99
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch 8 --global-batch-tokens 1024 --seq-len 128
solve --model llama-3.1-8b --cluster dgx-h100 --global-batch-tokens 1000 --seq-len 128
solve {job} --precision bf17
solve {job} --optimizer lamb
solve {job} --target megatrn
solve {job} --profile fast
solve {job} --headroom 1.5
solve {job} --headroom nan
solve {job} --headroom much
solve {job} --oom-risk 0
solve {job} --oom-risk 0.9
estimate {job} --oom-risk often
solve {job} --tokens none
solve {job} --pin tp
solve {job} --pin tq=4
solve {job} --pin tp=4 --pin tp=8
solve {job} --pin 'tp<=x'
solve {job} --limit zero_stage=9
solve {job} --time-limit 0
solve {job} --time-limit soon
solve {job} -o {folder}
estimate {job} --tp 0
estimate {job} --tp 3
estimate {job} --tp 16
estimate {job} --dp 3
estimate {job} --pp 99
estimate {job} --zero 4
estimate {job} --zero x
estimate {job} --micro-batch 7
estimate {job} --vpp 2
estimate {job} --schedule zigzag
estimate {job} --placement dp,tp,pp
estimate {job} --placement tp
estimate {job} --recompute sometimes
estimate {job} --recompute 0-99:full
estimate {job} --recompute 3-1:full
estimate {job} --recompute x:full
estimate {job} --pp 2 --layers-per-stage 16
estimate {job} --pp 2 --layers-per-stage 16,x
estimate {job} --pp 2 --layers-per-stage 16,17
estimate {job} --target fsdp --tp 2
estimate {job} --plan no-such-plan.json
estimate {job} --plan {job_file}
estimate {job} --plan {folder}
estimate {job} --plan plan.json --tp 2
estimate {job} --cp 3
estimate {job} --ep 2
estimate {job} --cp 2 --ulysses 3
estimate {job} --cp 2 --kv-exchange mesh
estimate {job} --offload disk
estimate {job} --hpz 2
estimate {job} --dp-replicate 3
estimate {job} --recompute every-0:full
estimate {job} --schedule zigzag
estimate {job} --lora 0
estimate {job} --lora 16 --tuning qlora
estimate {job} --tuning lora:r=many
estimate {job} --target-length 128
estimate {job} --image-tokens 128
estimate {job} --expert-load 0.5
hardware no-such-thing
model no-such-model
slove
"""


@pytest.mark.parametrize(("told", "registry"), [(PRECISION_HELP, PRECISIONS), (OPTIMIZER_HELP, OPTIMIZERS)])
def test_help_names_every_recipe_and_optimizer(told: str, registry: Mapping[str, object]) -> None:
    plain = told.replace(" (the default)", "").replace(" or ", ", ").removesuffix(".")
    assert sorted(plain.split(", ")) == sorted(registry)


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_bad_input_is_one_sentence_on_stderr_and_exit_code_2(line: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama-3.1-8b\ncluster: dgx-h100\nglobal_batch_size: 128\nsequence_length: 8192\n")
    places = {"{job}": str(job), "{job_file}": str(job), "{folder}": str(tmp_path)}
    done = run(*(places.get(word, word) for word in shlex.split(line)))
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert "rror: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("command", ["solve", "estimate"])
def test_bad_input_with_json_is_an_object_too(command: str) -> None:
    done = run(command, *JOB, "--precision", "bf17", "--json")
    assert done.exit_code == 2
    answer = json.loads(done.stdout)
    assert answer["status"] == "ERROR"
    assert "bf17" in answer["error"]
    assert done.stderr == f"error: {answer['error']}\n"
