"""Layers of multi-token prediction: one block more, a projection, the shared head and its loss again."""

from dataclasses import replace

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp

SPEC = DecoderSpec(
    hidden=512,
    layers=3,
    heads=8,
    kv_heads=4,
    head_dim=64,
    ffn=1024,
    vocab=1000,
    feeds=(Mlp(), Experts(8, 2, 256), Experts(8, 2, 256)),
    mtp_layers=2,
)
SHAPE = Shape(1, 1024, 1, False)


def flops(graph_kind) -> float:  # type: ignore[no-untyped-def]
    return sum(float(w.flops) for op in graph_kind.operators for w in op.forward(SHAPE))


def test_its_parameters_are_a_block_a_projection_and_three_norms() -> None:
    graph = decoder_graph(SPEC, "g")
    block = graph.kinds[graph.layer_kinds[-2]].parameters()
    assert graph.mtp_parameters == 2 * (block + 2 * 512 * 512 + 3 * 512)
    assert decoder_graph(replace(SPEC, mtp_layers=0), "g").parameters == graph.parameters


def test_it_stands_before_the_head_and_costs_the_head_again() -> None:
    graph = decoder_graph(SPEC, "g", mtp=True)
    assert [graph.kinds[k].name for k in graph.layer_kinds[-3:]] == ["mtp", "mtp", "head"]
    block, mtp, head = (graph.kinds[i] for i in (-3, -2, -1))
    assert flops(mtp) == flops(block) + flops(head) + 2 * 1024 * 2 * 512 * 512
    assert graph.copied_parameters == 2 * 1000 * 512  # each has the embedding on its own stage
    assert graph.edges[-1] == (graph.num_layers - 2, graph.num_layers - 1)


def test_the_head_s_weight_is_no_memory_again_and_the_embedding_is_a_copy() -> None:
    kind = decoder_graph(SPEC, "g", mtp=True).kinds[-2]
    held = {op.name: float(op.local_parameters(SHAPE)) for op in kind.operators}
    assert (held["mtp_head"], held["mtp_tokens"]) == (0, 1000 * 512)
    assert {op.name: op.parameters() for op in kind.operators}["mtp_tokens"] == 0


def test_its_head_multiplies_in_16_bits_as_the_models_own_does() -> None:
    kind = decoder_graph(SPEC, "g", mtp=True).kinds[-2]
    lowered = adapt(kind, find_profile("generic"), find_loss("full"), find_precision("fp8-block"))
    low = {op.name for op in lowered.operators if getattr(op, "low_precision", False)}
    assert "mtp_head" not in low
    assert "mtp_projection" in low
