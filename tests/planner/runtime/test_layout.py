"""The device mesh has the plan's degrees in the plan's order, and blocks are the layers between the ends."""

from math import prod

import pytest
from hypothesis import given, settings

from meshwright.planner.plan import PLACEMENTS
from meshwright.planner.runtime.layout import block_range, mesh_shape
from tests.planner.emit.cases import case
from tests.strategies import launchable


@settings(max_examples=60, deadline=None)
@given(launchable("native"))
def test_the_mesh_has_every_device_once_in_the_order_of_the_placement(drawn) -> None:
    _, plan = drawn
    shape = mesh_shape(plan)
    assert prod(shape.values()) == plan.num_devices
    assert (shape["tp"], shape["pp"]) == (plan.tp, plan.pp)
    assert shape["dp_replicate"] * shape["dp_shard"] == plan.dp
    inward = [name.split("_")[0] for name in reversed(shape)]
    assert list(dict.fromkeys(inward)) == list(plan.placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_context_ranks_lie_where_the_placement_has_them(placement: tuple[str, ...]) -> None:
    degrees = {"tp": 2, "cp": 2, "pp": 2, "zero_stage": 2}
    _, plan = case("native", kv_exchange="all_gather", placement=",".join(placement), **degrees)
    shape = mesh_shape(plan)
    assert (shape["cp"], prod(shape.values())) == (2, plan.num_devices)
    inward = [name.split("_")[0] for name in reversed(shape)]
    assert list(dict.fromkeys(inward)) == list(placement)


@pytest.mark.parametrize(
    ("strategy", "copies", "shards"),
    [({"zero_stage": 0}, 16, 1), ({"zero_stage": 2}, 1, 16), ({"zero_stage": 3, "dp_replicate": 4}, 4, 4)],
)
def test_copies_lie_outside_shards(strategy: dict, copies: int, shards: int) -> None:
    _, plan = case("native", **strategy)
    assert list(mesh_shape(plan).items())[1:3] == [("dp_replicate", copies), ("dp_shard", shards)]


@settings(max_examples=60, deadline=None)
@given(launchable("native"))
def test_chunks_share_the_blocks_out(drawn) -> None:
    problem, plan = drawn
    found = [i for c in plan.chunks for i in block_range(plan, c.start, c.stop)]
    assert found == [layer - 1 for layer in problem.model.block_layers]
