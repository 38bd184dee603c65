"""ds_config.json says what the plan says."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from meshwright.costmodels.profiles import find_profile
from meshwright.planner.emit.registry import emit
from meshwright.planner.emit.write import render
from tests.planner.emit.cases import case
from tests.strategies import launchable


def config(*args, **kwargs):
    return json.loads(emit(*case("deepspeed", *args, **kwargs))["ds_config.json"])


@given(launchable("deepspeed"))
@settings(max_examples=40, deadline=None)
def test_batch_product_is_the_global_batch(drawn) -> None:
    problem, plan = drawn
    files = emit(problem, plan)
    ds = json.loads(files["ds_config.json"])
    micro, passes = ds["train_micro_batch_size_per_gpu"], ds["gradient_accumulation_steps"]
    assert micro * passes * plan.dp == problem.job.global_batch_size
    # With AutoTP DeepSpeed would take the ranks of a replica for replicas.
    assert ds.get("train_batch_size") == (problem.job.global_batch_size if plan.tp == 1 else None)
    assert ("training_args.json" in files) == (plan.pp == 1)
    if plan.pp == 1:
        hf = json.loads(files["training_args.json"])
        assert (hf["per_device_train_batch_size"], hf["gradient_accumulation_steps"]) == (micro, passes)


@given(launchable("deepspeed"))
@settings(max_examples=40, deadline=None)
def test_buckets_hold_no_more_than_was_priced(drawn) -> None:
    problem, plan = drawn
    block = json.loads(emit(problem, plan)["ds_config.json"])["zero_optimization"]
    assert block["stage"] == plan.zero_stage
    profile = find_profile(plan.profile)
    # Documentation of overlap_comm: 4.5 times both buckets are held.
    held = 4.5 * 2 * block.get("reduce_bucket_size", 0) * profile.gradient_bytes
    assert held <= 2 * profile.bucket_bytes
    assert block.get("stage3_prefetch_bucket_size", 0) <= block.get("reduce_bucket_size", 0)


def test_documented_bucket_sizes_for_a_hidden_size() -> None:
    block = config(zero_stage=3)["zero_optimization"]
    assert block["reduce_bucket_size"] == 4096**2
    assert block["stage3_prefetch_bucket_size"] == int(0.9 * 4096**2)
    assert block["stage3_param_persistence_threshold"] == 10 * 4096


def test_a_profile_without_buckets_leaves_the_documented_size() -> None:
    block = config(job={"profile": "fsdp2"}, zero_stage=2)["zero_optimization"]
    assert block["reduce_bucket_size"] == block["allgather_bucket_size"] == 4096**2


@pytest.mark.parametrize(
    ("precision", "on"),
    [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", None), ("tf32", None), ("pure-bf16", "bf16")],
)
def test_at_most_one_precision_is_on(precision: str, on: str | None) -> None:
    ds = config(job={"precision": precision}, zero_stage=1)
    assert [k for k in ("bf16", "fp16") if ds.get(k, {}).get("enabled")] == ([on] if on else [])
    assert ds.get("bf16", {}).get("bf16_optimizer_states", False) == (precision == "pure-bf16")


@pytest.mark.parametrize(
    ("optimizer", "kind"), [("adamw", "AdamW"), ("adam", "Adam"), ("momentum", "SGD"), ("sgd", "SGD")]
)
def test_optimizer_keeps_the_moments_that_were_priced(optimizer: str, kind: str) -> None:
    block = config(job={"optimizer": optimizer})["optimizer"]
    assert block["type"] == kind
    assert ("betas" in block["params"]) == (optimizer in ("adamw", "adam"))
    assert ("momentum" in block["params"]) == (optimizer == "momentum")


def test_only_full_recompute_has_a_checkpointing_block() -> None:
    assert config(recompute="full")["activation_checkpointing"]["number_checkpoints"] == 32
    assert "activation_checkpointing" not in config()


def test_optimizer_values_agree_between_the_two_files() -> None:
    files = emit(*case("deepspeed"))
    ds, hf = json.loads(files["ds_config.json"]), json.loads(files["training_args.json"])
    params = ds["optimizer"]["params"]
    assert params["lr"] == hf["learning_rate"]
    assert params["betas"] == [hf["adam_beta1"], hf["adam_beta2"]]
    assert params["eps"] == hf["adam_epsilon"]
    assert params["weight_decay"] == hf["weight_decay"]
    assert ds["gradient_clipping"] == hf["max_grad_norm"]


def test_one_host_needs_no_hostfile() -> None:
    assert "hostfile" not in emit(*case("deepspeed", "dgx-h100:1"))


def test_flash_attention_is_asked_for_where_it_was_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Use flash attention" in render(*case("deepspeed"))["README.md"]
    plain = replace(find_profile("deepspeed"), attention="torch")
    monkeypatch.setattr("meshwright.planner.emit.arguments.find_profile", lambda name: plain)
    assert "Use flash attention" not in render(*case("deepspeed"))["README.md"]
