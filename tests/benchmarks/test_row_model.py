"""The model of a row has the weights that its framework loads."""

from dataclasses import replace

import pytest

from benchmarks.row_model import graph_of
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
