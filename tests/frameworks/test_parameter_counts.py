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

from meshwright.planner.importers.config import Config  # noqa: E402  # after the skip
from meshwright.planner.importers.hf import model_from_config  # noqa: E402

CASES = json.loads((Path(__file__).parents[1] / "data" / "parameter_counts.json").read_text())["cases"]


def count(values: dict[str, Any]) -> int:
    return model_from_config(Config("test", values), "test").parameters


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['model_type']}-{len(c['config'])}-{c['parameters']}"
)
def test_count_equals_the_class(case: dict[str, Any]) -> None:
    if case["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {case['model_type']}")
    config = transformers.CONFIG_MAPPING[case["model_type"]](**case["config"])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    seen = sum(p.numel() for p in model.parameters())
    assert seen == case["parameters"] == count({"model_type": case["model_type"], **case["config"]})
    # The file that the framework itself would write says the same.
    assert count(json.loads(config.to_json_string(use_diff=False))) == seen
    assert case["block"] in {type(m).__name__ for m in model.modules()}
