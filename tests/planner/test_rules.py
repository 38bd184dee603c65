"""Each rule has a mesh that breaks it, and the message names the rule."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.meshes import one_mesh
from meshwright.planner.pins import read_pins
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.rules import check_mesh, legal, rules
from meshwright.planner.space import enumerate_meshes, space
from tests.planner.emit.cases import cluster, model

GOOD: dict[str, Any] = {
    "tp": 4,
    "pp": 2,
    "dp": 2,
    "vpp": 1,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "num_microbatches": 64,
    "sequence_parallel": True,
    "placement": ("tp", "dp", "pp"),
    "schedule": "1f1b",
}


def _problem(pins: dict[str, Any] | None = None, **job: Any) -> Problem:
    work = {"global_batch_size": 128, "sequence_length": 8192, **job}
    return Problem(model(), cluster("dgx-h100:2"), Job(**work, choices=read_pins(pins or {})))


BROKEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"tp": 8}, {}, "device count: tp x cp x pp x dp equals 16 devices (here 32)"),
    ({"tp": 16}, {"allow_idle": True}, "device count: tp x cp x pp x dp is at most 16 devices"),
    ({"num_microbatches": 63}, {}, "batch divisible"),
    ({"tp": 3}, {}, "tp divides attention heads: tp divides the 32 attention heads"),
    ({"tp": 6}, {}, "nor does tp 6 divide the 8 key/value heads"),
    ({"tp": 3}, {}, "nor does tp 3 divide the 8 key/value heads and the 14336 ffn columns"),
    ({"tp": 200_000}, {}, "tp within the vocabulary"),
    ({"tp": 1, "dp": 8}, {}, "sequence parallelism divides the length"),
    ({}, {"sequence_length": 8191}, "sequence parallelism divides the length"),
    ({"pp": 35}, {}, "a layer for each chunk: pp x vpp is at most 34"),
    ({}, {"target": "fsdp"}, "target tensor"),
    ({}, {"target": "fsdp"}, "target pipeline"),
    ({}, {"target": "deepspeed"}, "target tensor with a pipeline"),
    (
        {"offload": "optimizer"},
        {"target": "deepspeed"},
        "target offload with a pipeline: with a pipeline DeepSpeed",
    ),
    ({}, {"target": "fsdp"}, "target sequence parallelism"),
    ({}, {"target": "fsdp"}, "target ZeRO: FSDP2 through Accelerate has ZeRO [2, 3]"),
    ({"zero_stage": 3}, {}, "ZeRO with a pipeline"),
    ({"schedule": "gpipe"}, {"target": "deepspeed"}, "target schedule"),
    ({"vpp": 2}, {}, "interleaving: "),
    ({"schedule": "zbv"}, {}, "pp, vpp and micro-batches (zbv: vpp = 1: V-shaped, needs exactly 2 chunks"),
    (
        {"pp": 2_000_000_000, "vpp": 2_000_000_000},
        {},
        "a layer for each chunk: pp x vpp is at most 34 layers",
    ),
    ({"schedule": "interleaved"}, {}, "interleaving: "),
    (
        {
            "schedule": "interleaved",
            "vpp": 2,
            "pp": 4,
            "dp": 1,
            "micro_batch_size": 64,
            "num_microbatches": 2,
        },
        {},
        "micro-batches fill the groups",
    ),
]


@pytest.mark.parametrize(("mesh", "job", "told"), BROKEN, ids=[told[:30] for _, _, told in BROKEN])
def test_a_broken_rule_is_named(mesh: dict[str, Any], job: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        check_mesh(_problem(**job), one_mesh(**{**GOOD, **mesh}))
    assert told in str(error.value)


PINNED = [
    ("tp", 2),
    ("pp", "<=1"),
    ("dp", ">=4"),
    ("vpp", ">=2"),
    ("zero_stage", "!1"),
    ("micro_batch_size", 2),
    ("num_microbatches", "<=32"),
    ("sequence_parallel", False),
    ("schedule", "gpipe"),
    ("placement", "tp,pp,dp"),
]


@pytest.mark.parametrize(("name", "value"), PINNED)
def test_a_pin_that_is_broken_is_named(name: str, value: Any) -> None:
    with pytest.raises(MeshwrightError, match=f"pin {name}"):
        check_mesh(_problem({name: value}), one_mesh(**GOOD))


def test_a_good_mesh_passes_and_breaks_nothing() -> None:
    problem, mesh = _problem(), one_mesh(**GOOD)
    check_mesh(problem, mesh)
    passed, discarded = legal(problem, mesh)
    assert passed.all() and not discarded


def test_what_is_discarded_is_counted_once_each() -> None:
    problem = _problem({"micro_batch_size": "<=2", "num_microbatches": "!16"})
    meshes = enumerate_meshes(problem)
    passed, discarded = legal(problem, meshes)
    assert int(passed.sum()) + sum(discarded.values()) == len(meshes)
    assert {"pin micro_batch_size", "pin num_microbatches"} <= set(discarded)


def test_names_of_rules_are_distinct() -> None:
    names = [rule.name for rule in rules(_problem({"tp": 4, "pp": 2}))]
    assert len(names) == len(set(names))


def _on(support: dict[str, Any], **job: Any) -> Problem:
    base, device = _problem(**job), load_accelerator("h100-sxm")
    lacking = replace(device, support=replace(device.support, **support))
    return Problem(base.model, replace(base.cluster, accelerator=lacking), base.job)


LACKING: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"training": False}, {}, "cannot train"),
    (
        {"dtypes": frozenset({"fp16", "fp32"})},
        {},
        r"does not compute in bf16; it has fp16, fp32; choose another",
    ),
    ({"targets": frozenset()}, {"target": "deepspeed"}, "deepspeed does not run"),
    ({"targets": frozenset({"fsdp"})}, {"target": "deepspeed"}, "supported there: any, fsdp"),
]


@pytest.mark.parametrize(("support", "job", "told"), LACKING)
def test_what_no_mesh_can_mend_is_refused(support: dict[str, Any], job: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshwrightError, match=told):
        check_problem(_on(support, **job))


def test_parallelisms_that_the_accelerator_lacks_are_rules() -> None:
    with pytest.raises(MeshwrightError, match="accelerator lacks tp"):
        check_mesh(_on({"parallelisms": frozenset({"dp", "pp"})}), one_mesh(**GOOD))


def test_learned_positions_limit_the_length() -> None:
    gpt2 = load_model("gpt2")
    job = Job(global_batch_size=128, sequence_length=2048)
    with pytest.raises(MeshwrightError, match="exceeds the 1024 learned positions"):
        check_problem(Problem(gpt2, cluster("dgx-h100:2"), job))
    check_problem(Problem(gpt2, cluster("dgx-h100:2"), replace(job, sequence_length=1024)))


@pytest.mark.parametrize(
    ("name", "source", "most"), [("BART-large.json", 1024, 1024), ("whisper-large-v3", 1500, 448)]
)
def test_learned_positions_limit_the_target(name: str, source: int, most: int) -> None:
    graph = load_model(str(MIXTRAL.with_name(name)) if name.endswith("json") else name)

    def check(target: int | None, source: int = source) -> None:
        job = Job(global_batch_size=128, sequence_length=source, target_length=target)
        check_problem(Problem(graph, cluster("dgx-h100:2"), job))

    check(most)
    check(None, source=most)
    with pytest.raises(MeshwrightError, match=f"target_length: {most + 1} exceeds the {most} learned"):
        check(most + 1)
    if source > most:
        with pytest.raises(
            MeshwrightError, match=f"target_length: {source} .*not given.* exceeds the {most}"
        ):
            check(None)


def test_relative_positions_limit_no_target() -> None:
    graph = load_model(str(MIXTRAL.with_name("T5-v1.1-XXL.json")))
    job = Job(global_batch_size=128, sequence_length=512, target_length=65536)
    check_problem(Problem(graph, cluster("dgx-h100:2"), job))


def test_without_a_vocabulary_no_degree_is_too_wide_for_it() -> None:
    problem = replace(_problem(), base=replace(model(), vocab_size=0))
    check_mesh(problem, one_mesh(**GOOD))
    assert len(space(problem)[0]) == len(space(_problem())[0])


def test_key_value_heads_may_be_replicated() -> None:
    """Llama-3.1-8B has 8 key/value heads: 16 tensor ranks hold each twice."""
    mesh = one_mesh(**{**GOOD, "tp": 16, "pp": 1, "dp": 1, "num_microbatches": 128})
    check_mesh(_problem(), mesh)
    assert np.asarray(mesh.tp).tolist() == [16]


MIXTRAL = Path(__file__).resolve().parents[1] / "data" / "hf_configs" / "Mixtral-8x7B.json"
WIDE = {**GOOD, "tp": 2, "cp": 2, "pp": 2, "dp": 2, "ep": 4}


def _wide(**job: Any) -> Problem:
    work = {"global_batch_size": 128, "sequence_length": 8192, **job}
    return Problem(load_model(str(MIXTRAL)), cluster("dgx-h100:2"), Job(**work))


WIDE_BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"ulysses": 4}, "ulysses divides cp: ulysses is a part of cp (ulysses 4 does not divide cp 2)"),
    ({"cp": 3}, "cp divides the length: 2 x cp divides 8192 tokens"),
    ({"ulysses": 3}, "ulysses divides cp"),
    ({"cp": 32, "ulysses": 32}, "tp x ulysses divides attention heads"),
    ({"ep": 3}, "ep divides experts: ep divides the 8 experts"),
    ({"etp": 3}, "etp divides expert columns"),
    ({"ep": 8, "etp": 2}, "experts are folded"),
    ({"placement": ("tp", "cp", "pp", "dp"), "cp": 3}, "experts are folded"),
    ({"sequence_parallel": False}, "experts need sequence parallelism"),
    ({"dp_replicate": 4}, "copies of shards"),
    ({"dp_replicate": 2, "zero_stage": 0}, "copies of shards"),
    ({"cp": 1, "dp_replicate": 2}, "copies of shards"),
    ({"dp_replicate": 2, "placement": ("tp", "dp", "cp", "pp")}, "experts are folded"),
    ({"hpz": 2}, "secondary shards"),
    ({"hpz": 4, "zero_stage": 3}, "secondary shards"),
]


@pytest.mark.parametrize(("mesh", "told"), WIDE_BROKEN, ids=[told[:30] for _, told in WIDE_BROKEN])
def test_a_broken_rule_of_context_experts_or_copies_is_named(mesh: dict[str, Any], told: str) -> None:
    check_mesh(_wide(), one_mesh(**WIDE))
    with pytest.raises(MeshwrightError) as error:
        check_mesh(_wide(), one_mesh(**{**WIDE, **mesh}))
    assert told in str(error.value)


def test_models_without_experts_have_no_expert_degree() -> None:
    with pytest.raises(MeshwrightError, match="has no experts: ep and etp are 1"):
        check_mesh(_problem(), one_mesh(**{**GOOD, "ep": 2}))


@pytest.mark.parametrize("name", ["T5-v1.1-XXL", "Jamba-v0.1"])
def test_sequences_that_cannot_be_cut_have_no_context_degree(name: str) -> None:
    graph = load_model(str(MIXTRAL.with_name(f"{name}.json")))
    problem = Problem(graph, cluster("dgx-h100:2"), Job(global_batch_size=128, sequence_length=8192))
    with pytest.raises(MeshwrightError, match="sequences can be split"):
        check_mesh(problem, one_mesh(**{**GOOD, "cp": 2, "dp": 1}))


@pytest.mark.parametrize(("what", "stage"), [("optimizer", 0), ("parameters", 1)])
def test_what_is_gathered_whole_stays_on_the_device(what: str, stage: int) -> None:
    with pytest.raises(MeshwrightError, match="offloaded states are split"):
        check_mesh(_problem(), one_mesh(**{**GOOD, "offload": what, "zero_stage": stage}))


def test_offload_needs_a_link_to_the_host() -> None:
    base = _problem()
    device = replace(base.cluster.accelerator, host_link=None)
    alone = Problem(base.model, replace(base.cluster, accelerator=device), base.job)
    check_mesh(base, one_mesh(**GOOD, offload="optimizer"))
    with pytest.raises(MeshwrightError, match="has no link to host memory"):
        check_mesh(alone, one_mesh(**GOOD, offload="optimizer"))


@pytest.mark.parametrize(
    ("target", "degree"),
    [(t, d) for t in ("deepspeed", "fsdp") for d in ("ep", "etp", "ulysses")]
    + [("deepspeed", "cp"), ("deepspeed", "dp_replicate"), ("fsdp1", "cp"), ("fsdp", "hpz")],
)
def test_targets_without_a_word_for_a_degree_refuse_it(target: str, degree: str) -> None:
    plain = {**GOOD, "tp": 1, "pp": 1, "dp": 16, "sequence_parallel": False, "zero_stage": 3}
    with pytest.raises(MeshwrightError, match=f"target {degree}: "):
        check_mesh(_problem(target=target), one_mesh(**{**plain, degree: 2}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("cp", ">=2"), ("ep", 2), ("kv_exchange", "all_gather"), ("offload", "parameters"), ("ulysses", ">=2")],
)
def test_pins_on_wide_decisions_are_named(name: str, value: Any) -> None:
    with pytest.raises(MeshwrightError, match=f"pin {name}"):
        check_mesh(_problem({name: value}), one_mesh(**GOOD))


def test_a_cause_is_told_once() -> None:
    """The same ranks break several rules; the heads that context ranks exchange are those of tensor ranks."""
    with pytest.raises(MeshwrightError) as told:
        check_mesh(_problem(), one_mesh(**GOOD | {"tp": 3, "dp": 1}))
    text = str(told.value)
    assert text.count("32 attention heads") == text.count("14336 ffn columns") == 1
    assert "tp x ulysses" not in text
    with pytest.raises(MeshwrightError, match="tp x ulysses divides attention heads"):
        check_mesh(_problem(), one_mesh(**GOOD | {"cp": 16, "ulysses": 16}))
