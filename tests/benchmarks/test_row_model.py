"""The model of a row has the weights that its framework loads."""

from dataclasses import replace

import pytest

from benchmarks.row_model import graph_of
from benchmarks.rows import read_rows

TIED = next(r for r in read_rows() if r.model_name == "gemma-2b" and r.tuning == "lora")


@pytest.mark.parametrize("framework", ["HF Trainer + PEFT", "LitGPT (Fabric)"])
def test_a_tied_head_is_a_weight_of_its_own_where_the_framework_keeps_it_apart(framework: str) -> None:
    graph, assumed = graph_of(replace(TIED, framework=framework))
    apart = framework.startswith("LitGPT")
    assert any(graph.tied) is not apart
    assert any("head apart" in note for note in assumed) is apart
