"""Fixed problems and plans for the tests of emission."""

from functools import lru_cache
from typing import Any

from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.spec import Cluster
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan


@lru_cache(maxsize=8)
def model(name: str = "llama-3.1-8b") -> ModelGraph:
    return load_model(name)


@lru_cache(maxsize=8)
def cluster(name: str) -> Cluster:
    return load_cluster(name)


def case(
    target: str = "any",
    machines: str = "dgx-h100:2",
    job: dict[str, Any] | None = None,
    **strategy: Any,
) -> tuple[Problem, Plan]:
    """Return a problem with a global batch of 128 sequences, and the plan of an explicit strategy."""
    work = {"global_batch_size": 128, "sequence_length": 8192, "target": target, **(job or {})}
    problem = Problem(model(), cluster(machines), Job(**work))
    return problem, make_plan(problem, **strategy)


FULL_ZERO3 = {"zero_stage": 3, "recompute": "full"}
GOLDEN = {
    "deepspeed-16": ("deepspeed", "dgx-h100:2", FULL_ZERO3),
    "deepspeed-8": ("deepspeed", "dgx-h100:1", {"zero_stage": 2, "micro_batch_size": 2}),
    "fsdp-16": ("fsdp", "dgx-h100:2", FULL_ZERO3),
    "fsdp1-8": ("fsdp1", "dgx-h100:1", {"zero_stage": 2, "recompute": "every-2:full"}),
    "deepspeed-pipeline-16": (
        "deepspeed",
        "dgx-h100:2",
        {"pp": 4, "layers_per_stage": [7, 9, 9, 7], "recompute": "0-6:full"},
    ),
    "deepspeed-tensor-8": ("deepspeed", "dgx-h100:1", {"tp": 2, "zero_stage": 3}),
    "fsdp-qlora-8": ("fsdp", "dgx-h100:1", {**FULL_ZERO3, "job": {"tuning": "qlora:r=64"}}),
    "megatron-16": ("megatron", "dgx-h100:2", {"tp": 4, "pp": 2, "vpp": 2, "recompute": "full"}),
    "megatron-bridge-16": ("megatron-bridge", "dgx-h100:2", {"tp": 4, "pp": 2, "recompute": "full"}),
    "torchtitan-16": (
        "torchtitan",
        "dgx-h100:2",
        {"tp": 2, "pp": 2, "vpp": 2, "zero_stage": 2, "recompute": "every-2:full"},
    ),
    "any-16": ("any", "dgx-h100:2", {"tp": 4, "pp": 2, "recompute": "0-3:full,4-31:none"}),
}
