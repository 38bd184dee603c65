"""Explicit strategies: sensible values for what is left out, and refusal by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import even_split, make_plan
from tests.planner.emit.cases import case


def test_what_is_left_out_is_what_a_practitioner_would_take() -> None:
    _, plan = case(tp=4, pp=2)
    assert (plan.dp, plan.zero_stage, plan.sequence_parallel, plan.schedule) == (2, 1, True, "1f1b")
    assert plan.placement == ("tp", "cp", "dp", "pp")
    assert set(plan.recompute) == {"none"}
    _, alone = case(tp=8, pp=2, dp=1)
    assert alone.zero_stage == 0
    _, interleaved = case(tp=4, pp=2, vpp=2)
    assert interleaved.schedule == "interleaved"
    _, sharded = case("fsdp")
    assert (sharded.tp, sharded.dp, sharded.zero_stage) == (1, 16, 2)


@given(st.integers(1, 300), st.integers(1, 64))
def test_an_even_split_is_even_and_shorter_at_the_ends(layers: int, chunks: int) -> None:
    sizes = even_split(layers, chunks)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    if chunks > 2:
        assert sizes[0] <= max(sizes[1:-1])
        assert sizes[-1] <= max(sizes[1:-1])


WAYS: list[Any] = [
    "0-3:full,10-12:selective",
    "0-3:full, 10-12:selective",
    {"0-3": "full", "10-12": "selective"},
    ["full"] * 4 + ["none"] * 6 + ["selective"] * 3 + ["none"] * 19,
]


@pytest.mark.parametrize("written", WAYS, ids=["text", "spaces", "mapping", "list"])
def test_ways_of_writing_recomputation_mean_the_same(written: Any) -> None:
    _, plan = case(tp=4, pp=2, recompute=written)
    blocks = plan.recompute[1:-1]
    assert [i for i, m in enumerate(blocks) if m == "full"] == [0, 1, 2, 3]
    assert [i for i, m in enumerate(blocks) if m == "selective"] == [10, 11, 12]


def test_one_block_and_given_stages() -> None:
    _, plan = case(tp=4, pp=2, recompute="5:full", layers_per_stage=[20, 12])
    assert [i for i, m in enumerate(plan.recompute) if m == "full"] == [6]
    assert [(c.rank, c.start, c.stop) for c in plan.chunks] == [(0, 0, 21), (1, 21, 34)]
    _, ends = case(tp=2, pp=4, layers_per_stage=[0, 16, 16, 0])
    assert [c.stop - c.start for c in ends.chunks] == [1, 16, 16, 1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tp": 0}, "tp: 0 is not a positive integer"),
    ({"tp": 2.0}, "tp: 2.0 is not a whole number"),
    ({"pp": True}, "pp: True"),
    ({"vpp": -1}, "vpp: -1"),
    ({"dp": 0}, "dp: 0"),
    ({"micro_batch_size": "2"}, "micro_batch_size"),
    ({"micro_batch_size": 2**40}, "micro_batch_size"),
    ({"zero_stage": 1.0}, "zero_stage"),
    ({"zero_stage": 4}, "target ZeRO"),
    ({"schedule": "zb"}, "schedule: 'zb' is not known"),
    ({"placement": "pp,tp,dp"}, "placement: 'pp,tp,dp'"),
    ({"placement": ("dp",)}, "placement: 'dp'"),
    ({"recompute": "some"}, "recompute: 'some'"),
    ({"recompute": ["full"]}, "1 modes are given for 32 layers"),
    ({"recompute": "0-40:full"}, "'0-40' is not a range FIRST-LAST (or one number) within 0-31"),
    ({"recompute": "0-:full"}, "'0-' is not a range FIRST-LAST"),
    ({"recompute": "-3:full"}, "'-3' is not a range FIRST-LAST"),
    ({"recompute": "every-2"}, "'every-2' is not every-N:MODE"),
    ({"recompute": "every-2:"}, "'every-2:' is not every-N:MODE"),
    ({"recompute": "moe"}, "no layer of llama-3.1-8b has experts"),
    ({"recompute": "0-3:moe"}, "no layer of llama-3.1-8b has experts"),
    ({"recompute": "3-1:full"}, "'3-1'"),
    ({"recompute": "a:full"}, "'a'"),
    ({"recompute": "\u00b2:full"}, "is not a range"),
    ({"recompute": "0-9999999999999:full"}, "is not a range"),
    ({"layers_per_stage": [32]}, "must be 2 numbers"),
    ({"layers_per_stage": [30, 3]}, "that sum to 32 layers"),
    ({"layers_per_stage": [33, -1]}, "that sum to 32 layers"),
    ({"layers_per_stage": [16, 16.0]}, "layers_per_stage"),
    ({"pp": 4, "tp": 2, "layers_per_stage": [16, 0, 8, 8]}, "has no layer"),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[told[:36] for _, told in REFUSED])
def test_a_bad_strategy_is_refused_by_field(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        case(**{"tp": 4, "pp": 2, **changes})
    assert told in str(error.value)


def test_a_target_with_one_mode_refuses_two() -> None:
    with pytest.raises(MeshwrightError, match="needs one mode for all layers"):
        case("megatron", recompute="0-3:full")
    with pytest.raises(MeshwrightError, match="'selective' is not available with DeepSpeed"):
        case("deepspeed", recompute="selective")


def test_the_plan_belongs_to_its_problem() -> None:
    problem, plan = case(tp=4, pp=2)
    assert make_plan(problem, tp=4, pp=2) == plan
    assert (plan.global_batch_size, plan.sequence_length) == (128, 8192)


def test_every_nth_block_recomputes_the_first_included() -> None:
    _, plan = case(tp=4, recompute="every-3:selective")
    modes = plan.recompute[1:-1]
    assert [i for i, mode in enumerate(modes) if mode == "selective"] == list(range(0, 32, 3))
    assert set(modes) == {"none", "selective"}


@pytest.mark.parametrize("text", ["every-0:full", "every-33:full", "every-x:full", "every-:full", "every-2"])
def test_every_nth_of_none_is_refused(text: str) -> None:
    with pytest.raises(MeshwrightError, match="recompute"):
        case(recompute=text)


def test_the_modes_of_experts_and_offloading_are_accepted() -> None:
    problem = Problem.load("mixtral-8x7b", "dgx-h100:2", {"global_batch_size": 128, "sequence_length": 4096})
    plan = make_plan(problem, tp=4, recompute="0-3:offload,4-7:moe")
    assert plan.recompute[1:9] == ("offload",) * 4 + ("moe",) * 4


def test_context_ranks_are_counted_among_the_devices() -> None:
    _, plan = case(cp=4)
    assert (plan.cp, plan.dp, plan.num_devices) == (4, 4, 16)
    assert plan.kv_exchange == "ring"
    assert plan.zero_stage == 1


@pytest.mark.parametrize(
    ("name", "value"), [("kv_exchange", "mesh"), ("offload", "disk"), ("cp", 0), ("hpz", -1), ("ep", 1.5)]
)
def test_wide_decisions_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(MeshwrightError, match=name):
        case(**{name: value})
