"""Fine-tuning: frozen weights cost no states, adapters little, and no parameter gets lost."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.blocks import decoder_graph
from meshwright.planner.graph import ModelGraph
from meshwright.planner.pricing import model_flops, price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from meshwright.planner.tuned import trainable_parameters, tuned
from meshwright.planner.tuning import BASES, Tuning
from tests.planner.emit.cases import case, cluster, model
from tests.strategies import decoders

ranks = st.integers(1, 64)
targets = st.lists(
    st.sampled_from(("q", "k", "v", "o", "attention", "mlp", "down")), min_size=1, unique=True
).map(tuple)
bases = st.sampled_from(sorted(BASES))
graphs = decoders().map(lambda spec: decoder_graph(spec, "drawn"))
meshes = st.sampled_from(
    [{"tp": 1}, {"tp": 4, "pp": 2}, {"zero_stage": 3, "recompute": "full"}, {"tp": 2, "zero_stage": 1}]
)


def priced(tuning: Tuning, mesh: dict[str, Any], **job: Any) -> Any:
    problem, plan = case(job={"tuning": tuning, **job}, **mesh)
    return price_plan(problem, plan)


def states(estimate: Any, *items: str) -> float:
    return max(sum(stage[item] for item in items) for stage in estimate.memory)


# Parameters ----------------------------------------------------------------------------------------------


@given(graphs, ranks, targets, bases)
def test_adapters_are_added_and_no_parameter_gets_lost(
    graph: ModelGraph, rank: int, chosen: tuple[str, ...], base: str
) -> None:
    model = tuned(graph, Tuning("lora", rank, chosen, base))
    added = trainable_parameters(model)
    assert model.parameters == graph.parameters + added
    assert added > 0
    assert (model.num_layers, model.edges) == (graph.num_layers, graph.edges)


@given(graphs, ranks, targets)
def test_trained_parameters_grow_in_proportion_to_the_rank(
    graph: ModelGraph, rank: int, chosen: tuple[str, ...]
) -> None:
    once, twice = (trainable_parameters(tuned(graph, Tuning("lora", r, chosen))) for r in (rank, 2 * rank))
    assert twice == 2 * once


@given(graphs, st.data())
def test_frozen_and_trained_blocks_add_up(graph: ModelGraph, data: st.DataObject) -> None:
    blocks = len(graph.block_layers)
    first = data.draw(st.integers(1, max(1, blocks - 1)))
    if first >= blocks:
        return
    model = tuned(graph, Tuning("freeze", frozen_layers=first, train_embeddings=True))
    frozen = sum(graph.kinds[graph.layer_kinds[i]].parameters() for i in graph.block_layers[:first])
    assert trainable_parameters(model) == graph.parameters - frozen
    assert model.parameters == graph.parameters


# Memory --------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(ranks, bases, meshes)
def test_adapters_never_need_more_memory_for_states_than_training_everything(
    rank: int, base: str, mesh: dict[str, Any]
) -> None:
    full, lora = priced(Tuning(), mesh), priced(Tuning("lora", rank, base=base), mesh)
    items = ("weights", "gradients", "master_weights", "optimizer_moments")
    assert states(lora, *items) <= states(full, *items)


@settings(max_examples=12, deadline=None)
@given(ranks, meshes)
def test_more_rank_never_costs_less(rank: int, mesh: dict[str, Any]) -> None:
    less, more = (priced(Tuning("lora", r), mesh) for r in (rank, rank + 8))
    assert max(less.peak_bytes) <= max(more.peak_bytes) * (1 + 1e-12)
    assert less.model_flops < more.model_flops


@settings(max_examples=12, deadline=None)
@given(ranks, meshes)
def test_frozen_weights_have_no_moments_and_no_gradients(rank: int, mesh: dict[str, Any]) -> None:
    """Only what is trained has them: 8 bytes of moments, 4 of master weights and gradient each."""
    problem, plan = case(job={"tuning": Tuning("lora", rank)}, **mesh)
    got = price_plan(problem, plan)
    shards = plan.dp if plan.zero_stage else 1
    moments = sum(stage["optimizer_moments"] for stage in got.memory) * plan.tp * shards
    trained = trainable_parameters(problem.model)
    assert 8 * trained <= moments * (1 + 1e-9)
    # beside row-parallel products B is whole on each of the tp ranks, beside column-parallel ones A
    assert moments <= 8 * trained * plan.tp * (1 + 1e-9)
    assert states(got, "gradients") <= 4 * trained


@settings(max_examples=8, deadline=None)
@given(meshes)
def test_a_narrower_base_takes_less_memory_and_more_time(mesh: dict[str, Any]) -> None:
    found = {base: priced(Tuning("lora", base=base), mesh) for base in ("model", "int8", "nf4")}
    weights = [states(found[base], "weights") for base in ("model", "int8", "nf4")]
    assert weights == sorted(weights, reverse=True)
    assert found["model"].step_time_s < found["nf4"].step_time_s
    assert found["model"].model_flops == found["nf4"].model_flops


def test_more_frozen_blocks_never_cost_more() -> None:
    found = [priced(Tuning("freeze", frozen_layers=n), {"tp": 4}) for n in (1, 8, 16, 32)]
    for name in ("step_time_s", "model_flops", "trainable_parameters"):
        values = [getattr(e, name) for e in found]
        assert values == sorted(values, reverse=True), name
    peaks = [max(e.peak_bytes) for e in found]
    assert peaks == sorted(peaks, reverse=True)


# Limits --------------------------------------------------------------------------------------------------


def test_one_frozen_block_is_nearly_full_training() -> None:
    full, one = (
        model_flops(case(job={"tuning": t})[0]) for t in (Tuning(), Tuning("freeze", frozen_layers=1))
    )
    assert one == pytest.approx(full, rel=1 / 32)
    assert one < full


def test_text_and_tuning_price_the_same() -> None:
    problems = [
        Problem.load(
            model(), cluster("dgx-h100:1"), {"global_batch_size": 8, "sequence_length": 512, "tuning": t}
        )
        for t in ("qlora:r=8", {"kind": "qlora", "rank": 8}, Tuning("lora", 8, base="nf4"))
    ]
    prices = {price_plan(p, make_plan(p)).step_time_s for p in problems}
    assert len(prices) == 1
