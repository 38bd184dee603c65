"""Encoders, encoder-decoders, vision and vision-language models against the framework's classes.

What was seen is recorded in ``data/parts_counts.json`` for the tests that need no framework.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="compares with the framework's own classes")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from meshwright.planner.importers.config import Config  # noqa: E402  # after the skip
from meshwright.planner.importers.hf import model_from_config  # noqa: E402

CASES = json.loads((Path(__file__).parents[1] / "data" / "parts_counts.json").read_text())["cases"]


def built(name: str, config: dict[str, Any]) -> tuple[int, dict[str, Any], set[str]]:
    """Return the class's parameters, the file that it would write, and the classes of its modules."""
    cls = getattr(transformers, name)
    settings = cls.config_class(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = cls(settings)
    written = {**json.loads(settings.to_json_string(use_diff=False)), "architectures": [name]}
    return sum(p.numel() for p in model.parameters()), written, {type(m).__name__ for m in model.modules()}


def count(values: dict[str, Any]) -> int:
    return model_from_config(Config("test", values), "test").parameters


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['config']['architectures'][0]}-{c['parameters']}")
def test_count_equals_the_class(case: dict[str, Any]) -> None:
    config = dict(case["config"])
    (name,) = config.pop("architectures")
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    seen, written, classes = built(name, config)
    assert seen == case["parameters"] == count({"model_type": case["model_type"], **case["config"]})
    # The file that the framework itself would write says the same.
    assert count(written) == seen
    assert case["block"] in classes


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    heads = draw(st.sampled_from((1, 2, 4)))
    return {
        "heads": heads,
        "hidden": heads * draw(st.integers(2, 12)) * 4,
        "ffn": draw(st.integers(3, 70)),
        "layers": draw(st.integers(1, 4)),
        "vocab": draw(st.integers(60, 200)),
        "length": draw(st.integers(4, 60)),
    }


@settings(max_examples=15, deadline=None)
@given(sizes(), st.booleans())
def test_encoders_of_any_size(size: dict[str, int], tied: bool) -> None:
    config = {
        "hidden_size": size["hidden"],
        "num_attention_heads": size["heads"],
        "intermediate_size": size["ffn"],
        "num_hidden_layers": size["layers"],
        "vocab_size": size["vocab"],
        "max_position_embeddings": size["length"],
        "tie_word_embeddings": tied,
    }
    for name in ("BertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM", "XLMRobertaXLForMaskedLM"):
        seen, written, _ = built(name, config)
        assert count(written) == seen, name


@settings(max_examples=15, deadline=None)
@given(sizes(), sizes(), st.booleans())
def test_encoder_decoders_of_any_size(size: dict[str, int], other: dict[str, int], gated: bool) -> None:
    t5 = {
        "d_model": size["hidden"],
        "d_kv": other["ffn"],
        "d_ff": size["ffn"],
        "num_layers": size["layers"],
        "num_decoder_layers": other["layers"],
        "num_heads": size["heads"],
        "vocab_size": size["vocab"],
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }
    bart = {
        "d_model": size["hidden"],
        "encoder_layers": size["layers"],
        "decoder_layers": other["layers"],
        "encoder_attention_heads": size["heads"],
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": size["ffn"],
        "decoder_ffn_dim": other["ffn"],
        "vocab_size": size["vocab"],
        "max_position_embeddings": size["length"],
    }
    for name, config in (
        ("T5ForConditionalGeneration", t5),
        ("UMT5ForConditionalGeneration", t5),
        ("BartForConditionalGeneration", bart),
        ("MBartForConditionalGeneration", bart),
    ):
        seen, written, _ = built(name, config)
        assert count(written) == seen, name


@settings(max_examples=15, deadline=None)
@given(sizes(), st.integers(2, 9), st.integers(2, 9), st.booleans())
def test_towers_of_any_size(size: dict[str, int], patch: int, side: int, bias: bool) -> None:
    config = {
        "hidden_size": size["hidden"],
        "num_attention_heads": size["heads"],
        "intermediate_size": size["ffn"],
        "num_hidden_layers": size["layers"],
        "patch_size": patch,
        "image_size": [patch * side, patch * (side + 1)],
        "qkv_bias": bias,
    }
    for name in ("ViTForImageClassification", "DeiTModel", "Dinov2Model"):
        seen, written, _ = built(name, config)
        assert count(written) == seen, name
    square = {**config, "image_size": patch * side}
    for name in ("CLIPVisionModel", "SiglipVisionModel"):
        seen, written, _ = built(name, square)
        assert count(written) == seen, name
