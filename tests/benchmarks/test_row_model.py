"""The model of a row has the weights that its framework loads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.row_model import USUAL_WORDS, graph_of
from benchmarks.rows import read_rows
from tests.benchmarks.cases import PLAIN

TIED = next(r for r in read_rows() if r.model_name == "gemma-2b" and r.tuning == "lora")


@pytest.mark.parametrize("framework", ["HF Trainer + PEFT", "LitGPT (Fabric)"])
def test_a_tied_head_is_a_weight_of_its_own_where_the_framework_keeps_it_apart(framework: str) -> None:
    graph, assumed = graph_of(replace(TIED, framework=framework))
    apart = framework.startswith("LitGPT")
    assert any(graph.tied) is not apart
    assert any("head apart" in note for note in assumed) is apart


def test_experts_of_one_branch_have_two_products() -> None:
    sizes = {"layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": None, "ffn_hidden": 8192}
    moe = {"experts": 64, "topk": 2, "expert_ffn": 8192}
    row = replace(PLAIN, model_name="Switch-like", params_b=None, vocab=51200, moe=moe, **sizes)
    one, two = (graph_of(replace(row, gated_mlp=gated))[0].parameters for gated in (False, True))
    experts = 24 * 64 * 2048 * 8192
    assert one == pytest.approx(2 * experts, rel=0.05)
    assert two == pytest.approx(3 * experts, rel=0.05)


@pytest.mark.parametrize(("year", "words"), [(2021, 51_200), (2023, 32_000), (2026, 128_256), (None, 32_000)])
def test_words_that_nothing_tells_are_those_of_models_of_the_time(year: int | None, words: int) -> None:
    row = replace(PLAIN, model_name="Anything", params_b=None, vocab=None, year=year)
    graph, assumed = graph_of(row)
    assert graph.vocab_size == words
    assert f"vocabulary not stated: {words:,}" in assumed


@given(words=st.sampled_from(USUAL_WORDS), layers=st.integers(16, 64), heads=st.integers(16, 48))
def test_a_printed_count_tells_which_of_the_usual_vocabularies_a_model_has(
    words: int, layers: int, heads: int
) -> None:
    sizes = {"layers": layers, "hidden": 128 * heads, "heads": heads, "kv_heads": heads}
    row = replace(PLAIN, model_name="GPT", ffn_hidden=512 * heads, year=2024, params_b=None, **sizes)
    billions = graph_of(replace(row, vocab=words))[0].parameters / 1e9
    graph, _ = graph_of(replace(row, vocab=None, params_b=billions))
    assert graph.vocab_size == words
    name = graph_of(replace(row, vocab=None, params_b=round(billions)))[0]  # a name counts nothing
    assert name.vocab_size == 51_200


SMALL = {"hidden": 1024, "heads": 8, "kv_heads": 8, "ffn_hidden": 4096}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params_b": 6.2}, 32_000),
        ({"params_b": 5.9}, 51_200),  # no vocabulary makes it so few: something else is amiss
        ({"params_b": 1.5, "layers": None, **SMALL}, 51_200),  # it has told the layers already
    ],
)
def test_a_count_tells_the_vocabulary_only_where_one_meets_it_and_nothing_else_follows_from_it(
    changes: dict[str, float | None], words: int
) -> None:
    sizes = {
        "layers": 30,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 32,
        "ffn_hidden": 16384,
        "gated_mlp": False,
    }
    row = replace(PLAIN, **{"model_name": "GPT", "year": 2024, "vocab": None, **sizes, **changes})
    assert graph_of(row)[0].vocab_size == words


def test_the_zero_bubble_paper_s_models_know_as_many_words_as_llama() -> None:
    rows = [r for r in read_rows() if r.family == "zero-bubble"]
    assert {graph_of(r)[0].vocab_size for r in rows} == {32_000}
