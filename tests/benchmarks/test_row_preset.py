"""Sizes that a row leaves open are those of the public model that it names, or usual ones, and told."""

from dataclasses import replace

import pytest

from benchmarks.measured_prices import express
from benchmarks.row_model import graph_of
from benchmarks.row_preset import named_preset, public_sizes, sizes_of
from benchmarks.rows import read_rows
from meshwright.hardware.units import GIGA
from meshwright.planner.importers import load_model, preset_names
from tests.benchmarks.cases import PLAIN

LLAMA = replace(
    PLAIN,
    model_name="Llama 3.1 70B",
    params_b=None,
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=None,
    ffn_hidden=28672,
    vocab=128256,
)
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")


@pytest.mark.parametrize(
    ("said", "preset"),
    [
        ("LLAMA3_70B", "llama-3-70b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("GPT3 175B", "gpt3-175b"),
        ("mixtral_8x7b", "mixtral-8x7b"),
        ("OPT-1.3B", "opt-1.3b"),
        ("Llama 3 700B", None),
        ("GPT 1.2B", None),
        ("Qwen3-30B-A3B-2507", "qwen3-30b-a3b"),
        ("Llama-3.1-8B-128k", "llama-3.1-8b"),
        ("phi-25", None),
    ],
)
def test_a_name_belongs_to_the_longest_preset_that_it_holds(said: str, preset: str | None) -> None:
    assert named_preset(said) == preset


def test_every_preset_is_named_by_itself() -> None:
    assert all(named_preset(name) == name for name in preset_names())


@pytest.mark.parametrize("size", SIZES)
def test_a_size_that_is_not_printed_is_the_public_one(size: str) -> None:
    got, notes = graph_of(replace(LLAMA, **{size: None}))
    assert got.parameters == graph_of(LLAMA)[0].parameters
    assert any(note.startswith(size) for note in notes)


def test_a_name_alone_is_a_model() -> None:
    row = replace(LLAMA, model_name="Mixtral 8x7B", moe=None, **dict.fromkeys((*SIZES, "head_dim")))
    got, notes = graph_of(row)
    assert got.parameters == load_model("mixtral-8x7b").parameters
    assert "model as the public mixtral-8x7b" in notes


@pytest.mark.parametrize("name", ["deepseek-llm-7b", "falcon-40b", "qwen2.5-0.5b", "qwen3-4b"])
def test_a_public_model_with_its_sizes_printed_is_itself(name: str) -> None:
    sizes = dict.fromkeys((*SIZES, "head_dim")) | sizes_of(name)
    row = replace(LLAMA, model_name=name, gated_mlp=None, **sizes)
    assert graph_of(row)[0].parameters == pytest.approx(load_model(name).parameters, rel=1e-3)


@pytest.mark.parametrize("name", ["falcon-40b", "gpt-j-6b", "gemma-2-27b", "qwen3-0.6b"])
def test_a_name_alone_is_the_public_model_whatever_sizes_its_style_has(name: str) -> None:
    row = replace(LLAMA, model_name=name, **dict.fromkeys((*SIZES, "head_dim")))
    assert graph_of(row)[0].parameters == load_model(name).parameters


@pytest.mark.parametrize(
    "name", ["mamba-2.8b", "opt-13b", "recurrentgemma-2b", "nemotron-h-8b", "bert-large"]
)
def test_a_public_model_of_another_kind_is_itself(name: str) -> None:
    public = load_model(name)
    row = replace(LLAMA, model_name=name.upper(), seq_len=512, **dict.fromkeys((*SIZES, "head_dim")))
    hidden = replace(row, hidden=sizes_of(name).get("hidden"), layers=sizes_of(name).get("layers"))
    for one in (row, hidden):
        assert graph_of(replace(one, gated_mlp=None))[0].parameters == public.parameters


def test_a_model_of_other_sizes_is_not_the_public_one() -> None:
    assert public_sizes(replace(LLAMA, hidden=4096, kv_heads=None, ffn_hidden=11008, heads=32))[0] == {}


def test_a_model_cut_short_keeps_its_layers_open() -> None:
    row = replace(LLAMA, model_name="Llama 3.1 70B proxy", layers=None, kv_heads=None)
    assert public_sizes(row)[0] == {"kv_heads": 8}


@pytest.mark.parametrize("size", ["heads", "ffn_hidden"])
def test_an_unknown_model_has_usual_sizes(size: str) -> None:
    row = replace(LLAMA, model_name="Anything", **{size: None})
    known, usual = graph_of(row)[0].parameters, graph_of(LLAMA)[0].parameters
    assert known == pytest.approx(usual, rel=0.3)


def test_layers_that_are_not_printed_are_what_the_parameters_leave() -> None:
    rows = {r.model_name: r for r in read_rows() if r.moe is None and r.params_b and r.layers}
    asked = [r for r in rows.values() if r.kv_heads == r.heads and (r.params_b or 0) > 1]
    assert len(asked) > 10
    for row in asked:
        graph, _ = graph_of(replace(row, model_name="Anything", layers=None, tuning=None))
        assert graph.parameters == pytest.approx((row.params_b or 0) * GIGA, rel=0.2), row.id


def test_a_width_without_anything_else_is_a_reason() -> None:
    row = replace(LLAMA, model_name="Anything", layers=None)
    with pytest.raises(Exception, match="layers"):
        express(row)


@pytest.mark.parametrize("gated", [True, False])
def test_branches_are_those_that_a_row_prints_whatever_the_name(gated: bool) -> None:
    rows = [replace(LLAMA, model_name=name, gated_mlp=gated) for name in ("Anything", "GPT-like", "7B")]
    feeds = {graph_of(row)[0].kinds[1].parameters() for row in rows}
    spread = max(feeds) / min(feeds)
    assert spread < 1.01
