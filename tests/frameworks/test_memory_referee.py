"""The memory model before an independent referee: torch's own tracker on transformers' modules under FSDP2.

One profile, ``torch-eager-fsdp2``, says what the referee does: eager operators, and fp32 logits that each
tensor rank sees whole. Left out of both sides alike: rounding by an allocator, driver context, communication
buffers.
"""

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch's memory tracker is the referee")
pytest.importorskip("transformers", reason="its modules are what is tracked")

from meshwright.costmodels.schedule import rank_of_chunk  # after the skip
from meshwright.costmodels.step import price  # after the skip
from meshwright.planner.importers.config import Config  # after the skip
from meshwright.planner.importers.hf import model_from_config  # after the skip
from meshwright.planner.job import Job  # after the skip
from meshwright.planner.meshes import mesh_of  # after the skip
from meshwright.planner.pricing import counts, setting  # after the skip
from meshwright.planner.problem import Problem  # after the skip
from meshwright.planner.strategy import chunks_from, even_split, plan_from  # after the skip
from tests.frameworks.tracked_memory import Stage, tracked_peak_bytes  # after the skip

CLOSE = 0.05
OUTSIDE = ("communicators", "context")


def sizes(hidden: int, ffn: int, layers: int, vocabulary: int = 128256) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
    }


ONE, EIGHT, FEW_WORDS = sizes(2048, 8192, 16), sizes(4096, 14336, 32), sizes(4096, 14336, 32, 32000)
"""Decoders of 1 and 8 billion parameters, and one whose logits do not rule the peak."""


@dataclass(frozen=True)
class Run:
    """A run of 8 data ranks or of 4 with 2 tensor ranks each; ``rank`` is the pipeline's."""

    model: dict[str, Any]
    zero: int = 3
    recompute: str = "none"
    tp: int = 1
    pp: int = 1
    rank: int = 0
    sequences: int = 1
    length: int = 4096
    once: bool = False

    @property
    def micro_batches(self) -> int:
        return 1 if self.once else 2 if self.pp == 1 else self.pp + 2


RUNS = {
    "1b": Run(ONE),
    "1b, two sequences": Run(ONE, sequences=2, length=2048),
    "1b, full": Run(ONE, recompute="full"),
    "1b, full, ZeRO-2": Run(ONE, zero=2, recompute="full"),
    "1b, every second layer": Run(ONE, recompute="half"),
    "1b, long": Run(ONE, recompute="full", length=16384),
    "8b": Run(EIGHT),
    "8b, ZeRO-2": Run(EIGHT, zero=2),
    "8b, full": Run(EIGHT, recompute="full"),
    "8b, every second layer": Run(EIGHT, recompute="half"),
    "8b, tensor 2": Run(EIGHT, tp=2),
    "8b, tensor 2, full": Run(EIGHT, tp=2, recompute="full"),
    "8b, tensor 2, every second layer, ZeRO-2": Run(EIGHT, zero=2, tp=2, recompute="half"),
    "8b, few words": Run(FEW_WORDS),
    "8b, few words, full": Run(FEW_WORDS, recompute="full"),
    "1b, one micro-batch": Run(ONE, once=True),
    "8b, ZeRO-2, one micro-batch": Run(EIGHT, zero=2, once=True),
    "8b, few words, full, one micro-batch": Run(FEW_WORDS, recompute="full", once=True),
    "8b, first stage": Run(EIGHT, zero=2, pp=4, rank=0),
    "8b, middle stage": Run(EIGHT, zero=2, pp=4, rank=1),
    "8b, middle stage, ZeRO-3, full": Run(EIGHT, pp=4, rank=2, recompute="full"),
    "8b, last stage, every second layer": Run(EIGHT, zero=2, pp=4, rank=3, recompute="half"),
}


def recomputed(run: Run, layers: int) -> frozenset[int]:
    every = {"none": (), "full": range(layers), "half": range(0, layers, 2)}[run.recompute]
    return frozenset(every)


def stage_of(run: Run) -> Stage:
    layers = even_split(run.model["num_hidden_layers"], run.pp)[run.rank]
    return Stage(
        layers=layers,
        sequences=run.sequences,
        length=run.length,
        data=8 // run.tp,
        tensor=run.tp,
        first=run.rank == 0,
        last=run.rank == run.pp - 1,
        reshard=run.zero == 3,
        recomputed=recomputed(run, layers),
        in_flight=run.pp - run.rank,
        micro_batches=run.micro_batches,
    )


def priced_bytes(run: Run) -> float:
    graph = model_from_config(
        Config("model", {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **run.model}), "model"
    )
    dp = 8 // run.tp
    job = Job(dp * run.sequences * run.micro_batches, run.length, profile="torch-eager-fsdp2", headroom=0.0)
    problem = Problem.load(graph, f"dgx-h100:{run.pp}", job)
    degrees = {"tp": run.tp, "pp": run.pp, "dp": dp} | dict.fromkeys(
        ("cp", "ep", "etp", "dp_replicate", "hpz", "vpp", "ulysses"), 1
    )
    decisions = degrees | {
        "zero_stage": run.zero,
        "micro_batch_size": run.sequences,
        "num_microbatches": run.micro_batches,
        "sequence_parallel": run.tp > 1,
        "kv_exchange": "ring",
        "offload": "none",
        "placement": ("tp", "cp", "dp", "pp"),
        "schedule": "1f1b",
    }
    split = even_split(len(graph.block_layers), run.pp)
    chunks = chunks_from(problem, rank_of_chunk("1f1b", run.pp, 1), split)
    modes = ["none"] * graph.num_layers
    start = 1
    for layers in split:
        for i in recomputed(run, layers):
            modes[start + i] = "full"
        start += layers
    plan = plan_from(problem, decisions, chunks, tuple(modes))
    got = price(setting(problem), mesh_of(plan).strategies(), counts(problem, plan))
    held = sum(size[0, run.rank] for item, size in got.memory.items() if item not in OUTSIDE)
    return float(held - got.idle_bytes[0, run.rank])


@pytest.mark.parametrize("name", RUNS)
def test_the_peak_is_what_torch_tracks(name: str) -> None:
    run = RUNS[name]
    tracked = tracked_peak_bytes(run.model, stage_of(run))
    assert priced_bytes(run) == pytest.approx(tracked, rel=CLOSE)
