"""Degrees that a row does not print are those that its model and activations need."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_prices import express
from benchmarks.row_strategy import listed_stages, with_local_batch
from benchmarks.rows import Row, read_rows

UNSPLIT = next(r for r in read_rows() if r.id == "gaudi-001")
LARGER = next(r for r in read_rows() if r.id == "gaudi-005")


def split(row: Row, **changes: Any) -> int:
    plan = express(replace(row, **changes)).plan
    return plan.tp * plan.pp


def test_replicas_that_share_the_optimizer_need_a_smaller_split() -> None:
    assert UNSPLIT.tp is None and UNSPLIT.pp is None
    assert split(UNSPLIT, sharding="ddp") > split(UNSPLIT, sharding="zero1")


@given(st.integers(0, 3))
def test_longer_sequences_never_need_a_smaller_split(doublings: int) -> None:
    length = 4096 * 2**doublings
    assert split(UNSPLIT, seq_len=length) <= split(UNSPLIT, seq_len=2 * length)


@pytest.mark.parametrize("batch", [1, 2, 4, 16, 64])
def test_every_replica_has_a_sequence(batch: int) -> None:
    assert express(replace(LARGER, global_batch=batch)).plan.dp <= batch


@given(st.integers(8, 200), st.integers(1, 8))
def test_a_list_of_modules_is_cut_evenly_with_its_ends(blocks: int, chunks: int) -> None:
    sizes = listed_stages(blocks, chunks)
    assert len(sizes) == chunks
    assert sum(sizes) == blocks
    if chunks > 1:
        modules = [sizes[0] + 1, *sizes[1:-1], sizes[-1] + 1]
        assert max(modules) - min(modules) <= 1


@given(st.sampled_from([8, 24, 64, 192]), st.integers(0, 3))
def test_a_device_is_filled_where_no_micro_batch_is_printed(batch: int, doublings: int) -> None:
    changes: dict[str, Any] = {"global_batch": batch, "tp": 8, "pp": 1, "num_gpus": 8, "dp": None}
    short, long = (
        express(replace(LARGER, layers=8, params_b=None, seq_len=1024 * 2**n, **changes)).plan
        for n in (doublings, doublings + 1)
    )
    assert batch % short.micro_batch_size == 0
    assert short.micro_batch_size >= long.micro_batch_size


def test_a_pipeline_runs_single_sequences_where_no_micro_batch_is_printed() -> None:
    assert express(replace(LARGER, tp=8, pp=2)).plan.micro_batch_size == 1


TITAN = replace(LARGER, framework="torchtitan (FSDP2)", micro_batch=None, grad_accum=None, global_batch=None)


@pytest.mark.parametrize(("model", "size"), [("Llama-3-8B", 1), ("Llama-3.1-70B", 8), ("DeepSeek-V3-16B", 4)])
def test_a_batch_of_torchtitan_that_is_not_stated_is_its_configurations(model: str, size: int) -> None:
    assert with_local_batch(replace(TITAN, model_name=model)).micro_batch == size


@pytest.mark.parametrize(
    "stated", [{"global_batch": 64}, {"grad_accum": 2}, {"micro_batch": 3}, {"framework": "DeepSpeed"}]
)
def test_a_batch_that_is_stated_is_kept(stated: dict[str, Any]) -> None:
    row = replace(TITAN, **stated)
    assert with_local_batch(row) is row


ADAPTED = next(r for r in read_rows() if r.id == "qwenft-025")


@pytest.mark.parametrize(
    ("model", "framework", "stage"),
    [
        ("Qwen-7B", "HF Trainer", 0),
        ("Qwen-7B", "HF Trainer + DeepSpeed", 2),
        ("Llama-2-70B LoRA", "HF Trainer", 3),
        ("Llama-2-70B LoRA", "HF Trainer, ddp as printed", 0),
    ],
)
def test_a_replica_that_exceeds_a_device_is_sharded_unless_printed(
    model: str, framework: str, stage: int
) -> None:
    printed = "ddp" if framework.endswith("printed") else None
    sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "params_b"))
    sizes = sizes if model.startswith("Llama") else {}
    row = replace(ADAPTED, model_name=model, num_gpus=8, dp=8, sharding=printed, sharding_as_printed=None)
    row = replace(row, framework=framework.removesuffix(", ddp as printed"))
    assert express(replace(row, **sizes)).plan.zero_stage == stage  # type: ignore[arg-type]


SPLIT = next(r for r in read_rows() if r.id == "bridge2602_qwen3235ba22b_b200_mxfp8_256")


@pytest.mark.parametrize("silent", ["tp", "pp", "dp"])
def test_a_degree_that_is_not_printed_is_what_the_others_leave(silent: str) -> None:
    rows = [r for r in read_rows() if None not in (r.tp, r.pp, r.dp, r.cp, r.num_gpus) and r.trusted]
    exact = [r for r in rows if r.num_gpus == r.tp * r.pp * r.dp * r.cp and (r.pp or 1) > 1]  # type: ignore[operator]
    for row in exact[::97]:
        whole, derived = (express(r).plan for r in (row, replace(row, **{silent: None})))
        assert (whole.tp, whole.pp, whole.dp) == (derived.tp, derived.pp, derived.dp), row.id


def test_a_model_without_experts_has_no_expert_degree() -> None:
    run = express(replace(ADAPTED, num_gpus=8, dp=8, ep=8))
    assert run.plan.ep == 1
    assert "ep 8 is printed, the model has no experts" in run.assumptions


def test_experts_that_nothing_is_said_of_share_a_node() -> None:
    plan = express(replace(SPLIT, ep=None, framework="Megatron-Core MoE")).plan
    assert plan.ep == min(8, SPLIT.gpus_per_node or 8)
    assert express(replace(SPLIT, ep=None, tp=1, framework="HF Trainer")).plan.ep == 1


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"framework": "Megatron-LM", "year": 2021}, "full"),
        ({"framework": "Megatron-DeepSpeed", "year": 2023, "flash_attention": False}, "full"),
        ({"framework": "NeMo-Megatron", "year": 2022}, "selective"),
        ({"framework": "Megatron-LM", "year": 2024}, "none"),
        ({"framework": "MaxText", "year": 2024}, "full"),
        ({"framework": "HF Trainer", "year": 2024}, "none"),
    ],
)
def test_recomputation_that_is_not_printed_is_the_stacks_habit(changes: dict[str, Any], mode: str) -> None:
    silent = {"tuning": "full", "notes": "", "recompute": None, "flash_attention": None}
    plan = express(replace(ADAPTED, **{**silent, **changes})).plan
    assert mode in plan.recompute


def test_more_replicas_than_devices_are_no_degree() -> None:
    row = replace(ADAPTED, framework="Megatron-LM", num_gpus=8, dp=64, tp=None, pp=None)
    assert express(row).plan.num_devices == 8
