"""One job file and the flags over it: what wins, what is refused, and in which words."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cli.jobfile import JobSchema, StrategySchema, read_request
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import DECISIONS, Choice
from meshwright.planner.job import Job
from meshwright.planner.pins import read_pins

GOOD = """
model: llama-3.1-8b
cluster: dgx-h100:2
global_batch_size: 128
sequence_length: 8192
"""


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Return a function that writes a job file and reads it, with flags over it."""

    def read(text: str, **flags: Any) -> Any:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return read_request({"job_file": path, **flags})

    return read


def test_file_alone_makes_a_job(job: Any) -> None:
    request = job(
        GOOD + "precision: fp16\ntarget: fsdp\nheadroom: 0.1\ntokens: 15e12\nallow_idle: true\n"
        "time_limit_s: 2.5\npins: {tp: 4}\nlimits: {dp: '<=8'}\n"
    )
    assert (request.model, request.cluster) == ("llama-3.1-8b", "dgx-h100:2")
    assert (request.time_limit_s, request.strategy) == (2.5, None)
    assert request.job == {
        "global_batch_size": 128,
        "sequence_length": 8192,
        "precision": "fp16",
        "target": "fsdp",
        "headroom": 0.1,
        "tokens": 15 * 10**12,
        "allow_idle": True,
        "pins": {"tp": Choice(allowed=frozenset({4})), "dp": Choice(maximum=8)},
    }
    assert Job.from_mapping(request.job).choices == request.job["pins"]


def test_a_headroom_and_a_risk_stand_for_each_other_and_the_later_word_counts(job: Any) -> None:
    assert job(GOOD + "headroom: 0.1\n", oom_risk=0.2).job.get("headroom") is None
    assert job(GOOD + "oom_risk: 0.2\n", headroom=0.1).job.get("oom_risk") is None
    both = job(GOOD + "headroom: 0.1\noom_risk: 0.2\n").job
    assert (both["headroom"], both["oom_risk"]) == (0.1, 0.2)


def test_what_is_trained_may_be_text_or_a_mapping(job: Any) -> None:
    written = "image_tokens: 1024\ntarget_length: 114\nexpert_load: 1.2\nmtp: true\n"
    request = job(GOOD + written + "tuning: {kind: lora, r: 8}\n")
    assert request.job["tuning"] == {"kind": "lora", "r": 8}
    assert (request.job["image_tokens"], request.job["target_length"]) == (1024, 114)
    assert (request.job["expert_load"], request.job["mtp"]) == (1.2, True)
    assert str(Job.from_mapping(request.job).tuning).startswith("lora:r=8")
    over = job(GOOD + "tuning: {kind: lora, r: 8}\n", lora=64)
    assert over.job["tuning"] == "lora:r=64"
    with pytest.raises(MeshwrightError, match="--lora cannot stand beside --tuning"):
        job(GOOD, lora=64, tuning="qlora")


def test_every_decision_of_a_strategy_may_stand_in_the_file(job: Any) -> None:
    wide = {"cp": 4, "ep": 8, "etp": 2, "dp_replicate": 2, "hpz": 1, "ulysses": 2}
    words = {"kv_exchange": "all_gather", "offload": "optimizer", "schedule": "zb1p"}
    told = ", ".join(f"{k}: {v}" for k, v in (wide | words).items())
    assert job(GOOD + f"strategy: {{{told}}}\n").strategy == wide | words


def test_flags_override_the_file_and_leave_the_rest(job: Any) -> None:
    request = job(GOOD + "precision: fp16\n", precision="fp32", sequence_length="4096", cluster=None, pins=[])
    assert request.job["precision"] == "fp32"
    assert request.job["sequence_length"] == 4096
    assert request.job["global_batch_size"] == 128
    assert request.cluster == "dgx-h100:2"


def test_a_pin_by_flag_replaces_that_of_the_file_and_keeps_the_others(job: Any) -> None:
    request = job(GOOD + "pins: {tp: 4, pp: 2}\n", pins=["tp=8"])
    assert request.job["pins"] == {
        "tp": Choice(allowed=frozenset({8})),
        "pp": Choice(allowed=frozenset({2})),
    }


def test_pins_may_be_a_list_of_rules(job: Any) -> None:
    assert job(GOOD + "pins: ['tp>=2', 'tp<=8']\n").job["pins"] == {"tp": Choice(minimum=2, maximum=8)}


