"""megatron_args.sh says every decision of the plan, in flags that Megatron-LM has."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.megatron import layout
from meshwright.planner.emit.registry import emit, inexpressible
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import case, cluster
from tests.planner.emit.megatron_flags import FLAGS
from tests.strategies import launchable


def routed(model: str = "mixtral-8x7b", job: dict | None = None, **strategy) -> tuple[Problem, Plan]:
    """Return a model with experts on 16 devices."""
    work = {"global_batch_size": 64, "sequence_length": 4096, "target": "megatron", **(job or {})}
    problem = Problem(load_model(model), cluster("dgx-h100:2"), Job(**work))
    return problem, make_plan(problem, **strategy)


def words(problem: Problem, plan: Plan) -> list[str]:
    """Return the words that bash makes of the arguments."""
    text = emit(problem, plan)["megatron_args.sh"] + '\nprintf "%s\\n" "${MEGATRON_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def flags(problem: Problem, plan: Plan) -> dict[str, list[str]]:
    """Return the words that bash puts behind each flag."""
    found: dict[str, list[str]] = {}
    for word in words(problem, plan):
        if word.startswith("--"):
            assert word not in found
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


@given(launchable("megatron"))
@settings(max_examples=25, deadline=None)
def test_every_flag_is_one_of_megatron_s_and_the_batch_adds_up(drawn) -> None:
    problem, plan = drawn
    found = flags(problem, plan)
    assert set(found) <= FLAGS
    size = {k: int(v[0]) for k, v in found.items() if k.endswith("-size") and v[0].isdigit()}
    model_ranks = size["--tensor-model-parallel-size"] * size["--pipeline-model-parallel-size"]
    data_ranks = plan.num_devices // (model_ranks * size["--context-parallel-size"])
    # Megatron-LM counts the passes itself.
    assert size["--global-batch-size"] == data_ranks * size["--micro-batch-size"] * plan.num_microbatches
    assert ("--use-distributed-optimizer" in found) == (plan.zero_stage == 1)
    assert found.get("--recompute-granularity", ["none"]) == ["full" if "full" in plan.recompute else "none"]


def test_the_layout_names_every_layer_of_every_chunk() -> None:
    _, plan = case("megatron", tp=2, pp=2, vpp=2, layers_per_stage=[3, 10, 18, 1])
    assert layout(plan) == "Et*3|t*10|t*18|tL"


def test_a_chunk_may_hold_the_embedding_or_the_head_alone() -> None:
    _, plan = case("megatron", pp=4, layers_per_stage=[0, 16, 16, 0])
    assert layout(plan) == "E|t*16|t*16|L"


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"cp": 4}, ["p2p"]),
        ({"cp": 4, "kv_exchange": "all_gather"}, ["all_gather"]),
        ({"cp": 4, "ulysses": 4}, ["a2a"]),
        ({"cp": 4, "ulysses": 2}, ["a2a+p2p"]),
    ],
)
def test_the_way_of_context_parallelism(strategy: dict, said: list[str]) -> None:
    found = flags(*case("megatron", **strategy))
    assert found["--cp-comm-type"] == said
    sizes = found.get("--hierarchical-context-parallel-sizes")
    assert sizes == (["2", "2"] if said == ["a2a+p2p"] else None)


def test_experts_their_degrees_and_the_layers_that_have_them() -> None:
    found = flags(*routed(tp=2, ep=8))
    assert found["--expert-model-parallel-size"] == ["8"]
    assert (found["--expert-tensor-parallel-size"], found["--num-experts"]) == (["1"], ["8"])
    assert "--moe-layer-freq" not in found
    assert flags(*routed("deepseek-v2-lite", ep=8))["--moe-layer-freq"] == ["([0]*1+[1]*26)"]
    assert not any("expert" in flag or "moe" in flag for flag in flags(*case("megatron")))


@pytest.mark.parametrize(
    ("mode", "modules"), [("selective", ["layernorm", "moe_act"]), ("moe", ["layernorm", "moe"])]
)
def test_selective_recompute_names_the_modules_of_a_layer_of_experts(mode: str, modules: list[str]) -> None:
    found = flags(*routed(ep=8, recompute=mode))
    assert found["--recompute-granularity"] == ["selective"]
    assert found["--recompute-modules"] == modules
    assert "--recompute-method" not in found


@pytest.mark.parametrize(("mode", "last"), [("selective", "moe_act"), ("moe", "moe")])
def test_modules_that_a_job_lists_are_those_that_are_named(mode: str, last: str) -> None:
    listed = {"recompute_modules": "moe_act,mla_up_proj,shared_experts"}
    found = flags(*routed("deepseek-v2-lite", listed, ep=8, recompute=mode))
    assert set(found["--recompute-modules"]) == {"mla_up_proj", "shared_experts", last}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite"])
def test_selective_recompute_is_refused_where_no_module_names_all_that_it_drops(model: str) -> None:
    problem, plan = routed(model)
    assert problem.target.recompute == {"none", "full"}
    with pytest.raises(MeshwrightError, match="'selective' is not available with Megatron-LM") as refusal:
        make_plan(problem, recompute="selective")
    advice = str(refusal.value).partition("--recompute-modules ")[2].rstrip(")")
    named, _ = routed(model, {"recompute_modules": advice})
    assert make_plan(named, recompute="selective").recompute_modules == (advice,)
    modes = tuple("selective" if i in problem.model.block_layers else "none" for i in range(plan.num_layers))
    assert inexpressible(problem, replace(plan, recompute=modes)) == ["recompute=selective: only full, none"]


def test_delayed_scaling_runs_no_part_of_a_layer_again() -> None:
    problem = routed(job={"precision": "fp8"})[0]
    assert problem.target.recompute == {"none", "full"}
    with pytest.raises(MeshwrightError, match=r"allowed: none, full$"):
        make_plan(problem, recompute="selective")
    assert "selective" in routed(job={"precision": "fp8-current"})[0].target.recompute


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("bf16", {"--bf16": []}),
        ("fp32", {}),
        ("fp8", {"--bf16": [], "--fp8-format": ["hybrid"], "--fp8-recipe": ["delayed"]}),
        (
            "mxfp8-weights",
            {
                "--bf16": [],
                "--fp8-format": ["e4m3"],
                "--fp8-recipe": ["mxfp8"],
                "--fp8-param-gather": [],
                "--reuse-grad-buf-for-mxfp8-param-ag": [],
            },
        ),
    ],
)
def test_the_recipe(precision: str, said: dict) -> None:
    found = flags(*case("megatron", job={"precision": precision}))
    assert {k: v for k, v in found.items() if "16" in k or "fp8" in k} == said


@pytest.mark.parametrize(("loss", "said"), [("full", None), ("jit", ["native"]), ("te", ["te"])])
def test_the_cross_entropy(loss: str, said: list[str] | None) -> None:
    found = flags(*case("megatron", job={"loss": loss}))
    assert ("--cross-entropy-loss-fusion" in found) == (said is not None)
    assert found.get("--cross-entropy-fusion-impl") == said


def test_copies_of_shards_are_instances_of_the_distributed_optimizer() -> None:
    assert flags(*case("megatron", dp_replicate=2))["--num-distributed-optimizer-instances"] == ["2"]


def test_the_pipeline_may_lie_inside_the_data_ranks() -> None:
    within = flags(*case("megatron", tp=2, pp=2, placement="tp,cp,pp,dp"))
    assert "--use-tp-pp-dp-mapping" in within
    assert "--use-tp-pp-dp-mapping" not in flags(*case("megatron", tp=2, pp=2))


@pytest.mark.parametrize(("strategy", "needed"), [({}, False), ({"tp": 2}, True), ({"cp": 2}, True)])
def test_one_connection_where_tensor_or_context_ranks_need_it(strategy: dict, needed: bool) -> None:
    launcher = emit(*case("megatron", **strategy))["launch.sh"]
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in launcher) == needed


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("tp", "stack", "needed"),
    [
        (1, "megatron-core", False),
        (2, "megatron-core", True),
        (2, "megatron-core[records_streams=true]", False),
    ],
)
def test_memory_waits_for_collectives_only_where_it_is_priced(
    target: str, tp: int, stack: str, needed: bool
) -> None:
    launcher = emit(*case(target, job={"profile": stack}, tp=tp))["launch.sh"]
    assert ("TORCH_NCCL_AVOID_RECORD_STREAMS" in launcher) == needed


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ({"zero_stage": 3}, "target ZeRO"),
        ({"zero_stage": 1, "offload": "optimizer"}, "target offload"),
        ({"cp": 4, "ulysses": 2, "kv_exchange": "all_gather"}, "target heads and keys"),
        ({"pp": 2, "placement": "tp,pp,cp,dp"}, "target placement"),
        ({"pp": 4, "schedule": "gpipe"}, "target schedule"),
    ],
)
def test_rules_name_what_megatron_cannot_say(strategy: dict, rule: str) -> None:
    with pytest.raises(MeshwrightError, match=f"{rule}: "):
        case("megatron", **strategy)
    problem, plan = case("any", **strategy)
    assert len(inexpressible(problem, plan, "megatron")) == 1


def test_experts_fill_the_inner_ranks_where_the_pipeline_lies_inside_the_data_ranks() -> None:
    inside = {"pp": 2, "placement": "tp,cp,pp,dp"}
    with pytest.raises(MeshwrightError, match="target experts and placement: "):
        routed(tp=2, ep=4, **inside)
    assert inexpressible(*routed(tp=2, ep=2, **inside)) == []
    problem, plan = routed(tp=2, ep=4, pp=2)
    wrong = replace(plan, placement=("tp", "cp", "pp", "dp"))
    assert inexpressible(problem, wrong) == ["placement=tp,cp,pp,dp: only with ep x etp equal to tp x cp"]


def test_weights_in_8_bits_need_the_distributed_optimizer() -> None:
    with pytest.raises(MeshwrightError, match="target ZeRO with the recipe: "):
        case("megatron", job={"precision": "fp8-block"}, zero_stage=0)
    assert inexpressible(*case("megatron", job={"precision": "fp8-block"}, zero_stage=1)) == []


def test_16_bit_moments_need_the_distributed_optimizer() -> None:
    job = {"optimizer": "adamw-bf16"}
    with pytest.raises(MeshwrightError, match="target ZeRO with the optimizer: "):
        case("megatron", job=job, zero_stage=0)
    problem, plan = case("megatron", job=job)
    said = {"--optimizer": ["adam"], "--exp-avg-dtype": ["bf16"], "--exp-avg-sq-dtype": ["bf16"]}
    found = flags(problem, plan)
    assert {flag: found[flag] for flag in said} == said
    assert set(found) <= FLAGS
    assert "--use-precision-aware-optimizer" in found
    assert inexpressible(problem, plan) == []
    refused = inexpressible(problem, replace(plan, zero_stage=0))
    assert refused == ["zero_stage=0: only 1 to 3 with optimizer=adamw-bf16"]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"precision": "pure-bf16"}, "precision=pure-bf16"),
        ({"optimizer": "muon"}, "optimizer=muon"),
        ({"loss": "chunked"}, "loss=chunked"),
        ({"loss": "pieces"}, "loss=pieces"),
        ({"loss": "sliced"}, "loss=sliced"),
        ({"loss": "compiled"}, "loss=compiled"),
        ({"tuning": "lora"}, "tuning=lora"),
    ],
)
def test_jobs_that_it_cannot_train_are_refused_before_the_search(job: dict, named: str) -> None:
    problem, _ = case("megatron")
    wrong = replace(problem, job=replace(problem.job, **job))
    with pytest.raises(MeshwrightError, match=f"Megatron-LM.* cannot train this: {named}: only "):
        check_problem(wrong)


@pytest.mark.parametrize("model", ["bert-large", "mamba-2.8b", "t5-v1.1-xxl", "nemotron-h-8b"])
def test_models_that_are_no_plain_decoders_are_refused(model: str) -> None:
    problem = Problem(load_model(model), cluster("dgx-h100:1"), Job(8, 512, target="megatron"))
    with pytest.raises(MeshwrightError, match="only decoders of one stream"):
        check_problem(problem)


def test_chunks_go_round_the_ranks() -> None:
    problem, plan = case("megatron", tp=2, pp=2, vpp=2)
    turned = tuple(Chunk((0, 1, 1, 0)[i], c.start, c.stop) for i, c in enumerate(plan.chunks))
    assert inexpressible(problem, replace(plan, chunks=turned)) == [
        "chunks: only dealt to the pipeline ranks in turn"
    ]


def test_the_arguments_are_one_array_whatever_the_folder(tmp_path: Path) -> None:
    problem, plan = case("megatron", tp=4, pp=2)
    script = emit(problem, plan)["launch.sh"].replace("exec torchrun", "printf '%s\\n'")
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "launch.sh").write_text(script)
    (folder / "megatron_args.sh").write_text(emit(problem, plan)["megatron_args.sh"])
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), "--exit-interval", "5"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-2:] == ["--exit-interval", "5"]
    assert "Et*16|t*16L" in done.stdout.splitlines()
