"""Graphs as they are trained: parameters, frozen parts, what is kept, and where gradients end."""

from pathlib import Path

import pytest

from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import LayerKind, Pointwise
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.work import Shape
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers import load_model
from meshwright.planner.tuned import mixed, trainable_parameters, tuned
from meshwright.planner.tuning import read_tuning

FILES = Path(__file__).parents[1] / "data" / "hf_configs"

PEFT = [
    ("llama-3.1-8b", "lora:r=16", 41_943_040),
    ("llama-2-7b", "lora:r=8,targets=q,v", 4_194_304),
    ("Llama-3.2-1B", "lora", 11_272_192),
    ("Qwen3-0.6B", "lora", 10_092_544),
    ("Qwen3-0.6B", "lora:targets=q_proj,v_proj", 2_293_760),
    ("Qwen2.5-7B", "lora", 40_370_176),
    ("Gemma-2-9B", "lora", 54_018_048),
    ("Falcon-40B", "lora", 111_083_520),
    ("BLOOM-3B", "lora", 19_660_800),
    ("MPT-7B", "lora", 33_554_432),
    ("Phi-4", "lora", 55_705_600),
    ("T5-v1.1-XXL", "lora", 70_778_880),
    ("gpt-oss-20b", "lora", 7_962_624),
    ("gpt-oss-20b", "lora:targets=q_proj,v_proj", 3_981_312),
    ("DeepSeek-V2-Lite", "lora:targets=q_proj", 2_211_840),
    ("DeepSeek-V2-Lite", "lora:targets=attention", 7_105_536),
]
"""Trainable parameters that PEFT 0.21.2 counts on the classes of transformers 5.24."""


def graph(name: str) -> ModelGraph:
    path = FILES / f"{name}.json"
    return load_model(str(path) if path.exists() else name)


def block(model: ModelGraph) -> LayerKind:
    return next(kind for kind in model.kinds if kind.role == "block")


@pytest.mark.parametrize(("name", "tuning", "expected"), PEFT)
def test_adapters_have_the_parameters_that_peft_counts(name: str, tuning: str, expected: int) -> None:
    plain = graph(name)
    model = tuned(plain, read_tuning(tuning))
    assert trainable_parameters(model) == expected == model.parameters - plain.parameters


def test_training_everything_changes_nothing() -> None:
    plain = graph("llama-3.1-8b")
    assert tuned(plain, read_tuning("full")) is plain
    assert trainable_parameters(plain) == plain.parameters


def test_only_linear_weights_of_blocks_are_stored_quantised() -> None:
    model = tuned(graph("llama-3.1-8b"), read_tuning("qlora"))
    for kind in model.kinds:
        for op in kind.operators:
            quantised = kind.role == "block" and isinstance(op, Gemm) and "lora" not in op.name
            assert (op.stored_bytes is not None) is quantised, (kind.name, op.name)


def test_embedding_and_head_are_trained_on_request() -> None:
    plain = graph("llama-3.1-8b")
    alone, both = (tuned(plain, read_tuning(t)) for t in ("lora", "lora:embeddings=yes"))
    ends = 2 * 128_256 * 4096 + 4096  # embedding, head and the final norm
    assert trainable_parameters(both) - trainable_parameters(alone) == ends
    assert [kind.backward for kind in both.kinds] == [True, True, True]


def test_nothing_below_the_first_trained_weight_has_a_backward_pass() -> None:
    model = tuned(graph("llama-3.1-8b"), read_tuning("freeze:layers=10"))
    back = [model.kinds[k].backward for k in model.layer_kinds]
    assert back == [False] * 11 + [True] * 23
    assert [k.name for k in model.kinds] == ["embedding", "decoder.frozen", "decoder", "head"]
    per_block = block(graph("llama-3.1-8b")).parameters()
    assert trainable_parameters(model) == 22 * per_block + 128_256 * 4096 + 4096


def test_gradients_pass_through_frozen_blocks_behind_a_trained_embedding() -> None:
    model = tuned(graph("llama-3.1-8b"), read_tuning("freeze:layers=10,embeddings=yes"))
    assert all(kind.backward for kind in model.kinds)
    passing = next(kind for kind in model.kinds if kind.name == "decoder.passing")
    assert not any(op.trained for op in passing.operators if op.parameters())


