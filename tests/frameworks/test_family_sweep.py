"""Every causal language model that transformers knows is counted exactly or refused by name.

Each class is built from its default configuration on the meta device, where nothing is allocated; the file
that it would write is read back. Classes whose default configuration does not build are left out.
"""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with the framework's own classes")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from meshwright.planner.importers.config import Config, ModelConfigError  # noqa: E402
from meshwright.planner.importers.hf import model_from_config  # noqa: E402

KNOWN = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
READ_AT_LEAST = 0.5
"""Share of the classes that are read rather than refused: 0.6 when this was written."""
SEEN: dict[str, bool] = {}
"""Whether each class that was built was read."""


def built(model_type: str) -> tuple[dict[str, Any], int]:
    """Return the file that a class would write, and its parameters; skips what does not build."""
    try:
        config = transformers.CONFIG_MAPPING[model_type]()
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # the framework's own defaults, of any kind
        pytest.skip(f"the default configuration does not build: {type(error).__name__}")
    values = json.loads(config.to_json_string(use_diff=False))
    return values | {"architectures": [type(model).__name__]}, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("model_type", KNOWN)
def test_count_is_exact_or_the_model_is_refused(model_type: str) -> None:
    values, parameters = built(model_type)
    try:
        graph = model_from_config(Config("test", values), "test")
    except ModelConfigError as refused:
        assert model_type in str(refused) or values["architectures"][0] in str(refused)
        SEEN[model_type] = False
        return
    assert graph.parameters == parameters
    SEEN[model_type] = True


def test_most_are_read() -> None:
    """Refusing everything would keep the rule above as well; told where all classes were seen before."""
    if len(SEEN) < 0.8 * len(KNOWN):
        pytest.skip("the sweep did not run whole in this process")
    assert sum(SEEN.values()) >= READ_AT_LEAST * len(SEEN)
