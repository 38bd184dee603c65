"""The forward pass of small decoders before torch's own FLOP counter, experts and latent attention included.

Eager attention computes all pairs of queries and keys, so the core is counted without mask or window. Left
out: Llama-4, whose class runs every expert over every token, and compressed attention.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with torch's FLOP counter")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from meshwright.costmodels.attention import Attention  # noqa: E402  # after the skip
from meshwright.costmodels.operators import Operator  # noqa: E402  # after the skip
from meshwright.costmodels.work import Shape  # noqa: E402  # after the skip
from meshwright.planner.importers.config import Config  # noqa: E402  # after the skip
from meshwright.planner.importers.hf import model_from_config  # noqa: E402  # after the skip

FAMILIES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "glm4_moe",
    "deepseek_v2",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "dots1",
    "afmoe",
    "laguna",
    "mimo_v2_flash",
    "cohere2_moe",
    "minimax_m2",
    "smollm3",
)
LARGEST, TOKENS = 5_000_000, 64
CASES = [
    case
    for case in json.loads((Path(__file__).parents[1] / "data" / "parameter_counts.json").read_text())[
        "cases"
    ]
    if case["model_type"] in FAMILIES and case["parameters"] < LARGEST
]


def without_mask(op: Operator) -> Operator:
    return replace(op, causal=False, window=None) if isinstance(op, Attention) else op


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['model_type']}-{c['parameters']}")
def test_flops_are_those_that_torch_counts(case: dict[str, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.CONFIG_MAPPING[case["model_type"]](**case["config"])
    config._experts_implementation = "eager"  # grouped kernels are not counted
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(TOKENS)[None] + 3, use_cache=False)
    graph = model_from_config(Config("test", {"model_type": case["model_type"], **case["config"]}), "test")
    shape = Shape(1, TOKENS, 1, False)
    operators = [without_mask(op) for k in graph.layer_kinds for op in graph.kinds[k].operators]
    assert sum(float(w.flops) for op in operators for w in op.forward(shape)) == counter.get_total_flops()


def test_every_family_is_compared() -> None:
    assert {case["model_type"] for case in CASES} == set(FAMILIES)
