"""The models of arXiv 2205.05198 as the cost models price them."""

import csv
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from meshwright.costmodels.layer import adapt
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.step import Price, price
from meshwright.costmodels.strategy import Setting
from meshwright.hardware.catalogue import load_cluster
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.job import Job
from meshwright.planner.meshes import mesh_of
from meshwright.planner.pricing import counts, setting
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.costmodels.cases import gpt

DATA = Path(__file__).parents[1] / "data"
LENGTH, VOCAB = 2048, 51200
TEXT = ("model", "recompute", "step_time_s")


@lru_cache(maxsize=1)
def runs() -> tuple[dict, ...]:
    """Return the published runs, numbers as numbers."""
    lines = (DATA / "korthikanti_steps.csv").read_text("utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(
        {k: v if k in TEXT else int(v) for k, v in row.items()} | {"step_time_s": float(row["step_time_s"])}
        for row in rows
    )


def name(run: dict) -> str:
    return f"{run['model']}-dp{run['dp']}-{run['recompute']}"


def stack_of_2022(problem: Problem) -> Setting:
    """Return the setting of Megatron-LM before flash attention and before overlapped gradients."""
    old = replace(problem.profile, flash_attention=False, overlap_gradients=0.0)
    kinds = tuple(adapt(kind, old, find_loss("full")) for kind in problem.model.kinds)
    return replace(setting(problem), profile=old, kinds=kinds)


def price_run(run: dict, **changes: object) -> Price:
    """Return the price of a run, some fields of its strategy changed."""
    devices = run["tp"] * run["pp"] * run["dp"]
    problem = Problem(
        decoder_graph(gpt(run["hidden"], run["layers"], run["heads"], VOCAB, LENGTH), run["model"]),
        load_cluster(f"dgx-a100:{devices // 8}"),
        Job(run["global_batch_size"], LENGTH, precision="fp16", profile="megatron-core"),
    )
    names = ("tp", "pp", "vpp", "dp", "micro_batch_size", "recompute", "sequence_parallel")
    strategy = {k: run[k] for k in names} | {"zero_stage": 0} | changes
    strategy["sequence_parallel"] = bool(strategy["sequence_parallel"])
    plan = make_plan(problem, **strategy)
    return price(stack_of_2022(problem), mesh_of(plan).strategies(), counts(problem, plan))