def test_batch_in_tokens_is_the_same_batch(job: Any) -> None:
    tokens = GOOD.replace("global_batch_size: 128", "global_batch_tokens: 1048576")
    assert job(tokens).job == job(GOOD).job


@pytest.mark.parametrize(
    ("flags", "sequences"),
    [
        ({"global_batch_size": "64"}, 64),
        ({"global_batch_tokens": "16384"}, 2),
        ({"sequence_length": "4096", "global_batch_tokens": "16384"}, 4),
    ],
)
def test_one_way_of_giving_the_batch_replaces_the_other(
    job: Any, flags: dict[str, str], sequences: int
) -> None:
    assert job(GOOD, **flags).job["global_batch_size"] == sequences
    tokens = GOOD.replace("global_batch_size: 128", "global_batch_tokens: 1048576")
    assert job(tokens, **flags).job["global_batch_size"] == sequences


def test_tokens_that_do_not_divide_name_the_nearest(job: Any) -> None:
    with pytest.raises(MeshwrightError, match=r"1000000 is no multiple .* 999424 \(122 .* 1007616 \(123 "):
        job(GOOD, global_batch_tokens="1e6")
    with pytest.raises(MeshwrightError, match=r"nearest: 8192 \(1 sequence\)$"):
        job(GOOD, global_batch_tokens="5")


def test_paths_are_relative_to_the_file_and_names_are_not(job: Any, tmp_path: Path) -> None:
    (tmp_path / "dgx-h100:2").mkdir()
    request = job(GOOD.replace("llama-3.1-8b", "models/mine"))
    assert request.model == str(tmp_path / "models/mine")
    assert request.cluster == "dgx-h100:2"
    assert job(GOOD.replace("dgx-h100:2", "mine.yaml")).cluster == str(tmp_path / "mine.yaml")
    assert job(GOOD.replace("llama-3.1-8b", "/else/where")).model == "/else/where"
    assert job(GOOD, model="models/mine").model == "models/mine"


def test_strategy_of_file_and_flags_is_merged_key_by_key(job: Any) -> None:
    text = (
        GOOD
        + "strategy: {tp: 8, pp: 2, placement: 'tp,dp,pp', layers_per_stage: [15, 17],\n"
        + "  recompute: {0-3: full}}\n"
    )
    assert job(text, tp=4, layers_per_stage="16,16", zero_stage=0).strategy == {
        "tp": 4,
        "pp": 2,
        "placement": ("tp", "dp", "pp"),
        "layers_per_stage": (16, 16),
        "recompute": {"0-3": "full"},
        "zero_stage": 0,
    }


