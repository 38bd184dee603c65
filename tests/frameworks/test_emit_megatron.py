"""Megatron-Core reads the layouts and takes the values that the emitted arguments hold."""

import pytest
from hypothesis import given, settings

from meshwright.planner.emit.megatron import layout
from tests.planner.emit.cases import case
from tests.planner.emit.test_megatron import flags, routed
from tests.strategies import launchable

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core.transformer import TransformerConfig  # noqa: E402  # after the skip
from megatron.core.transformer.enums import LayerType  # noqa: E402  # after the skip
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402  # after the skip
    PipelineParallelLayerLayout,
)

MODEL = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8}


@given(launchable("megatron"))
@settings(max_examples=20, deadline=None)
def test_the_layout_puts_every_layer_where_the_plan_does(drawn) -> None:
    _, plan = drawn
    parsed = PipelineParallelLayerLayout(layout(plan), plan.pp)
    parsed.validate_layer_layout(plan.num_layers - 2, 0)
    for i, chunk in enumerate(plan.chunks):
        own = parsed.layout[i % plan.pp][i // plan.pp]
        assert len(own) == chunk.stop - chunk.start
        assert (LayerType.embedding in own, LayerType.loss in own) == (i == 0, i == len(plan.chunks) - 1)


def test_a_layer_too_few_is_refused() -> None:
    _, plan = case("megatron", pp=2)
    with pytest.raises(AssertionError, match="Number of decoder layers"):
        TransformerConfig(
            **{**MODEL, "num_layers": 33},
            pipeline_model_parallel_size=2,
            pipeline_dtype=torch.bfloat16,
            pipeline_model_parallel_layout=layout(plan),
        )


@pytest.mark.parametrize("mode", ["full", "selective", "moe"])
def test_recompute_arguments_are_accepted(mode: str) -> None:
    problem, plan = routed(ep=8, recompute=mode)
    found = flags(problem, plan)
    values = {
        "recompute_granularity": found["--recompute-granularity"][0],
        "recompute_method": found.get("--recompute-method", [None])[0],
        "recompute_num_layers": int(found["--recompute-num-layers"][0]) if mode == "full" else None,
        "recompute_modules": found.get("--recompute-modules"),
    }
    config = TransformerConfig(**MODEL, num_moe_experts=8, moe_grouped_gemm=True, **values)
    assert config.recompute_granularity == values["recompute_granularity"]


@pytest.mark.parametrize("exchange", [{}, {"kv_exchange": "all_gather"}, {"ulysses": 4}, {"ulysses": 2}])
def test_the_way_of_context_parallelism_is_accepted(exchange: dict) -> None:
    found = flags(*case("megatron", cp=4, **exchange))
    config = TransformerConfig(**MODEL, context_parallel_size=4, cp_comm_type=found["--cp-comm-type"][0])
    assert config.cp_comm_type == found["--cp-comm-type"][0]
