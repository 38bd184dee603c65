"""accelerate.yaml and training_args.json together say what the plan says."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings

from meshwright.costmodels.loss import LOSSES
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.registry import emit, inexpressible
from meshwright.planner.emit.write import render
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from meshwright.planner.target_job import context_refusals
from tests.planner.emit.cases import case
from tests.strategies import launchable


@given(launchable("fsdp"))
@settings(max_examples=40, deadline=None)
def test_batch_and_sharding(drawn) -> None:
    problem, plan = drawn
    files = emit(problem, plan)
    config, arguments = yaml.safe_load(files["accelerate.yaml"]), json.loads(files["training_args.json"])
    per_step = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    assert per_step * config["num_processes"] // plan.cp == problem.job.global_batch_size
    fsdp = config["fsdp_config"]
    assert fsdp["fsdp_reshard_after_forward"] == (plan.zero_stage == 3)
    assert fsdp["fsdp_activation_checkpointing"] == ("full" in plan.recompute)
    assert config["num_processes"] % config["num_machines"] == 0


@pytest.mark.parametrize(
    ("precision", "mixed"),
    [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "no"), ("tf32", "no"), ("pure-bf16", "no")],
)
def test_mixed_precision_is_a_string(precision: str, mixed: str) -> None:
    files = emit(*case("fsdp", job={"precision": precision}))
    assert yaml.safe_load(files["accelerate.yaml"])["mixed_precision"] == mixed
    arguments = json.loads(files["training_args.json"])
    # A trainer that is told bf16 would switch mixed precision on again.
    assert {k for k in ("bf16", "fp16", "tf32") if arguments.get(k)} == {precision} & {"bf16", "fp16", "tf32"}


@pytest.mark.parametrize(("way", "said"), [("all_gather", "allgather"), ("ring", "alltoall")])
def test_context_ranks_and_how_they_exchange_keys(way: str, said: str) -> None:
    problem, plan = case("fsdp", cp=4, dp_replicate=2, kv_exchange=way, zero_stage=3)
    degrees = yaml.safe_load(emit(problem, plan)["accelerate.yaml"])["parallelism_config"]
    sizes = {
        name: degrees[f"parallelism_config_{name}_size"] for name in ("dp_replicate", "dp_shard", "cp", "tp")
    }
    assert sizes == {"dp_replicate": 2, "dp_shard": 2, "cp": 4, "tp": 1}
    assert degrees["parallelism_config_cp_comm_strategy"] == said
    assert "context group" in render(problem, plan)["README.md"]


def test_context_ranks_need_shards_beside_copies() -> None:
    problem, plan = case("fsdp", cp=2, dp_replicate=4, zero_stage=3)
    assert inexpressible(problem, plan) == []
    whole = replace(plan, dp_replicate=plan.dp)
    assert inexpressible(problem, whole) == ["dp_replicate=8: only below dp=8 with cp=2"]
    with pytest.raises(MeshwrightError, match="target copies and context"):
        case("fsdp", cp=2, dp_replicate=8, zero_stage=3)


@pytest.mark.parametrize(
    ("job", "rule"), [({"tuning": "lora:r=8"}, "tuning=lora"), ({"loss": "chunked"}, "loss=chunked")]
)
def test_what_context_ranks_do_not_train_is_named(job: dict[str, str], rule: str) -> None:
    with pytest.raises(MeshwrightError, match=f"target context model.*{rule}"):
        case("fsdp", job=job, cp=2)


@pytest.mark.parametrize("loss", LOSSES)
def test_context_ranks_take_the_frameworks_own_loss_alone(loss: str) -> None:
    problem, _ = case("fsdp")
    refused = any(
        "loss=" in line for line in context_refusals(problem.target, problem.base, problem.job, loss)
    )
    assert refused == (loss not in ("full", "torch", "eager", "engine"))


def test_a_window_goes_to_no_context_ranks() -> None:
    work = {"global_batch_size": 16, "sequence_length": 8192, "target": "fsdp"}
    narrow = Problem(load_model("mistral-7b"), case("fsdp")[0].cluster, Job(**work))
    assert context_refusals(narrow.target, narrow.base, narrow.job, "full") == [
        "model=mistral-7b: only attention to all tokens"
    ]
    with pytest.raises(MeshwrightError, match="target context model"):
        make_plan(narrow, cp=2)


def test_gradients_are_reduced_in_each_pass_for_memory_is_priced_so() -> None:
    arguments = json.loads(emit(*case("fsdp"))["training_args.json"])
    assert arguments["accelerator_config"]["gradient_accumulation_kwargs"]["sync_each_batch"] is True


def test_no_second_checkpointing_by_the_trainer() -> None:
    files = emit(*case("fsdp", recompute="full"))
    assert "gradient_checkpointing" not in json.loads(files["training_args.json"])


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"loss": "chunked"}, "chunk by chunk"),
        ({"loss": "pieces"}, "pieces of 128"),
        ({"loss": "sliced"}, "128 rows"),
        ({"loss": "compiled"}, "torch.compile"),
        ({"loss": "fused"}, "Liger"),
        ({"precision": "pure-bf16"}, "bfloat16"),
        ({"precision": "tf32"}, "allow_tf32"),
    ],
)
def test_what_no_file_can_say_is_told_in_the_readme(job: dict[str, str], told: str) -> None:
    assert told in render(*case("fsdp", job=job))["README.md"]
    assert told not in render(*case("fsdp"))["README.md"]
