"""accelerate.yaml and training_args.json together say what the plan says."""

import json

import pytest
import yaml
from hypothesis import given, settings

from meshwright.planner.emit.registry import emit
from meshwright.planner.emit.write import render
from tests.planner.emit.cases import case
from tests.strategies import launchable


@given(launchable("fsdp"))
@settings(max_examples=40, deadline=None)
def test_batch_and_sharding(drawn) -> None:
    problem, plan = drawn
    files = emit(problem, plan)
    config, arguments = yaml.safe_load(files["accelerate.yaml"]), json.loads(files["training_args.json"])
    per_step = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    assert per_step * config["num_processes"] == problem.job.global_batch_size
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
        ({"loss": "fused"}, "Liger"),
        ({"precision": "pure-bf16"}, "bfloat16"),
        ({"precision": "tf32"}, "allow_tf32"),
    ],
)
def test_what_no_file_can_say_is_told_in_the_readme(job: dict[str, str], told: str) -> None:
    assert told in render(*case("fsdp", job=job))["README.md"]
    assert told not in render(*case("fsdp"))["README.md"]
