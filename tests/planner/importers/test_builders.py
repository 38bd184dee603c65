"""Models of several parts from published files: exact counts, a DAG that can be cut, streams that exist."""

import csv
import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.moe import ExpertGemm
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers import PRESETS, load_model
from meshwright.planner.importers.builders import BUILDERS
from meshwright.planner.importers.config import Config, ModelConfigError, read_config
from meshwright.planner.importers.hf import model_from_config
from tests.planner.graphs import dag

DATA = Path(__file__).parents[2] / "data"
FILES = DATA / "hf_configs"
CASES = json.loads((DATA / "parts_counts.json").read_text())["cases"]
TOTALS = {row["file"]: row for row in csv.DictReader((FILES / "index.csv").open())}
PUBLISHED = (
    "BART-large",
    "BERT-large-uncased",
    "CLIP-ViT-L-14",
    "Gemma-3-27B",
    "LLaVA-1.5-7B",
    "Llama-4-Scout-17B-16E",
    "Qwen2-VL-7B",
    "T5-v1.1-XXL",
)


def graph_of(values: dict[str, Any]) -> ModelGraph:
    return model_from_config(Config("test", values), "test")


def kinds_in_order(graph: ModelGraph) -> list[str]:
    return [graph.kinds[k].name for k in graph.layer_kinds]


def labelled(case: dict[str, Any]) -> str:
    return f"{case['config']['architectures'][0]}-{case['parameters']}"


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": case["model_type"], **case["config"]}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_file_has_its_count(name: str) -> None:
    row = TOTALS[f"{name}.json"]
    graph = load_model(FILES / f"{name}.json")
    assert graph.parameters == int(row["total"])
    if row["active"]:
        assert graph.active_parameters == int(row["active"])


@pytest.mark.parametrize("case", CASES, ids=labelled)
def test_count_equals_the_one_seen_in_the_framework(case: dict[str, Any]) -> None:
    graph = graph_of(configuration(case))
    assert graph.parameters == case["parameters"]
    assert graph.block_class == case["block"]


def test_each_builder_is_counted() -> None:
    counted = {case["model_type"] for case in CASES}
    assert set(BUILDERS) - counted <= {
        case["model_type"]
        for file in DATA.glob("*_counts.json")
        for case in json.loads(file.read_text())["cases"]
    }


@pytest.mark.parametrize("case", CASES, ids=labelled)
def test_layers_stand_in_topological_order_and_lead_to_the_head(case: dict[str, Any]) -> None:
    graph = graph_of(configuration(case))
    layers = dag(graph)
    assert all(a < b for a, b in graph.edges)
    last = graph.num_layers - 1
    assert [n for n in layers if layers.out_degree(n) == 0] == [last]
    assert nx.is_weakly_connected(layers)
    names = {"text", *(stream.name for stream in graph.streams)}
    assert {kind.stream for kind in graph.kinds} <= names
    assert graph.context is None or graph.context in names
    assert all(b <= last for pair in graph.tied for b in pair)


@pytest.mark.parametrize("name", ["t5-v1.1-xxl", "bart-large", "whisper-large-v3"])
def test_every_decoder_layer_reads_the_encoder(name: str) -> None:
    graph = load_model(name)
    order = kinds_in_order(graph)
    decoder = [i for i, kind in enumerate(order) if kind == "decoder"]
    output = max(i for i, kind in enumerate(order) if kind in ("encoder", "encoder.norm"))
    assert {(output, i) for i in decoder} <= set(graph.edges)
    assert graph.context == "text"
    streams = {graph.kinds[k].name: graph.kinds[k].stream for k in graph.layer_kinds}
    assert streams["encoder"] == "text"
    assert streams["decoder"] == streams["head"] == "target"
    # Whatever stands between encoder and last block hands the encoder's features on.
    assert all(graph.kinds[graph.layer_kinds[i]].carries == graph.hidden_size for i in decoder)


def test_tower_joins_at_the_text_embedding() -> None:
    order = kinds_in_order(load_model("llava-1.5-7b"))
    assert order == ["patches", *["tower"] * 24, "projector", "embedding", *["decoder"] * 32, "head"]


def test_image_tower_and_text_tower_meet_at_the_head() -> None:
    graph = load_model("clip-vit-l-14")
    order, layers = kinds_in_order(graph), dag(graph)
    head = len(order) - 1
    assert set(layers.predecessors(head)) == {order.index("image"), head - 1}
    assert layers.in_degree(order.index("embedding")) == 0


def test_mllama_hands_the_image_on_to_its_last_cross_attention_layer() -> None:
    graph = graph_of(
        {
            "model_type": "mllama",
            "text_config": {"num_hidden_layers": 8, "cross_attention_layers": [2, 5]},
            "vision_config": {"num_hidden_layers": 2, "num_global_layers": 1},
        }
    )
    order = kinds_in_order(graph)
    projector, first = order.index("projector"), order.index("embedding") + 1
    assert {b for a, b in graph.edges if a == projector} == {first + 2, first + 5}
    carried = [bool(graph.kinds[k].carries) for k in graph.layer_kinds[first - 1 : -1]]
    assert carried == [True] * 6 + [False] * 3


