"""Pins as people write them: what is read, and what is refused with the reason."""

from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.pins import read_pins


@pytest.mark.parametrize(
    ("rules", "name", "wanted"),
    [
        (["tp=4"], "tp", Choice(allowed=frozenset({4}))),
        ([" tp == 4 "], "tp", Choice(allowed=frozenset({4}))),
        (["tp=2,4"], "tp", Choice(allowed=frozenset({2, 4}))),
        (["tp<=8"], "tp", Choice(maximum=8)),
        (["tp >= 2", "tp<=8"], "tp", Choice(minimum=2, maximum=8)),
        (["zero_stage!3"], "zero_stage", Choice(forbidden=frozenset({3}))),
        (["zero_stage!=3", "zero_stage!2"], "zero_stage", Choice(forbidden=frozenset({2, 3}))),
        (["sequence_parallel=off"], "sequence_parallel", Choice(allowed=frozenset({False}))),
        (["schedule=1f1b,gpipe"], "schedule", Choice(allowed=frozenset({"1f1b", "gpipe"}))),
        (["recompute=none,full"], "recompute", Choice(allowed=frozenset({"none", "full"}))),
        (["placement=tp,pp,cp,dp"], "placement", Choice(allowed=frozenset({"tp,pp,cp,dp"}))),
        (["placement=tp, pp, dp"], "placement", Choice(allowed=frozenset({"tp,cp,pp,dp"}))),
        (["placement!tp,pp,dp"], "placement", Choice(forbidden=frozenset({"tp,cp,pp,dp"}))),
        ({"placement": ["tp", "dp", "pp"]}, "placement", Choice(allowed=frozenset({"tp,cp,dp,pp"}))),
        (
            {"placement": ["tp,dp,pp", "tp,pp,dp"]},
            "placement",
            Choice(allowed=frozenset({"tp,cp,dp,pp", "tp,cp,pp,dp"})),
        ),
        ({"tp": 4}, "tp", Choice(allowed=frozenset({4}))),
        ({"tp": [2, 4]}, "tp", Choice(allowed=frozenset({2, 4}))),
        ({"tp": "<=8"}, "tp", Choice(maximum=8)),
        ({"pp": {"min": 2, "max": 8}}, "pp", Choice(minimum=2, maximum=8)),
        ({"sequence_parallel": True}, "sequence_parallel", Choice(allowed=frozenset({True}))),
        (["tp=2,4", "tp!4"], "tp", Choice(allowed=frozenset({2, 4}), forbidden=frozenset({4}))),
    ],
)
def test_rule_becomes_choice(rules: Any, name: str, wanted: Choice) -> None:
    assert read_pins(rules) == {name: wanted}


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (["tp"], "'tp' is no rule"),
        (["tp="], "is no rule"),
        (["tp<8"], "is no rule"),
        (["=4"], "is no rule"),
        ([""], "is no rule"),
        (["tq=4"], "'tq' is not known; did you mean tp"),
        (["tp=four"], "tp cannot be 'four'; allowed: positive integers"),
        (["tp=0"], "tp cannot be 0"),
        (["tp=-2"], "tp cannot be -2"),
        (["tp=true"], "tp cannot be True"),
        (["tp<=many"], "'many' is not a number"),
        (["tp<=nan"], "finite numbers"),
        (["tp<=inf"], "finite numbers"),
        (["tp=4", "tp=8"], "leave no value"),
        (["tp=4", "tp!4"], "leave no value"),
        (["tp>=8", "tp<=4"], "leave no value"),
        (["tp=16", "tp<=8"], "leave no value"),
        (["zero_stage=4"], "allowed: 0, 1, 2 and 3"),
        (["schedule=zigzag"], "allowed: gpipe, 1f1b, 1f1b_ahead, interleaved"),
        (["schedule<=3"], "schedule has no order"),
        (["recompute=sometimes"], "allowed: none, selective, moe, offload, full"),
        (["kv_exchange=mesh"], "allowed: ring and all_gather"),
        (["offload=disk"], "allowed: none, optimizer, parameters"),
        (["ep=0"], "ep cannot be 0"),
        (["ulysses<=0"], "leave no value"),
        (["offload<=1"], "offload has no order"),
        (["sequence_parallel=2"], "allowed: true and false"),
        (["placement=dp,tp,pp"], "allowed: tp,cp,dp,pp and tp,cp,pp,dp and tp,dp,cp,pp"),
        ({"tp": None}, "tp cannot be None"),
        ({"tp": 2.5}, "tp cannot be 2.5"),
        ({"tp": []}, "a value, a list of values"),
        ({"tp": [[1]]}, "a value, a list of values"),
        ({"tp": {"least": 2}}, "a value, a list of values"),
        ({"tp": {}}, "a value, a list of values"),
        ({"tp": {"min": "two"}}, "finite numbers"),
    ],
)
def test_bad_rule_is_refused_with_the_reason(rules: Any, says: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        read_pins(rules)
    assert says in str(error.value)


def test_choices_pass_through_as_they_are() -> None:
    """The command line reads pins, and the job reads them again."""
    first = read_pins({"placement": "tp, pp, dp", "tp": "<=4"})
    assert read_pins(first) == first


@pytest.mark.parametrize(
    "rules",
    [
        ["recompute!none", "recompute!full", "recompute!selective", "recompute!moe", "recompute!offload"],
        ["kv_exchange!ring", "kv_exchange!all_gather"],
        ["zero_stage>=5"],
        ["tp<=0"],
        ["tp>=1.2", "tp<=1.5"],
        ["zero_stage!0", "zero_stage!1", "zero_stage!2", "zero_stage!3"],
    ],
)
def test_rules_that_leave_nothing_are_refused(rules: list[str]) -> None:
    with pytest.raises(MeshwrightError, match="leave no value"):
        read_pins(rules)
