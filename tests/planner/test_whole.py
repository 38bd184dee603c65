"""An embedding that each tensor rank holds whole costs memory and saves the sum behind it."""

from dataclasses import replace

import pytest

from meshwright.costmodels.operators import Boundary
from meshwright.costmodels.vocabulary import Embedding
from meshwright.costmodels.work import Shape
from meshwright.planner.estimate import estimate_problem
from meshwright.planner.whole import with_whole_embedding
from tests.planner.emit.cases import case, model


def embedding(graph) -> Embedding:
    return next(op for op in graph.kinds[graph.layer_kinds[0]].operators if isinstance(op, Embedding))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_every_rank_holds_all_rows(tp: int) -> None:
    whole, shape = embedding(with_whole_embedding(model())), Shape(1, 16, tp, 0)
    assert whole.local_parameters(shape) == whole.parameters() == embedding(model()).parameters()
    assert embedding(model()).local_parameters(shape) == whole.parameters() / tp
    assert whole.parts == ()


def test_no_sum_follows_the_embedding_and_all_else_stays() -> None:
    graph = model()
    whole = with_whole_embedding(graph)
    first = whole.kinds[whole.layer_kinds[0]]
    assert not [op for op in first.operators if isinstance(op, Boundary)]
    assert whole.kinds[1:] == graph.kinds[1:]
    assert whole.parameters == graph.parameters


def test_deepspeed_s_tensor_ranks_hold_more_than_their_share() -> None:
    problem, plan = case("deepspeed", tp=8, zero_stage=0, recompute="full")
    anyway = replace(problem, job=replace(problem.job, target="any", profile="deepspeed"))
    split = replace(plan, target="any")
    whole_bytes = max(estimate_problem(problem, plan).peak_bytes)
    split_bytes = max(estimate_problem(anyway, split).peak_bytes)
    states = 7 / 8 * 128256 * 4096
    assert whole_bytes - split_bytes > 2 * states
