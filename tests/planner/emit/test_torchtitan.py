"""meshwright_config.py compiles and says every decision of the plan, in fields that torchtitan has."""

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import splits_backward
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.emit.registry import emit, inexpressible
from meshwright.planner.field import survey
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.space import space
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import case, cluster
from tests.planner.emit.torchtitan_fields import PARALLELISM, TRAINER, TRAINING
from tests.strategies import launchable


def named(model: str, job: dict | None = None, **strategy: Any) -> tuple[Problem, Plan]:
    """Return another model on 16 devices."""
    work = {"global_batch_size": 64, "sequence_length": 4096, "target": "torchtitan", **(job or {})}
    problem = Problem(load_model(model), cluster("dgx-h100:2"), Job(**work))
    return problem, make_plan(problem, **strategy)


def calls(problem: Problem, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the keywords of every call in the source; those that are no literals as source."""
    found = {}
    for node in ast.walk(ast.parse(emit(problem, plan)["meshwright_config.py"])):
        if isinstance(node, ast.Call) and node.keywords:
            found[ast.unparse(node.func)] = {str(k.arg): _literal(k.value) for k in node.keywords}
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def recomputed(problem: Problem, plan: Plan) -> tuple[str, list[int] | None]:
    """Return the policy of checkpointing and the layers that it names."""
    tree = ast.parse(emit(problem, plan)["meshwright_config.py"])
    assigned = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    policy = str(calls(problem, plan)["Trainer.Config"]["activation_checkpoint"])
    return policy, ast.literal_eval(assigned["RECOMPUTED"]) if "RECOMPUTED" in assigned else None


@given(launchable("torchtitan"))
@settings(max_examples=40, deadline=None)
def test_fields_are_torchtitan_s_and_degrees_and_batch_add_up(drawn) -> None:
    problem, plan = drawn
    found = calls(problem, plan)
    t, p = found["TrainingConfig"], found["ParallelismConfig"]
    assert set(t) <= TRAINING
    assert set(p) <= PARALLELISM
    assert set(found["Trainer.Config"]) <= TRAINER
    data = p["data_parallel_replicate_degree"] * p["data_parallel_shard_degree"]
    model = p["tensor_parallel_degree"] * p["context_parallel_degree"] * p["pipeline_parallel_degree"]
    assert data * model == plan.num_devices
    # The trainer's own sums: passes that accumulate, and micro-batches of a pipeline.
    accumulation, rest = divmod(t["global_batch_size"], t["local_batch_size"] * data)
    micro = t["local_batch_size"] // p.get("pipeline_parallel_microbatch_size", t["local_batch_size"])
    assert (accumulation * micro, rest) == (plan.num_microbatches, 0)
    assert accumulation == 1 or plan.pp == 1
    assert p["fsdp_reshard_after_forward"] == {2: "never", 3: "always"}[plan.zero_stage]


@pytest.mark.parametrize(
    ("schedule", "vpp", "said"),
    [
        ("gpipe", 1, "GPipe"),
        ("1f1b", 1, "1F1B"),
        ("interleaved", 3, "Interleaved1F1B"),
        ("interleaved_zb", 2, "InterleavedZeroBubble"),
        ("zbv", 2, "ZBVZeroBubble"),
        ("dualpipev", 2, "DualPipeV"),
    ],
)
def test_schedules_and_explicit_stages(schedule: str, vpp: int, said: str) -> None:
    problem, plan = case("torchtitan", pp=2, tp=2, vpp=vpp, schedule=schedule, zero_stage=2)
    found = calls(problem, plan)["ParallelismConfig"]
    assert found["pipeline_parallel_schedule"] == said
    parts = found["module_fqns_per_model_part"]
    assert len(parts) == plan.pp * plan.vpp
    layers = [f"layers.{i}" for i in range(32)]
    assert [name for part in parts for name in part] == ["tok_embeddings", *layers, "norm", "lm_head"]
    assert [len([n for n in part if n in layers]) for part in parts] == [
        len(set(range(c.start, c.stop)) & set(problem.model.block_layers)) for c in plan.chunks
    ]


def test_schedules_are_decisions_of_the_search() -> None:
    problem = Problem(case()[0].base, cluster("dgx-h100:1"), Job(32, 4096, target="torchtitan"))
    searched = set(space(problem)[0].schedule.tolist())
    assert searched == {"1f1b", "interleaved", "interleaved_zb", "zbv", "dualpipev"}


def test_schedules_with_weight_passes_free_no_weights_and_run_no_layer_again() -> None:
    job = Job(32, 4096, target="torchtitan")
    found = survey(Problem(case()[0].base, cluster("dgx-h100:1"), job))
    apart = np.array([splits_backward(name) for name in found.meshes.schedule])
    assert apart.any() and set(found.meshes.zero_stage[apart]) == {2} and 3 in found.meshes.zero_stage[~apart]
    for row in (*np.flatnonzero(apart)[:3], *np.flatnonzero(~apart)[:3]):
        again = found.wanted(row).allowed[:, MODES.index("full")].any()
        assert again != apart[row]
    full = replace(job, choices={"recompute": Choice(allowed=frozenset({"full"}))})
    left = space(Problem(case()[0].base, cluster("dgx-h100:1"), full))[0]
    assert set(left.schedule) == {"1f1b", "interleaved"}


def test_a_plan_that_would_lose_gradients_is_refused() -> None:
    problem, plan = case("torchtitan", pp=2, vpp=2, schedule="zbv", zero_stage=2)
    assert inexpressible(problem, plan) == []
    assert inexpressible(problem, replace(plan, zero_stage=3)) == ["zero_stage=3: only 2 with schedule=zbv"]
    again = replace(plan, recompute=("none", "full", *plan.recompute[2:]))
    assert inexpressible(problem, again) == ["recompute=full: only none with schedule=zbv"]


@pytest.mark.parametrize(
    ("recompute", "said"),
    [
        ("none", ("None", None)),
        ("full", ("FullAC.Config()", None)),
        ("0-1:full,31:full", ("PlannedAC.Config()", [0, 1, 31])),
    ],
)
def test_layers_are_checkpointed_one_by_one(recompute: str, said: tuple) -> None:
    policy, layers = recomputed(*case("torchtitan", recompute=recompute))
    assert (str(policy), layers) == said


def test_the_shape_is_checked_by_the_file_itself() -> None:
    text = emit(*case("torchtitan"))["meshwright_config.py"]
    assert "LAYERS, HIDDEN, VOCABULARY = 32, 4096, 128256" in text
    assert 'environ.get("TITAN_FLAVOR", "8B")' in text
    assert 'environ.get("TITAN_FLAVOR", "671B")' in emit(*named("deepseek-v3"))["meshwright_config.py"]


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ({"zero_stage": 1}, "target ZeRO"),
        ({"cp": 2}, "target key/value exchange"),
        ({"cp": 2, "ulysses": 2}, "target ulysses"),
        ({"tp": 16}, "target key/value heads"),
        ({"pp": 2, "schedule": "zb1p", "zero_stage": 2}, "target schedule"),
        ({"pp": 2, "tp": 2, "placement": "tp,cp,pp,dp", "zero_stage": 2}, "target placement"),
    ],
)
def test_rules_name_what_torchtitan_cannot_say(strategy: dict, rule: str) -> None:
    with pytest.raises(MeshwrightError, match=f"{rule}: "):
        case("torchtitan", **strategy)


def test_experts_are_split_over_tensor_ranks_or_spread() -> None:
    assert inexpressible(*named("qwen3-235b-a22b", tp=2, ep=1, etp=2)) == []
    assert inexpressible(*named("qwen3-235b-a22b", tp=2, ep=8, etp=1)) == []
    with pytest.raises(MeshwrightError, match="target experts: "):
        named("qwen3-235b-a22b", tp=2, ep=1, etp=1)
    with pytest.raises(MeshwrightError, match="target experts: "):
        named("qwen3-235b-a22b", tp=2, ep=4, etp=2)
    problem, plan = named("qwen3-235b-a22b", tp=2, ep=8, etp=1)
    assert inexpressible(problem, replace(plan, ep=1)) == ["etp=1: only 2 with tp=2, ep=1"]


def test_tied_embeddings_have_no_pipeline() -> None:
    with pytest.raises(MeshwrightError, match="target tied embeddings: "):
        named("llama-3.2-1b", pp=2, zero_stage=2)
    problem, plan = named("llama-3.2-1b", zero_stage=2)
    assert inexpressible(problem, plan) == []


@pytest.mark.parametrize("tp", [4, 8])
def test_tensor_ranks_do_not_outnumber_key_value_heads(tp: int) -> None:
    problem, plan = named("qwen3-235b-a22b", tp=4, ep=4, etp=1)
    wrong = replace(plan, tp=tp, dp=16 // tp, num_microbatches=tp * 4)
    said = inexpressible(problem, wrong)
    assert said == ([] if tp == 4 else ["tp=8: only divisors of 4 key/value heads"])


@pytest.mark.parametrize(
    ("job", "field"),
    [({"precision": "fp8"}, "precision"), ({"optimizer": "sgd"}, "optimizer"), ({"loss": "full"}, "loss")],
)
def test_jobs_that_it_cannot_train_are_refused_before_the_search(job: dict, field: str) -> None:
    problem, _ = case("torchtitan")
    with pytest.raises(MeshwrightError, match=f"torchtitan.* cannot train this: {field}="):
        check_problem(replace(problem, job=replace(problem.job, **job)))


def test_models_that_it_does_not_have_are_refused() -> None:
    problem = Problem(load_model("gemma-2-9b"), cluster("dgx-h100:1"), Job(8, 4096, target="torchtitan"))
    with pytest.raises(MeshwrightError, match=r"model=gemma-2-9b: only .*llama.*, not gemma2"):
        check_problem(problem)


def test_the_launcher_names_the_function_and_its_folder() -> None:
    launcher = emit(*case("torchtitan"))["launch.sh"]
    assert "--module meshwright_config --config planned" in launcher
    assert 'export PYTHONPATH="$HERE' in launcher
