"""Hybrids, state-space models and linear attention against transformers' own classes.

Parameters are compared with classes on the meta device, where nothing is allocated. FLOPs are compared on
the CPU for products with weights alone: what these classes run in place of a scan's kernels (a loop over
the tokens, or chunks of another shape) is not what the cost model prices.
"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with the framework's own classes")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402  # after the skip

from meshwright.costmodels.moe import ExpertGemm, Router  # noqa: E402
from meshwright.costmodels.product import Gemm  # noqa: E402
from meshwright.costmodels.work import Shape  # noqa: E402
from meshwright.planner.graph import ModelGraph  # noqa: E402
from meshwright.planner.importers.config import Config  # noqa: E402
from meshwright.planner.importers.hf import model_from_config  # noqa: E402

CASES = json.loads((Path(__file__).parents[1] / "data" / "hybrid_counts.json").read_text())["cases"]
SMALL = list({c["model_type"]: c for c in CASES if c["parameters"] < 2_000_000}.values())
TOKENS = 16


def graph_of(values: dict[str, Any]) -> ModelGraph:
    return model_from_config(Config("test", values), "test")


def framework_config(case: dict[str, Any]) -> Any:
    if case["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {case['model_type']}")
    return transformers.CONFIG_MAPPING[case["model_type"]](**case["config"])


def name(case: dict[str, Any]) -> str:
    return f"{case['model_type']}-{len(case['config'])}-{case['parameters']}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_count_equals_the_class(case: dict[str, Any]) -> None:
    config = framework_config(case)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    seen = sum(p.numel() for p in model.parameters())
    values = {"model_type": case["model_type"], **case["config"]}
    assert seen == case["parameters"] == graph_of(values).parameters
    # The file that the framework itself would write says the same.
    written = json.loads(config.to_json_string(use_diff=False))
    assert graph_of({**written, "model_type": case["model_type"]}).parameters == seen
    assert case["block"] in {type(m).__name__ for m in model.modules()}


def product_flops(graph: ModelGraph) -> float:
    """Return the forward FLOPs of all products with weights over one sequence, routed experts included."""
    shape = Shape(1, TOKENS, 1, 0)
    products = (Gemm, ExpertGemm, Router)
    ops = (op for k in graph.layer_kinds for op in graph.kinds[k].operators if isinstance(op, products))
    return sum(float(w.flops) for op in ops for w in op.forward(shape))


def counted_flops(model: Any) -> int:
    """Return what torch counts for products of two matrices; cores of scans and attention are batched."""
    ids = torch.arange(TOKENS)[None] % 7 + 1
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids, use_cache=False)
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    return sum(counts.get(f"aten.{name}", 0) for name in ("mm", "addmm"))


@pytest.mark.parametrize("case", SMALL, ids=name)
def test_products_with_weights_cost_what_torch_counts(case: dict[str, Any]) -> None:
    model = transformers.AutoModelForCausalLM.from_config(
        framework_config(case), experts_implementation="eager"
    ).eval()
    graph = graph_of({"model_type": case["model_type"], **case["config"]})
    assert product_flops(graph) == pytest.approx(counted_flops(model), rel=1e-12)