def test_defaults_yield_to_the_file(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("sequence_length: 1024\n")
    defaults = {"model": "m", "cluster": "c", "sequence_length": 2, "global_batch_size": 4}
    request = read_request({"job_file": path}, defaults)
    assert (request.model, request.job) == ("m", {"sequence_length": 1024, "global_batch_size": 4})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "top level is 'NoneType'"),
        ("- a\n- b\n", "a mapping of field names"),
        ("just words", "a mapping of field names"),
        ("{", "valid YAML"),
        ("model: [", "valid YAML"),
        ("\tmodel: x", "valid YAML"),
        ("model: a\nmodel: b\n", "written twice"),
        ("a: &x [1]\nb: *x\n", "anchor or alias"),
        ("model: !!python/object/apply:os.system ['true']\n", "plain YAML"),
        ("1: 2\n", "text keys"),
        ("[" * 5000, "YAML"),
        (
            GOOD + "sequence_lenght: 4\n",
            "sequence_lenght is not a key of a job file; did you mean sequence_length",
        ),
        (GOOD + "xyzzy: 4\n", "xyzzy is not a key of a job file; allowed: model, cluster"),
        (GOOD + "strategy: {tpp: 4}\n", r"strategy.tpp is not a key of a job file; did you mean"),
        (GOOD.replace("8192", "0"), "sequence_length is 0; input should be greater than or equal to 1"),
        (GOOD.replace("8192", "-5"), "sequence_length is -5"),
        (GOOD.replace("8192", "1.5"), "sequence_length is 1.5"),
        (GOOD.replace("8192", "true"), "sequence_length is 'True'"),
        (GOOD.replace("8192", ".inf"), "sequence_length is inf"),
        (GOOD.replace("8192", ".nan"), "sequence_length is nan"),
        (GOOD.replace("8192", "1e30"), "less than or equal to"),
        (GOOD.replace("8192", "9" * 5000), "valid YAML scalars"),
        (GOOD.replace("8192", "[8192]"), r"sequence_length is \[8192\]"),
        (GOOD.replace("8192", "{}"), "sequence_length is {}"),
        (GOOD.replace("8192", "many"), "sequence_length is 'many'"),
        (GOOD.replace("128", "2001-01-01"), "global_batch_size is"),
        (GOOD + "global_batch_tokens: 8192\n", "global_batch_tokens cannot stand beside global_batch_size"),
        (GOOD.replace("llama-3.1-8b", "''"), "model is ''"),
        (GOOD.replace("llama-3.1-8b", "3"), "model is 3"),
        (GOOD.replace("llama-3.1-8b", "x" * 5000), "model is 'xxxx"),
        (GOOD + "headroom: 1\n", "headroom is 1"),
        (GOOD + "headroom: -0.1\n", "headroom is -0.1"),
        (GOOD + "headroom: .nan\n", "headroom is nan"),
        (GOOD + "allow_idle: maybe\n", "allow_idle is 'maybe'"),
        (GOOD + "allow_idle: 1\n", "allow_idle is 1"),
        (GOOD + "allow_idle: on\n", "allow_idle is 'on'; true or false is expected"),
        (GOOD + "time_limit_s: 1:30\n", "time_limit_s is '1:30'"),
        (GOOD + "time_limit_s: 0\n", "time_limit_s is 0"),
        (GOOD + "time_limit_s: .inf\n", "time_limit_s is inf"),
        (GOOD + "pins: 4\n", "pins"),
        (GOOD + "pins: {tq: 4}\n", "'tq' is not known"),
        (GOOD + "pins: {tp: 4}\nlimits: {tp: '<=2'}\n", "leave no value"),
        (GOOD + "pins: [4]\n", r"pins is \[4\]; rules are expected: a mapping"),
        (GOOD + "limits: {1: 2}\n", "limits is 1; rules are expected"),
        (GOOD + "tuning: 4\n", "tuning is 4; text such as lora"),
        (GOOD + "expert_load: true\n", "expert_load is 'True'"),
        (GOOD + "headroom: false\n", "headroom is 'False'"),
        (GOOD + "oom_risk: 0\n", "oom_risk is 0"),
        (GOOD + "oom_risk: 0.7\n", "oom_risk is 0.7"),
        (GOOD + "time_limit_s: true\n", "time_limit_s is 'True'"),
        (GOOD + "strategy: {recompute: 4}\n", r"strategy.recompute is 4; a mode \(none, selective"),
        (GOOD + "strategy: {recompute: {0-3: 1}}\n", "strategy.recompute is {'0-3': 1}; a mode"),
        (GOOD + "strategy: {placement: 4}\n", "strategy.placement is 4; the dimensions, innermost first"),
        (
            GOOD + "strategy: {layers_per_stage: []}\n",
            r"layers_per_stage is \[\]; the layers of each",
        ),
        (GOOD + "strategy: 8\n", "strategy is 8; a mapping is expected, with keys of tp, cp"),
        (GOOD + "strategy: {tp: 0}\n", "strategy.tp is 0"),
        (GOOD + "strategy: {zero_stage: 4}\n", "strategy.zero_stage is 4"),
        (GOOD + "strategy: {layers_per_stage: '7,x'}\n", "strategy.layers_per_stage is 'x'"),
        ("cluster: c\nglobal_batch_size: 1\nsequence_length: 1\n", "model is missing: give --model"),
        ("model: m\nglobal_batch_size: 1\nsequence_length: 1\n", "cluster is missing: give --cluster"),
        ("model: m\ncluster: c\nglobal_batch_size: 1\n", "sequence_length is missing: give --seq-len"),
        ("model: m\ncluster: c\nsequence_length: 1\n", "global_batch_size is missing: give --global-batch"),
    ],
)
def test_bad_file_is_refused_in_one_sentence(job: Any, text: str, says: str) -> None:
    with pytest.raises(MeshwrightError, match=says) as error:
        job(text)
    assert len(str(error.value)) < 500
    assert not re.search(r"constrained|dict\[|tuple|Schema|dictionary", str(error.value))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"sequence_length": "eight"}, "^--seq-len is 'eight'"),
        ({"global_batch_size": "0"}, "^--global-batch is '0'"),
        (
            {"global_batch_size": "1", "global_batch_tokens": "8192"},
            "^--global-batch-tokens cannot stand beside",
        ),
        ({"time_limit_s": float("nan")}, "^--time-limit is nan"),
        ({"tp": 0}, "^--tp is 0"),
        ({"recompute": ""}, "^--recompute is ''; a mode"),
        ({"layers_per_stage": ""}, "^--layers-per-stage is ''; the layers of each chunk"),
        ({"tuning": ""}, "^--tuning is ''; text such as lora"),
        ({"zero_stage": 7}, "^--zero is 7"),
        ({"pins": ["tp:4"]}, "'tp:4' is no rule"),
        ({"tp": 2, "plan": Path("plan.json")}, "^--tp cannot stand beside --plan"),
    ],
)
def test_bad_flag_is_refused_by_its_name(job: Any, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(MeshwrightError, match=says):
        job(GOOD, **flags)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "missing"),
        (lambda p: p.mkdir(), "a folder"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00binary"), "UTF-8"),
        (lambda p: p.write_text("#" * 2**20), "at most"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "job.yaml"
    make(path)
    with pytest.raises(MeshwrightError, match=says):
        read_request({"job_file": path})


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["4", "tp=4", "<=8", "!3", ">=x", "a,b", "1e5", "inf", "nan", "²", "--3"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["min", "max", "tp"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from([*JobSchema.model_fields, *StrategySchema.model_fields])
RULES = st.tuples(
    st.sampled_from([*DECISIONS, "tq"]),
    st.sampled_from(["=", "<=", ">=", "!", "!=", "<"]),
    st.text(max_size=4) | st.sampled_from(["4", "1,2", "on", "full", "tp,dp,pp", "²", "--3"]),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_whatever_is_given_is_a_job_or_a_sentence(given_values: dict[str, Any]) -> None:
    needed = {"model": "m", "cluster": "c", "global_batch_size": 8, "sequence_length": 8}
    try:
        request = read_request({**needed, **given_values})
        Job.from_mapping(request.job)
    except MeshwrightError as error:
        assert str(error)
        return
    assert request.job["global_batch_size"] >= 1


@settings(max_examples=300, deadline=None)
@given(st.lists(RULES.map("".join), max_size=3))
def test_whatever_rules_are_given_leave_a_value_or_are_refused(rules: list[str]) -> None:
    try:
        choices = read_pins(rules)
    except MeshwrightError:
        return
    for choice in choices.values():
        assert choice.allowed is None or any(map(choice.admits, choice.allowed))


@given(st.integers(1, 4000), st.sampled_from(["k", "K", " k"]))
def test_a_length_may_be_told_in_units_of_1024_as_contexts_are_named(n: int, unit: str) -> None:
    for key in ("sequence_length", "target_length", "image_tokens"):
        assert getattr(JobSchema.model_validate({key: f"{n}{unit}"}), key) == n * 1024
    assert JobSchema.model_validate({"sequence_length": "1M"}).sequence_length == 1024**2
    assert JobSchema.model_validate({"sequence_length": f"{n}.5k"}).sequence_length == n * 1024 + 512


@given(st.integers(1, 999), st.sampled_from(list(enumerate("kMBT", 1))))
def test_the_tokens_of_a_run_may_be_told_in_decimal_units(n: int, unit: tuple[int, str]) -> None:
    power, letter = unit
    assert JobSchema.model_validate({"tokens": f"{n}{letter}"}).tokens == n * 1000**power
    assert (
        JobSchema.model_validate({"tokens": f"{n}.7{letter}"}).tokens
        == n * 1000**power + 7 * 1000**power // 10
    )


@pytest.mark.parametrize("key", ["global_batch_size", "global_batch_tokens"])
def test_a_batch_in_units_is_refused_with_both_numbers_that_it_may_mean(job: Any, key: str) -> None:
    text = GOOD.replace("global_batch_size: 128\n", "")
    with pytest.raises(MeshwrightError, match=f"{key} is '4k'.*4000 or 4096"):
        job(text + f"{key}: 4k\n")


@pytest.mark.parametrize("written", ["0k", "9999999999T"])
def test_a_number_out_of_bounds_is_not_met_with_two_that_are_too(job: Any, written: str) -> None:
    with pytest.raises(MeshwrightError, match="sequence_length is") as caught:
        job(GOOD.replace("8192", written))
    assert "; write" not in str(caught.value)


@pytest.mark.parametrize("written", ["8q", "k", "8kk", "-8k", "0k", "8k tokens"])
def test_a_length_that_is_none_is_refused(job: Any, written: str) -> None:
    with pytest.raises(MeshwrightError, match="sequence_length"):
        job(GOOD.replace("8192", written))
