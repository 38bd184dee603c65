"""Meshes: batches of decisions, and how their dimensions lie on the topology."""

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import given, settings

from meshwright.planner.meshes import Meshes, mesh_of
from meshwright.planner.space import space
from tests.planner.emit.cases import case
from tests.referees.problems import random_problem
from tests.strategies import launchable


@settings(max_examples=30, deadline=None)
@given(launchable())
def test_a_plan_and_its_mesh_agree(drawn: Any) -> None:
    _, plan = drawn
    mesh = mesh_of(plan)
    assert mesh.decisions(0) == {f.name: getattr(plan, f.name) for f in fields(Meshes)}
    assert mesh.devices.tolist() == [plan.num_devices]


def test_strides_multiply_from_the_innermost_dimension_out() -> None:
    _, inner = case(tp=2, pp=4, placement="tp,dp,pp")
    _, outer = case(tp=2, pp=4, placement="tp,pp,dp")
    one, two = (mesh_of(plan).strategies() for plan in (inner, outer))
    assert (one.data_stride[0], one.pipeline_stride[0]) == (2, 4)
    assert (two.data_stride[0], two.pipeline_stride[0]) == (8, 2)


def test_a_part_of_a_batch_is_the_same_meshes() -> None:
    meshes, _ = space(random_problem(12, 4, 4))
    some = meshes.take(np.arange(len(meshes)) % 3 == 1)
    assert [some.decisions(i) for i in range(len(some))] == [
        meshes.decisions(i) for i in range(1, len(meshes), 3)
    ]


def test_a_description_tells_what_differs_from_the_plain_mesh() -> None:
    _, plain = case(tp=1, pp=1, dp=16, zero_stage=3)
    _, rich = case(tp=2, pp=2, vpp=2, micro_batch_size=2)
    assert mesh_of(plain).describe(0) == "tp 1, pp 1, dp 16, ZeRO-3, micro-batch 1 x 8"
    assert mesh_of(rich).describe(0) == (
        "tp 2, pp 2, dp 4, vpp 2, ZeRO-1, micro-batch 2 x 16, sequence parallel"
    )
