"""Small problems of the wide decisions: experts, context parallelism, copies of shards, offloading.

They are trained with several optimizers, whole or by adapters: no decision, but every bound sees it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec, Sublayer
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.graph import ModelGraph
from meshwright.planner.job import Job
from meshwright.planner.pins import read_pins
from meshwright.planner.problem import Problem
from meshwright.planner.tuning import Tuning, read_tuning
from tests.referees.problems import machine, names_offload, with_profile

PLAIN: dict[str, Any] = {"schedule": "1f1b", "sequence_parallel": True}
PINS: tuple[dict[str, Any], ...] = (
    {"cp": ">=1", "ep": 1, "pp": "<=2"},
    {"cp": 2, "ulysses": ">=1", "placement": "tp,cp,dp,pp"},
    {"cp": 2, "kv_exchange": "all_gather", "schedule": "1f1b"},
    {"ep": ">=2"},
    {"ep": ">=1", "etp": ">=1", "tp": "<=2", "schedule": "1f1b"},
    {"dp_replicate": ">=1", "tp": 1, "schedule": "1f1b"},
    {"hpz": ">=1", "zero_stage": 3, "tp": 1},
    {"offload": ["none", "optimizer", "parameters"], "schedule": "1f1b", "tp": 1},
    {"recompute": ["none", "offload", "full"], "schedule": "1f1b", "tp": "<=2"},
    {"recompute": ["moe", "full"]},
)
FEEDS: tuple[tuple[Sublayer, ...], ...] = (
    (Experts(4, 2, 64),),
    (Mlp(), Experts(4, 1, 128)),
    (Mlp(), Mlp(), Experts(2, 1, 256, shared=64)),
)
DEVICES = (2, 4)


def experts_or_not(rng: np.random.Generator, blocks: int) -> ModelGraph:
    """Return a tiny decoder whose feeds are experts, or alternate with dense ones."""
    return decoder_graph(
        DecoderSpec(
            hidden=64 * int(rng.integers(1, 4)),
            layers=int(rng.integers(2, blocks + 1)),
            heads=4,
            kv_heads=int(rng.choice((1, 4))),
            head_dim=32,
            ffn=int(rng.choice((128, 512))),
            vocab=int(rng.choice((512, 4096))),
            tied=bool(rng.integers(2)),
            feeds=FEEDS[int(rng.integers(len(FEEDS)))],
        ),
        "tiny",
    )


def wide_problem(seed: int, blocks: int = 3) -> Problem:
    """Return a small problem without a limit on memory; seeds run through all :data:`PINS`."""
    rng, recipe = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    pins = PINS[seed % len(PINS)]
    devices = DEVICES[int(rng.integers(len(DEVICES)))]
    job = Job(
        global_batch_size=int(rng.choice((2, 4))),
        sequence_length=int(rng.choice((64, 512))),
        headroom=0.0,
        choices=read_pins(pins),
        expert_load=float(rng.choice((1.0, 1.5))),
        optimizer=str(recipe.choice(("adamw", "muon", "lion", "adafactor"))),
        tuning=Tuning() if recipe.integers(3) else read_tuning("lora:r=4"),
    )
    linked = names_offload(pins)
    problem = Problem(experts_or_not(rng, blocks), machine(rng, devices, linked=linked), job)
    return with_profile(
        replace(problem),
        overlap_gradients=float(rng.choice((0.0, 0.5))),
        overlap_parameters=float(rng.choice((0.0, 0.9))),
        overlap_cost=float(rng.choice((0.0, 0.16))),
        step_fixed_s=1e-5,
        optimizer_fraction=float(rng.choice((0.02, 0.8))),
    )
