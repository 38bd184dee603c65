"""Adapters beside products: which modules they stand beside, how ranks share them, what they cost."""

from dataclasses import replace

import pytest

from meshwright.costmodels.operators import Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.work import Shape
from meshwright.planner.adapters import adapters, addition, is_feed, modules, targeted
from meshwright.planner.tuning import Tuning

WIDE = Part(64, 64, "hidden features")
QUERY = Part(64, 8, "attention heads")
KEY = Part(16, 2, "key/value heads", replicable=True)
FFN = Part(96, 96, "ffn columns")
QKV = Gemm("qkv", WIDE, (QUERY, KEY, KEY), "column", saves_output=True, trained=False)
OUT = Gemm("out", QUERY, (WIDE,), "row", trained=False)
GATE_UP = Gemm("shared_gate_up", WIDE, (FFN, FFN), "column", trained=False)


@pytest.mark.parametrize(
    ("op", "family", "names"),
    [
        (QKV, "llama", ["q", "k", "v"]),
        (QKV, "gpt_neox", ["qkv"]),
        (replace(QKV, name="cross_kv", outputs=(KEY, KEY)), "t5", ["k", "v"]),
        (replace(QKV, name="qkv", outputs=(QUERY, QUERY, KEY, KEY)), "qwen3_next", ["q", "k", "v"]),
        (replace(QKV, name="kv_up", outputs=(KEY, KEY)), "deepseek_v2", ["kv_b"]),
        (OUT, "llama", ["o"]),
        (GATE_UP, "llama", ["gate", "up"]),
        (GATE_UP, "phi3", ["gate_up"]),
    ],
)
def test_a_product_stands_for_the_frameworks_modules(op: Gemm, family: str, names: list[str]) -> None:
    found = modules(op, family)
    assert [m.name for m in found] == names
    assert tuple(p for m in found for p in m.outputs) == op.outputs


def test_a_gate_beside_the_queries_belongs_to_their_module() -> None:
    gated = replace(QKV, outputs=(QUERY, QUERY, KEY, KEY))
    assert modules(gated, "qwen3_next")[0].outputs == (QUERY, QUERY)


@pytest.mark.parametrize(
    ("target", "hit"),
    [("all-linear", 3), ("attention", 3), ("mlp", 0), ("qkv", 3), ("q", 1), ("v_proj", 1), ("experts", 0)],
)
def test_targets_name_groups_products_and_modules(target: str, hit: int) -> None:
    assert len(targeted(QKV, "llama", [target])) == hit


def test_latent_projections_are_no_feeds() -> None:
    assert [is_feed(n) for n in ("gate_up", "shared_down", "up", "kv_up", "q_down", "out")] == [
        *(True, True, True),
        *(False, False, False),
    ]


@pytest.mark.parametrize("op", [QKV, OUT, GATE_UP])
def test_parameters_are_rank_times_both_widths_of_each_module(op: Gemm) -> None:
    chosen = modules(op, "llama")
    made = adapters(op, chosen, Tuning("lora", rank=4))
    wide = sum(p.features for p in op.outputs)
    assert sum(a.parameters() for a in made) == 4 * (len(chosen) * op.inputs.features + wide)
    assert all(a.trained for a in made)


@pytest.mark.parametrize("op", [QKV, OUT])
def test_one_side_of_an_adapter_is_split_as_its_product_is(op: Gemm) -> None:
    chosen = modules(op, "llama")
    a, b = adapters(op, chosen, Tuning("lora", rank=4))[:2]
    whole, split = Shape(1, 32, 1, 0), Shape(1, 32, 2, 0)
    shared = (a, b) if op.shard == "row" else (b, a)
    assert shared[0].local_parameters(split) == shared[0].local_parameters(whole) / 2
    assert shared[1].local_parameters(split) == shared[1].local_parameters(whole)


def test_an_adapter_keeps_its_inner_result_and_with_dropout_a_copy_and_a_mask() -> None:
    shape, chosen = Shape(1, 32, 1, 0), modules(QKV, "llama")
    plain, dropped = (
        adapters(
            QKV,
            chosen,
            Tuning("lora", rank=4, dropout=p),
        )
        for p in (0.0, 0.1)
    )
    assert sum(a.saved_bytes(shape) for a in plain) == 32 * 3 * 4 * 2
    more = sum(a.saved_bytes(shape) for a in dropped) - sum(a.saved_bytes(shape) for a in plain)
    assert more == 32 * 3 * 64 * (2 + 1)


def test_sums_move_results_forward_and_gradients_of_inputs_backward() -> None:
    shape, chosen = Shape(1, 32, 1, 0), modules(QKV, "llama")
    (made,) = addition(QKV, chosen)
    assert isinstance(made, Pointwise)
    assert made.forward(shape)[0].bytes == 32 * 2 * 3 * (64 + 16 + 16)
    assert made.backward(shape)[0].bytes == 32 * 2 * 3 * (3 * 64)


def test_adapters_see_the_tokens_that_their_product_sees() -> None:
    keys = replace(QKV, name="cross_kv", outputs=(KEY, KEY), on="context")
    shape = Shape(1, 32, 1, 0, context_length=128)
    made = adapters(keys, modules(keys, "t5"), Tuning("lora", dropout=0.1))
    assert {a.rows(shape) for a in made if isinstance(a, Gemm)} == {128}
    assert addition(keys, modules(keys, "t5")) == ()
