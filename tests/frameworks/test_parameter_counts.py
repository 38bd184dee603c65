"""The tables against the framework itself: classes built on the meta device, where nothing is allocated.

Runs where torch and transformers are installed; what was seen is recorded in ``data/parameter_counts.json``
for the tests that need neither.
"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with the framework's own classes")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from meshwright.costmodels.moe import ExpertGemm  # noqa: E402  # after the skip
from meshwright.planner.graph import ModelGraph  # noqa: E402  # after the skip
from meshwright.planner.importers.config import Config  # noqa: E402  # after the skip
from meshwright.planner.importers.hf import model_from_config  # noqa: E402

CASES = json.loads((Path(__file__).parents[1] / "data" / "parameter_counts.json").read_text())["cases"]


def graph_of(values: dict[str, Any]) -> ModelGraph:
    return model_from_config(Config("test", values), "test")


def counts(values: dict[str, Any]) -> tuple[int, int]:
    """Return all parameters and those of one token."""
    graph = graph_of(values)
    return graph.parameters, graph.active_parameters


def active(model: Any, graph: ModelGraph) -> int:
    """Return the class's parameters less the experts that a token does not visit."""
    products = [op for kind in graph.kinds for op in kind.operators if isinstance(op, ExpertGemm)]
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    whole = sum(p.numel() for p in model.parameters())
    if not products:
        return whole
    return whole - routed * (products[0].experts - products[0].topk) // products[0].experts


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['model_type']}-{len(c['config'])}-{c['parameters']}"
)
def test_count_equals_the_class(case: dict[str, Any]) -> None:
    if case["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {case['model_type']}")
    config = transformers.CONFIG_MAPPING[case["model_type"]](**case["config"])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    values = {"model_type": case["model_type"], **case["config"]}
    seen = sum(p.numel() for p in model.parameters()), active(model, graph_of(values))
    assert seen == (case["parameters"], case.get("active", case["parameters"])) == counts(values)
    # The file that the framework itself would write says the same.
    assert counts(json.loads(config.to_json_string(use_diff=False))) == seen
    assert case["block"] in {type(m).__name__ for m in model.modules()}
