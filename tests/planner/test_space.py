"""The space holds every mesh that the rules allow, once, and none besides."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.profile import Profile
from meshwright.planner.degree_group import most_samples
from meshwright.planner.field import survey
from meshwright.planner.importers import PRESETS
from meshwright.planner.job import Job
from meshwright.planner.meshes import Meshes, mesh_of
from meshwright.planner.model_rules import MOST_CHUNKS, MOST_MICROBATCHES
from meshwright.planner.pins import read_pins
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.rules import legal
from meshwright.planner.space import divisors, enumerate_meshes, space
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import cluster, model
from tests.referees.exhaustive import every_mesh
from tests.referees.problems import random_problem
from tests.strategies import launchable


def mesh_key(meshes: Meshes, row: int, stack: Profile, experts: bool = False) -> tuple[Any, ...]:
    """Return a mesh under one name for all twins."""
    d = meshes.decisions(row)
    d["placement"] = tuple(dim for dim in d["placement"] if d[dim] > 1 and dim != "tp")
    if d["cp"] == d["ulysses"]:
        d["kv_exchange"] = ""
    alone = d["dp"] // d["dp_replicate"] * d["cp"] == 1
    if alone and d["offload"] == "none" and not (experts and d["tp"] > d["ep"] * d["etp"]):
        apart = {1: stack.flat_gradients, 3: not stack.working_copy}
        d["zero_stage"] = d["zero_stage"] if apart.get(d["zero_stage"]) else 0
    return tuple(d.values())


@pytest.mark.parametrize("seed", range(40))
def test_the_space_is_every_legal_mesh_once(seed: int) -> None:
    problem = random_problem(seed, 5, 8)
    own, _ = space(problem)
    stack = problem.profile
    found = [mesh_key(own, row, stack) for row in range(len(own))]
    every = every_mesh(problem)
    wanted = {mesh_key(every, row, stack) for row in range(len(every)) if equal_chunks(problem, every, row)}
    assert len(found) == len(set(found))
    assert set(found) == wanted


def equal_chunks(problem: Problem, meshes: Meshes, row: int) -> bool:
    """Return whether interleaved chunks can be equal but for one block at each end."""
    if meshes.vpp[row] == 1:
        return True
    blocks, chunks = len(problem.model.block_layers), int(meshes.pp[row] * meshes.vpp[row])
    return any((blocks + short) % chunks == 0 for short in (0, 1, 2))


@settings(max_examples=40, deadline=None)
@given(launchable())
def test_every_explicit_strategy_is_found_in_the_space(drawn: Any) -> None:
    problem, plan = drawn
    own, _ = space(problem)
    stack = problem.profile
    assert mesh_key(mesh_of(plan), 0, stack) in {mesh_key(own, row, stack) for row in range(len(own))}


@pytest.mark.parametrize("seed", range(10))
def test_rules_leave_the_space_as_it_is(seed: int) -> None:
    problem = random_problem(seed, 5, 8)
    assert legal(problem, space(problem)[0])[0].all()


def test_gpipe_is_searched_only_if_asked_for() -> None:
    job = {"global_batch_size": 16, "sequence_length": 1024}
    plain = Problem(model(), cluster("dgx-h100:1"), Job(**job))
    asked = Problem(model(), cluster("dgx-h100:1"), Job(**job, choices=read_pins({"schedule": "gpipe"})))
    assert set(np.unique(space(plain)[0].schedule)) == {"1f1b", "interleaved"}
    assert set(np.unique(space(asked)[0].schedule)) == {"gpipe"}


def test_a_space_without_a_mesh_is_empty() -> None:
    job = Job(16, 1024, target="deepspeed", choices=read_pins({"dp": 3}))
    assert len(enumerate_meshes(Problem(model(), cluster("dgx-h100:1"), job))) == 0


@settings(max_examples=40, deadline=None)
@given(launchable())
def test_no_plan_holds_less_than_its_widest_layer_hands_on(drawn: Any) -> None:
    problem, plan = drawn
    device, split = problem.cluster.accelerator.memory_bytes, plan.tp * plan.cp
    assert max(price_plan(problem, plan).peak_bytes) >= plan.micro_batch_size * device / (
        most_samples(problem) * split
    )


def test_a_batch_of_ten_thousands_of_divisors_makes_a_small_space() -> None:
    job = Job(866421317361600, 1024)
    problem = Problem(model(), cluster("dgx-h100:1"), job)
    assert len(enumerate_meshes(problem)) <= 2 * len(enumerate_meshes(replace(problem, job=Job(8, 1024))))
    assert set(space(problem)[1]) >= {"micro-batches within reach"}


def test_no_pipeline_of_a_model_of_thousands_of_layers_has_thousands_of_chunks(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads((PRESETS / "gpt2-xl.json").read_text()) | {"n_layer": 4096}))
    found, refused = space(Problem(model(str(path)), cluster("dgx-h100:1"), Job(8, 1024)))
    chunks = (found.pp * found.vpp)[found.vpp > 1]
    assert MOST_CHUNKS // 2 < chunks.max() <= MOST_CHUNKS
    assert "chunks within reach" in refused


@pytest.mark.parametrize("batch", [720, 720720, 73513440])
def test_only_micro_batches_that_cannot_be_run_are_left_out(batch: int) -> None:
    problem = Problem(model(), cluster("dgx-h100:1"), Job(batch, 1024))
    found = space(problem)[0]
    for tp, dp in {(int(tp), int(dp)) for tp, dp in zip(found.tp, found.dp, strict=True)}:
        each, most = batch // dp, most_samples(problem) * tp
        own = set(found.micro_batch_size[(found.tp == tp) & (found.dp == dp)].tolist())
        assert own >= {b for b in divisors(each) if each // b <= MOST_MICROBATCHES and b <= most}


@pytest.mark.parametrize("n", [1, 2, 12, 97, 360, 1024])
def test_divisors_are_all_and_rising(n: int) -> None:
    assert list(divisors(n)) == [d for d in range(1, n + 1) if n % d == 0]


@given(st.integers(1, 10**15))
@settings(max_examples=10, deadline=None)
def test_divisors_of_the_largest_batch_pair_up_to_it(n: int) -> None:
    found = divisors(n)
    assert [n // d for d in reversed(found)] == list(found) == sorted(set(found))
    assert all(n % d == 0 for d in found)


def test_the_largest_batches_have_all_their_divisors() -> None:
    assert len(divisors(10**15)) == 16 * 16  # 2^15 x 5^15
    assert len(divisors(866421317361600)) == 26880  # the most of any number below 10^15
    assert divisors(999999999999989) == (1, 999999999999989)  # a prime


def test_dense_copies_around_which_context_ranks_lie_have_their_place() -> None:
    job = {"global_batch_size": 16, "sequence_length": 98304, "pins": {"cp": 3, "tp": 2, "pp": 2}}
    found = survey(Problem.load("llama-3.2-1b", "dgx-h100:24", job)).meshes
    outside = found.stride("cp") > found.stride("pp")
    assert (outside & (found.dp_replicate > 1)).any()


@pytest.mark.parametrize("devices", [1, 8])
def test_a_recipe_that_needs_shards_has_meshes_on_any_number_of_devices(
    devices: int,
) -> None:
    job = {"global_batch_size": 8, "sequence_length": 512, "precision": "pure-bf16", "target": "deepspeed"}
    problem = Problem.load("gpt2", f"h100-sxm:{devices}", job)
    found = survey(problem).meshes
    assert len(found)
    assert (found.zero_stage > 0).all()
    assert make_plan(problem).zero_stage > 0
