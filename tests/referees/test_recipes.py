"""The exhaustive referee on drives, low-precision recipes and hybrids."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec, Sublayer
from meshwright.planner.field import survey
from meshwright.planner.gated_mixers import RecurrentBlock
from meshwright.planner.job import Job
from meshwright.planner.linear_attention import GatedDeltaNet
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pins import read_pins
from meshwright.planner.problem import Problem
from meshwright.planner.recurrent import Mamba, Mamba2
from meshwright.planner.search import TOLERANCE, search
from tests.referees.exhaustive import Everything, everything
from tests.referees.problems import machine, with_memory, with_profile

MOST_PLANS = 30_000
SEEDS = range(6)
RECIPES = ("fp8", "fp8-current", "fp8-block", "fp8-weights")
MIXERS: tuple[tuple[Sublayer, ...], ...] = (
    (SelfAttention(), Mamba2(8, 16, 2, 32)),
    (Mamba(128, 8, 4), SelfAttention(), Mamba(128, 8, 4)),
    (GatedDeltaNet(2, 4, 16, 16), SelfAttention()),
    (RecurrentBlock(64, 4), SelfAttention()),
)
DRIVES = {"zero_stage": [1, 3], "offload": ["none", "optimizer-nvme", "parameters-nvme"]}
PLAIN = {"schedule": "1f1b", "recompute": ["none", "full"]}


def asked(
    seed: int, pins: dict[str, Any], precision: str = "bf16", mixers: tuple[Sublayer, ...] = ()
) -> Problem:
    """Return a small problem without a limit on memory, on a machine with drives and 8-bit products."""
    rng = np.random.default_rng(seed)
    model = decoder_graph(
        DecoderSpec(
            hidden=64 * int(rng.integers(1, 4)),
            layers=int(rng.integers(2, 5)),
            heads=4,
            kv_heads=int(rng.choice((1, 4))),
            head_dim=32,
            ffn=int(rng.choice((128, 512))),
            vocab=int(rng.choice((512, 4096))),
            mixers=mixers or (SelfAttention(),),
        ),
        "tiny",
    )
    cluster = machine(rng, int(rng.choice((2, 4))))
    device = cluster.accelerator
    rate = device.peak_flops_per_s["bf16"]
    device = replace(device, peak_flops_per_s={"bf16": rate, "fp8": 2 * rate})
    nvme = float(rng.choice((1e8, 1e9, 1e11)))
    job = Job(
        global_batch_size=int(rng.choice((2, 4, 8))),
        sequence_length=int(rng.choice((64, 512))),
        precision=precision,
        headroom=0.0,
        choices=read_pins(pins),
    )
    problem = Problem(model, replace(cluster, accelerator=device, nvme_bytes_per_s=nvme), job)
    return with_profile(
        problem,
        overlap_gradients=float(rng.choice((0.0, 0.5))),
        overlap_parameters=float(rng.choice((0.0, 0.9))),
        overlap_cost=float(rng.choice((0.0, 0.16))),
        step_fixed_s=1e-5,
    )


def with_drives(problem: Problem, usable: float, share: float) -> Problem:
    """Return the problem with a memory of its devices, and a device's share of the drives."""
    changed = with_memory(problem, usable)
    held = share * problem.cluster.devices_per_host
    made = Problem(changed.base, replace(changed.cluster, nvme_bytes=held), changed.job)
    made.__dict__.update(profile=problem.profile, target=problem.target)
    return made


def check(problem: Problem, every: Everything, usable: float, nvme: float = np.inf) -> None:
    """Compare the search with all plans at one size of the memory and of the drives."""
    small = with_memory(problem, usable) if np.isinf(nvme) else with_drives(problem, usable, nvme)
    state, best = search(survey(small), lambda: False), every.optimum(usable, nvme=nvme)
    assert state.proven
    assert state.bound <= best * (1 + 1e-9)
    if np.isinf(best):
        assert state.best is None
        return
    assert state.best is not None
    assert state.best.candidate.peak_bytes <= usable
    assert state.best.candidate.nvme_bytes <= nvme
    assert best * (1 - 1e-9) <= state.incumbent_s <= best / (1 - TOLERANCE) * (1 + 1e-9)


def priced(problem: Problem) -> Everything:
    """Return all plans of a problem."""
    every = everything(problem, MOST_PLANS)
    if every is None:
        pytest.skip("too many plans to price them all")
    assert len(every.row)
    return every


def sizes(every: Everything, seed: int) -> list[float]:
    """Return memory sizes that bind."""
    return [1e15, *every.capacities(np.random.default_rng(seed), 2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_search_finds_the_optimum_within_the_drives(seed: int) -> None:
    problem = asked(seed, PLAIN | DRIVES)
    every = priced(problem)
    held = np.unique(every.nvme_bytes)
    steps = np.flatnonzero(np.diff(held) > 2 * every.slack_bytes)
    places = [held[at] + every.slack_bytes for at in steps[[0, -1]]] if len(steps) else []
    for usable, nvme in zip(sizes(every, seed), [np.inf, *places], strict=False):
        check(problem, every, usable, float(nvme))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_search_finds_the_optimum_of_low_precision_recipes(recipe: str, seed: int) -> None:
    problem = asked(seed, PLAIN, recipe)
    every = priced(problem)
    for usable in sizes(every, seed):
        check(problem, every, usable)


@pytest.mark.parametrize("mixers", MIXERS, ids=lambda m: "-".join(one.detail for one in m))
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_search_finds_the_optimum_of_hybrids(mixers: tuple[Sublayer, ...], seed: int) -> None:
    problem = asked(seed, PLAIN, mixers=mixers)
    assert len(problem.model.kinds) > 3
    every = priced(problem)
    for usable in sizes(every, seed):
        check(problem, every, usable)


def test_drives_are_used_where_they_hold_what_devices_do_not() -> None:
    """The referee is worth its time only if drives win somewhere, and are short somewhere."""
    won = short = 0
    for seed in SEEDS:
        every = priced(asked(seed, PLAIN | DRIVES))
        on = every.nvme_bytes > 0
        least = float(every.peak_bytes[on].min(initial=np.inf))
        won += least < every.peak_bytes[~on].min(initial=np.inf)
        short += len(np.unique(every.nvme_bytes)) > 1
    assert won
    assert short
