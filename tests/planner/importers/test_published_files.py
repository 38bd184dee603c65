"""Published files of every kind of architecture have the parameters of their classes, to the last one."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.planner.importers import load_model
from meshwright.planner.importers.config import ModelConfigError

FILES = Path(__file__).parents[2] / "data" / "hf_configs"
INDEX = list(csv.DictReader((FILES / "index.csv").read_text().splitlines()))
"""The file, its architecture, its parameters in all and for one token (embeddings included) and who counted
them, and what is stated elsewhere by whom. Keras-hub lists and pages say these where a class has none."""

BILLIONS = re.compile(r"([\d.]+)B")


def is_counted(row: dict[str, str]) -> bool:
    """Return whether the graph has the file's parameters: those counted, or the rounded ones stated."""
    graph = load_model(FILES / row["file"])
    if not row["total"]:
        stated = BILLIONS.match(row["stated"])
        assert stated is not None
        return abs(graph.parameters / 1e9 - float(stated[1])) < 0.05
    active = int(row["active"] or row["total"])
    return (graph.parameters, graph.active_parameters) == (int(row["total"]), active)


@pytest.mark.parametrize("row", INDEX, ids=lambda row: row["file"])
def test_file_has_its_parameters(row: dict[str, str]) -> None:
    assert is_counted(row)


def test_every_file_is_in_the_index() -> None:
    assert {f.name for f in FILES.glob("*.json")} == {row["file"] for row in INDEX}


@pytest.mark.parametrize(
    ("file", "billions"),
    # The model card's 685 billion hold 671 of the model, 11.5 of the layer, and the layer's copies of
    # embedding and head (0.93 each), which are shared here.
    [("DeepSeek-V3.json", 685 - 671 - 2 * 0.926), ("GLM-5.json", None), ("DeepSeek-V4-Flash.json", None)],
)
def test_layers_of_multi_token_prediction_are_counted_apart(file: str, billions: float | None) -> None:
    apart, built = load_model(FILES / file), load_model(FILES / file, mtp=True)
    assert apart.mtp_parameters == built.mtp_parameters > 0
    assert built.mtp_included > apart.mtp_included
    assert built.parameters == apart.parameters + apart.mtp_parameters
    assert built.num_layers == apart.num_layers + 1
    assert built.kinds[built.layer_kinds[-2]].name == "mtp"
    if billions:
        assert apart.mtp_parameters / 1e9 == pytest.approx(billions, abs=0.7)


def test_a_model_without_such_layers_is_the_same_with_them() -> None:
    asked = load_model("llama-3.1-8b", mtp=True)
    assert replace(asked, notes=()) == replace(load_model("llama-3.1-8b"), notes=())
    assert any("none were added" in note for note in asked.notes)


@pytest.mark.parametrize("key", ["num_experts_per_tok", "n_routed_experts"])
def test_an_index_of_experts_is_checked(key: str, tmp_path: Path) -> None:
    values = json.loads((FILES / "DeepSeek-V3.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, key: -1}))
    with pytest.raises(ModelConfigError, match=key):
        load_model(tmp_path)
