"""meshwright_recipe.py is Python that says every decision of the plan in Megatron-Core's words."""

import ast

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.megatron_bridge import model_fields
from meshwright.planner.emit.registry import emit
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import case, cluster
from tests.strategies import launchable


def calls(source: str) -> dict[str, dict[str, object]]:
    """Return the constant keyword arguments of every call by a bare name."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            pairs = ((k.arg, k.value) for k in node.keywords)
            found[node.func.id] = {k: v.value for k, v in pairs if k and isinstance(v, ast.Constant)}
    return found


@given(launchable("megatron-bridge"))
@settings(max_examples=25, deadline=None)
def test_the_recipe_says_the_plan(drawn) -> None:
    problem, plan = drawn
    files = emit(problem, plan)
    compile(files["train.py"], "train.py", "exec")
    found = calls(files["meshwright_recipe.py"])
    train = found["TrainingConfig"]
    assert (train["global_batch_size"], train["micro_batch_size"]) == (
        plan.global_batch_size,
        plan.micro_batch_size,
    )
    assert found["GPTDatasetConfig"]["seq_length"] == plan.sequence_length
    shards = found["DistributedDataParallelConfig"].get("use_distributed_optimizer", False)
    assert shards is (plan.zero_stage == 1)
    fields = model_fields(problem, plan)
    degrees = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
    assert [fields[d] for d in degrees] == [plan.tp, plan.pp, plan.cp]
    assert ("recompute_granularity" in fields) == ("full" in plan.recompute)


def test_lists_numbers_and_switches_keep_their_kinds() -> None:
    problem = Problem(
        load_model("qwen3-30b-a3b"),
        cluster("dgx-h100:2"),
        Job(64, 4096, target="megatron-bridge"),
    )
    plan = make_plan(problem, tp=2, cp=4, ulysses=2, ep=8)
    fields = model_fields(problem, plan)
    assert fields["sequence_parallel"] is True
    assert fields["hierarchical_context_parallel_sizes"] == [2, 2]
    assert (fields["expert_model_parallel_size"], fields["expert_tensor_parallel_size"]) == (8, 1)
    assert fields["moe_permute_fusion"] is True


def test_virtual_stages_stand_beside_the_layout() -> None:
    fields = model_fields(*case("megatron-bridge", tp=2, pp=2, vpp=2))
    assert fields["virtual_pipeline_model_parallel_size"] == 2
    assert fields["pipeline_model_parallel_layout"] == "Et*8|t*8|t*8|t*8L"


@pytest.mark.parametrize(
    ("job", "named"), [({"precision": "fp8"}, "precision=fp8"), ({"optimizer": "sgd"}, "sgd")]
)
def test_what_the_recipe_cannot_say_is_refused(job: dict, named: str) -> None:
    with pytest.raises(MeshwrightError, match=f"Megatron-Bridge.* cannot train this: .*{named}"):
        case("megatron-bridge", job=job)


@pytest.mark.parametrize(
    ("loss", "said"), [("full", (False, None)), ("jit", (True, "native")), ("te", (True, "te"))]
)
def test_the_cross_entropy_is_said_for_it_decides_what_logits_cost(loss: str, said: tuple) -> None:
    fields = model_fields(*case("megatron-bridge", job={"loss": loss}))
    assert (fields["cross_entropy_loss_fusion"], fields.get("cross_entropy_fusion_impl")) == said