def test_a_tied_head_is_frozen_with_its_embedding() -> None:
    plain = graph("Llama-3.2-1B")
    model = tuned(plain, read_tuning("freeze:layers=4"))
    assert trainable_parameters(model) == 12 * block(plain).parameters()
    head = next(op for op in model.kinds[-1].operators if isinstance(op, Gemm))
    assert head.tied
    assert not head.trained


def test_inputs_of_frozen_products_without_adapters_are_not_kept() -> None:
    model = graph("llama-3.1-8b")
    kept = {}
    for text in ("lora", "lora:targets=q,v", "lora:targets=mlp"):
        ops = block(tuned(model, read_tuning(text))).operators
        kept[text] = {op.name for op in ops if isinstance(op, Pointwise) and op.light and op.saves}
    assert kept["lora"] == {"pre_attention_norm", "pre_mlp_norm", "activation"}
    assert kept["lora:targets=q,v"] == {"pre_attention_norm"}
    assert kept["lora:targets=mlp"] == {"pre_mlp_norm", "activation"}


def test_queries_and_keys_stay_kept_for_the_core_behind_their_norm() -> None:
    ops = block(tuned(graph("Qwen3-0.6B"), read_tuning("lora:targets=mlp"))).operators
    norm = next(op for op in ops if op.name == "qk_norm")
    assert isinstance(norm, Pointwise)
    assert norm.saves


def test_frozen_experts_keep_no_dispatched_rows() -> None:
    plain = graph("Qwen3-30B-A3B")
    shape = Shape(1, 64, 1, 0)
    saved = {}
    for text in ("lora", "lora:targets=experts"):
        ops = {op.name: op for op in block(tuned(plain, read_tuning(text))).operators}
        saved[text] = [ops[n].saved_bytes(shape) for n in ("dispatch", "expert_activation")]
    assert saved["lora"] == [0, 0]
    assert saved["lora:targets=experts"] == [
        op.saved_bytes(shape) for op in block(plain).operators if op.name in ("dispatch", "expert_activation")
    ]


def test_each_expert_has_its_own_adapter() -> None:
    plain = graph("Qwen3-30B-A3B")
    model = tuned(plain, read_tuning("lora:r=4,targets=experts"))
    one = 3 * 4 * (2048 + 768)  # gate, up and down
    assert trainable_parameters(model) == 48 * 128 * one
    pairs = [op for op in block(model).operators if isinstance(op, ExpertGemm) and op.trained]
    assert len(pairs) == 6
    whole, halved = (sum(op.local_parameters(Shape(1, 64, 1, 0, etp=n)) for op in pairs) for n in (1, 2))
    assert whole / 2 < halved < whole


def test_a_layer_without_a_target_is_frozen() -> None:
    model = tuned(graph("DeepSeek-V2-Lite"), read_tuning("lora:targets=experts"))
    assert [(k.name, k.backward) for k in model.kinds[:2]] == [
        ("embedding", False),
        ("decoder.dense.frozen", False),
    ]


@pytest.mark.parametrize(
    ("tuning", "said"),
    [
        (
            "lora:targets=z",
            "target 'z' names no product of llama-3.1-8b; it has .* qkv, q, k, v, out",
        ),
        ("lora:targets=experts", "'experts' names no product"),
        ("freeze:streams=vision", "'vision' is no stream of llama-3.1-8b; it has text"),
        ("freeze:layers=33", "33 are more than the 32 blocks"),
        ("freeze:streams=text", "leaves nothing to train"),
        ("lora:layers=32", "leaves nothing to train"),
    ],
)
def test_what_the_model_does_not_have_is_refused(tuning: str, said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        tuned(graph("llama-3.1-8b"), read_tuning(tuning))


def test_a_recipe_keeps_its_share_of_blocks_in_16_bits() -> None:
    plain = graph("llama-3.1-8b")
    model = mixed(plain, find_precision("nvfp4"))
    high = [i for i in model.block_layers if not model.kinds[model.layer_kinds[i]].low_precision]
    assert high == [1, 29, 30, 31, 32]
    assert model.parameters == plain.parameters
    assert mixed(plain, find_precision("fp8")) is plain