def test_whole_gemma3_has_its_tower_and_the_text_preset_has_none() -> None:
    whole, text = load_model(FILES / "Gemma-3-27B.json"), load_model("gemma-3-27b")
    assert "tower" in kinds_in_order(whole)
    assert "tower" not in kinds_in_order(text)
    assert whole.parameters > text.parameters
    assert whole.hidden_size == text.hidden_size


def test_active_parameters_leave_out_experts_of_a_nested_decoder() -> None:
    graph = load_model(FILES / "Llama-4-Scout-17B-16E.json")
    assert any(isinstance(op, ExpertGemm) for kind in graph.kinds for op in kind.operators)
    assert graph.active_parameters < graph.parameters


def test_bert_without_a_model_type_is_known_by_its_segments() -> None:
    values = dict(read_config(FILES / "BERT-large-uncased.json").values)
    assert "model_type" not in values
    assert graph_of(values).family == "bert"


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("BertModel", 1024**2 + 1024),
        ("BertForTokenClassification", 3 * 1024 + 3),
        ("BertForMaskedLM", 1024**2 + 3 * 1024 + 30522),
    ],
)
def test_the_class_that_the_file_names_tells_the_head(architecture: str, more: int) -> None:
    values = {
        **read_config(FILES / "BERT-large-uncased.json").values,
        "architectures": [architecture],
        "num_labels": 3,
    }
    body = (30522 + 512 + 2 + 2) * 1024 + 24 * (12 * 1024**2 + 13 * 1024)
    assert graph_of(values).parameters == body + more


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForNothing"]}, "architectures.*ForMaskedLM"),
        ({"model_type": "t5", "feed_forward_proj": "gated-silu-x"}, "feed_forward_proj"),
        ({"model_type": "vit", "image_size": [1, 2, 3]}, "image_size"),
        ({"model_type": "llava", "text_config": 3}, "text_config"),
        ({"model_type": "llava", "vision_config": {"model_type": "swin"}}, "model_type.*clip_vision_model"),
        ({"model_type": "llava", "text_config": {"model_type": "t5"}}, "decoder-only"),
        ({"model_type": "internvl", "downsample_ratio": 0}, "downsample_ratio"),
        ({"model_type": "qwen3_vl", "vision_config": {"deepstack_visual_indexes": 3}}, "deepstack"),
        ({"model_type": "mllama", "text_config": {"cross_attention_layers": 3}}, "cross_attention_layers"),
    ],
)
def test_what_cannot_be_read_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        graph_of(values)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.floats(allow_nan=True),
    st.text(max_size=4),
    st.lists(st.integers(-1, 40), max_size=3),
    st.dictionaries(st.sampled_from(("hidden_size", "model_type", "x")), st.integers(0, 9), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_junk_in_a_file_is_read_or_refused(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    values = json.loads(json.dumps(configuration(case)))
    places = [values, *(v for v in values.values() if isinstance(v, dict))]
    place = data.draw(st.sampled_from(places))
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    keys = st.sampled_from(sorted({*place, *names, "tie_word_embeddings"} - {"model_type"}))
    place[data.draw(keys)] = data.draw(JUNK)
    try:
        assert graph_of(values).parameters > 0
    except MeshwrightError as error:
        assert str(error)


def test_prediction_layers_of_the_text_part_stand_before_the_head() -> None:
    """A tower in front changes nothing about the decoder's layers behind."""
    sizes = json.loads((PRESETS / "deepseek-v3.json").read_text())
    values = {"model_type": "llava", "text_config": sizes | {"num_hidden_layers": 4}}
    apart, built = (model_from_config(Config("test", values), "m", mtp=mtp) for mtp in (False, True))
    assert apart.mtp_parameters == built.mtp_parameters > 0
    assert built.mtp_included > apart.mtp_included
    assert built.parameters == apart.parameters + apart.mtp_parameters
    assert kinds_in_order(built)[-2:] == ["mtp", "head"]
    assert not any("none were added" in note for note in built.notes)


def test_a_tower_before_a_decoder_without_such_layers_says_so() -> None:
    assert any("none were added" in note for note in load_model("llava-1.5-7b", mtp=True).notes)


def test_the_text_part_alone_is_not_the_whole_file() -> None:
    file = json.loads((FILES / "Llama-4-Scout-17B-16E.json").read_text())
    values = file | {"architectures": ["Llama4ForCausalLM"]}
    with pytest.raises(ModelConfigError, match="text_config as a file of its own"):
        model_from_config(Config("test", values), "m")
