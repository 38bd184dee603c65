"""Plans survive JSON, and a malformed plan is refused by the field that is wrong."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import SCHEMA_VERSION, Plan
from tests.planner.emit.cases import case
from tests.strategies import launchable


def _data(**changes: Any) -> dict[str, Any]:
    _, plan = case(tp=4, pp=2, recompute="0-3:full,4-31:none")
    return {**copy.deepcopy(plan.to_dict()), **changes}


@settings(max_examples=30, deadline=None)
@given(launchable())
def test_a_plan_survives_json(drawn: Any) -> None:
    _, plan = drawn
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_dict(plan.to_dict()) == plan


def test_layers_of_a_rank_and_devices_follow_from_the_degrees() -> None:
    _, plan = case(tp=2, pp=2, vpp=2, micro_batch_size=1)
    assert plan.num_devices == plan.tp * plan.pp * plan.dp == 16
    layers = [plan.stage_layers(rank) for rank in range(plan.pp)]
    assert sorted(i for own in layers for i in own) == list(range(plan.num_layers))
    assert json.loads(plan.to_json())["schema_version"] == SCHEMA_VERSION


MALFORMED = [
    ({"schema_version": 99}, "schema_version 99"),
    ({"schema_version": None}, "schema_version"),
    ({"tp": 0}, "tp is 0"),
    ({"tp": -4}, "tp is -4"),
    ({"tp": 2.0}, "tp is 2.0"),
    ({"tp": "4"}, "tp is '4'"),
    ({"tp": True}, "tp is True"),
    ({"tp": None}, "tp is None"),
    ({"tp": [4]}, "tp is"),
    ({"pp": 0}, "pp is 0"),
    ({"dp": 2**41}, "dp is"),
    ({"vpp": 0}, "vpp is 0"),
    ({"zero_stage": -1}, "zero_stage is -1"),
    ({"zero_stage": 4}, "zero_stage is 4; a whole number from 0 to 3"),
    ({"parameters": 10**16}, "parameters is"),
    ({"micro_batch_size": 0}, "micro_batch_size"),
    ({"num_microbatches": 1.5}, "num_microbatches"),
    ({"global_batch_size": {}}, "global_batch_size"),
    ({"sequence_length": "8k"}, "sequence_length"),
    ({"sequence_parallel": 1}, "sequence_parallel is 1"),
    ({"sequence_parallel": "yes"}, "sequence_parallel"),
    ({"model": 7}, "model is 7"),
    ({"cluster": None}, "cluster is None"),
    ({"schedule": 1}, "schedule is 1"),
    ({"placement": "tp,dp,pp"}, "placement"),
    ({"cp": 0}, "cp is 0"),
    ({"ep": 1.0}, "ep is 1.0"),
    ({"dp_replicate": True}, "dp_replicate is True"),
    ({"target_length": 0}, "target_length is 0"),
    ({"image_tokens": "many"}, "image_tokens"),
    ({"expert_load": 0.5}, "expert_load is 0.5"),
    ({"headroom": 1}, "headroom is 1; a number from 0 to below 1"),
    ({"headroom": -0.1}, "headroom is -0.1"),
    ({"headroom": True}, "headroom is True"),
    ({"kv_exchange": "mesh"}, "kv_exchange is 'mesh'; ring or all_gather"),
    ({"offload": "disk"}, "offload is 'disk'"),
    ({"tuning": None}, "tuning is None"),
    ({"placement": None}, "placement"),
    ({"chunks": {}}, "chunks"),
    ({"chunks": [1]}, "chunk 1"),
    ({"chunks": [{"rank": 0, "start": 0}]}, "rank, start and stop"),
    ({"chunks": [{"rank": 0, "start": 0, "stop": 34, "more": 1}]}, "rank, start and stop"),
    ({"chunks": [{"rank": 0, "start": -1, "stop": 34}]}, "non-negative"),
    ({"chunks": [{"rank": 0, "start": 0, "stop": "34"}]}, "non-negative"),
    ({"chunks": [{"rank": False, "start": 0, "stop": 34}]}, "non-negative"),
    ({"recompute": "full"}, "recompute"),
    ({"recompute": ["some"]}, "recompute 'some'"),
    ({"surplus": 1}, "'surplus' is unknown"),
]


@pytest.mark.parametrize(("changes", "told"), MALFORMED, ids=[str(c)[:40] for c, _ in MALFORMED])
def test_a_malformed_plan_is_refused_by_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        Plan.from_dict(_data(**changes))
    assert told in str(error.value)


ABSENT = {"headroom": 0.04, "parameters": None, "hidden_size": None, "recompute_modules": ()}


@pytest.mark.parametrize("name", sorted(set(_data()) - {"schema_version", *ABSENT}))
def test_a_missing_field_is_named(name: str) -> None:
    data = _data()
    del data[name]
    with pytest.raises(MeshwrightError, match=f"'{name}' is missing"):
        Plan.from_dict(data)


@pytest.mark.parametrize("name", ABSENT)
def test_a_plan_of_before_a_field_has_its_usual_value(name: str) -> None:
    given = {"headroom": 0.1, "parameters": 5, "hidden_size": 5, "recompute_modules": ("mlp",)}
    data = _data(**given)
    assert getattr(Plan.from_dict(data), name) == given[name]
    del data[name]
    assert getattr(Plan.from_dict(data), name) == ABSENT[name]


def test_a_plan_tells_its_model_apart() -> None:
    problem, plan = case()
    assert (plan.parameters, plan.hidden_size) == (problem.base.parameters, problem.base.hidden_size)
    assert plan.parameters == 8_030_261_248


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"plan"', "[" * 100_000])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(MeshwrightError, match="plan: "):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace('"tp": ', '"tp": 1, "tp": ', 1), "given twice"),
        (lambda text: text.replace('"tp": ', '"tp": ' + "9" * 5000, 1), "not JSON"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": true', 1), "schema_version"),
        (lambda text: "[]", "a mapping is expected"),
    ],
)
def test_text_that_holds_a_spoilt_plan_is_refused(change: Any, told: str) -> None:
    with pytest.raises(MeshwrightError, match=told):
        Plan.from_json(change(json.dumps(_data())))


@pytest.mark.parametrize(
    "placement", [[], ["tp"], ["pp", "tp", "dp"], ["tp", "dp", "pp"], [["tp"], 1, 2], [None, None, None]]
)
def test_placements_that_are_none_are_refused(placement: list[Any]) -> None:
    with pytest.raises(MeshwrightError, match="placement"):
        Plan.from_dict(_data(placement=placement))


LATER = ("cp", "dp_replicate", "ep", "etp", "hpz", "ulysses", "kv_exchange", "offload", "tuning")
LATER += ("expert_load", "target_length", "image_tokens", *ABSENT)


@pytest.mark.parametrize("placement", ["tp,dp,pp", "tp,pp,dp"])
def test_a_plan_of_version_1_is_read_as_what_it_was(placement: str) -> None:
    """Version 1 knew three dimensions and no expert, context or hybrid degree."""
    _, plan = case(tp=4, pp=2, placement=placement, recompute="0-3:full,4-31:none")
    old = {k: v for k, v in plan.to_dict().items() if k not in LATER}
    old |= {"schema_version": 1, "placement": placement.split(",")}
    assert Plan.from_dict(old) == replace(plan, **ABSENT)
    del old["tp"]
    with pytest.raises(MeshwrightError, match="'tp' is missing"):
        Plan.from_dict(old)


@pytest.mark.parametrize("value", ["x" * 10**6, 10**4000])
@pytest.mark.parametrize("name", ["zero_stage", "kv_exchange", "chunks", "sequence_parallel"])
def test_an_endless_value_is_told_in_a_line(name: str, value: object) -> None:
    with pytest.raises(MeshwrightError, match=f"plan: {name} is ") as caught:
        Plan.from_dict(_data(**{name: value}))
    assert len(str(caught.value)) < 300
