"""Predicted against measured step times of runs that a paper printed; nothing is fitted to them.

``python -m benchmarks.published`` prices each run of ``data/korthikanti_table5.csv`` (A100, Megatron-LM,
22B to 1T parameters) by the functions that ``solve`` uses, under the profile ``megatron-2022``.
"""

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.cli.errors import reader_may_leave
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.estimate import estimate_problem
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate
from meshwright.planner.strategy import make_plan

DATA = Path(__file__).parent / "data" / "korthikanti_table5.csv"
LENGTH, VOCAB = 2048, 51200
PROFILE = "megatron-2022"
TEXT = ("model", "recompute", "step_time_s")
STRATEGY = ("tp", "pp", "vpp", "dp", "micro_batch_size", "recompute", "sequence_parallel")


@lru_cache(maxsize=1)
def runs() -> tuple[dict[str, Any], ...]:
    """Return the published runs, numbers as numbers."""
    lines = DATA.read_text("utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(
        {k: v if k in TEXT else int(v) for k, v in row.items()} | {"step_time_s": float(row["step_time_s"])}
        for row in rows
    )


def gpt(hidden: int, layers: int, heads: int, vocab: int = VOCAB, length: int = LENGTH) -> DecoderSpec:
    """Return a GPT as Megatron-LM trains it: learned positions, biases, dropout, tied head."""
    return DecoderSpec(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=vocab,
        gated=False,
        norm_bias=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        positions="learned",
        position_rows=length,
        tied=True,
        attention_dropout=0.1,
        hidden_dropout=0.1,
        embedding_dropout=0.1,
        max_sequence_length=length,
    )


def price_run(run: dict[str, Any], **changes: Any) -> Estimate:
    """Return the price of a run, some fields of its strategy changed."""
    from meshwright.hardware.catalogue import load_cluster

    devices = run["tp"] * run["pp"] * run["dp"]
    job = Job(run["global_batch_size"], LENGTH, precision="fp16", profile=PROFILE)
    graph = decoder_graph(gpt(run["hidden"], run["layers"], run["heads"]), run["model"])
    problem = Problem(graph, load_cluster(f"dgx-a100:{devices // 8}"), job)
    strategy = {k: run[k] for k in STRATEGY} | {"zero_stage": 0} | changes
    strategy["sequence_parallel"] = bool(strategy["sequence_parallel"])
    return estimate_problem(problem, make_plan(problem, **strategy))


def main() -> None:
    """Print each run and the errors over all."""
    print(f"{'model':>6} {'dp':>3} {'recompute':>10} {'measured s':>11} {'predicted s':>12} {'error %':>8}")
    errors = []
    for run in runs():
        got = price_run(run).step_time_s
        errors.append(100 * (got / run["step_time_s"] - 1))
        labels = f"{run['model']:>6} {run['dp']:>3} {run['recompute']:>10}"
        print(f"{labels} {run['step_time_s']:>11.2f} {got:>12.2f} {errors[-1]:>+8.1f}")
    mean, largest = np.abs(errors).mean(), np.abs(errors).max()
    print(
        f"{len(errors)} runs: mean error {mean:.1f} %, largest {largest:.1f} %, bias {np.mean(errors):+.1f} %"
    )


if __name__ == "__main__":
    with reader_may_leave():
        main()
