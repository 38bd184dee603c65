"""Built-in models: their sizes give the published counts."""

import json

import pytest

from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.importers import PRESETS, _repositories, load_model, preset_names

PUBLISHED = {
    file.stem: values["_parameters"]
    for file in PRESETS.glob("*.json")
    if "_parameters" in (values := json.loads(file.read_text()))
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_preset_has_its_published_parameters(name: str) -> None:
    assert load_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt3-175b", 174.6), ("gpt-22b", 22.07), ("gpt-530b", 529.6), ("gpt-1t", 1008.0), ("opt-175b", 174.6)],
)
def test_papers_sizes(name: str, billions: float) -> None:
    # arXiv 2205.05198, table 3 (22B, 175B, 530B, 1T; equation of arXiv 2104.04473, section 5.1).
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize("name", preset_names())
def test_preset_needs_no_assumption_and_names_its_source(name: str) -> None:
    assert load_model(name).notes == ()
    assert json.loads((PRESETS / f"{name}.json").read_text())["_source"]


def test_names_are_found_in_any_case() -> None:
    assert load_model("Llama-3.1-8B") == load_model("llama-3.1-8b")


@pytest.mark.parametrize("name", ["llama-3.1-8", "", "no/such/folder", "a" * 5000, "nul\0byte"])
def test_unknown_name_says_what_could_be_meant(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"config\.json.*YAML"):
        load_model(name)


def test_a_file_that_is_not_there_is_called_so() -> None:
    with pytest.raises(UnknownNameError, match=r"'mine/config\.json' is not known; there is no such file"):
        load_model("mine/config.json")


def test_near_names_are_offered() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean.*llama-3\.1-8b"):
        load_model("llama3.1-8b")


def test_a_repository_whose_file_a_preset_is_stands_for_it() -> None:
    assert load_model("meta-llama/Llama-3.1-8B") == load_model("llama-3.1-8b")
    assert load_model("qwen/qwen3-30b-a3b") == load_model("qwen3-30b-a3b")
    named = [name for name in preset_names() if name in _repositories().values()]
    assert len(named) == len(_repositories()) > 100  # no two presets are of one repository


def test_another_repository_is_met_with_the_nearest_preset_and_the_command_that_fetches_its_file() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("meta-llama/Llama-3.1-8B-Instruct")
    told = str(caught.value)
    assert "did you mean llama-3.1-8b," in told
    assert (
        "`hf download meta-llama/Llama-3.1-8B-Instruct config.json --local-dir Llama-3.1-8B-Instruct`" in told
    )
    for other in ("llama-3.1-8", "a/b/c", "mine/config.json", "a/b; rm -rf c", "-x/y"):
        with pytest.raises(UnknownNameError) as caught:
            load_model(other)
        assert "hf download" not in str(caught.value)
