"""Nothing inexpressible is dropped: every decision that a target has no word for is named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from meshwright.planner.emit.registry import EMITTERS, able_targets, emit, inexpressible
from meshwright.planner.job import Job
from meshwright.planner.plan import Chunk
from meshwright.planner.problem import Problem
from meshwright.planner.targets import TARGETS
from tests.planner.emit.cases import case, cluster, model
from tests.strategies import launchable


def test_every_target_has_an_emitter() -> None:
    assert set(EMITTERS) == set(TARGETS)


@given(launchable())
@settings(max_examples=40, deadline=None)
def test_a_legal_plan_is_expressible_and_its_batch_adds_up(drawn) -> None:
    problem, plan = drawn
    assert inexpressible(problem, plan) == []
    assert plan.dp * plan.micro_batch_size * plan.num_microbatches == problem.job.global_batch_size


BEYOND_BOTH = {
    "tp=2": {"tp": 2, "dp": 8, "num_microbatches": 16},
    "vpp=2": {"vpp": 2, "chunks": (Chunk(0, 0, 17), Chunk(0, 17, 34))},
    "pp=2": {
        "pp": 2,
        "dp": 8,
        "num_microbatches": 16,
        "chunks": (Chunk(0, 0, 17), Chunk(1, 17, 34)),
    },
    "sequence_parallel=true": {"sequence_parallel": True},
    "schedule=gpipe": {"schedule": "gpipe"},
    "recompute=selective": {"recompute": ("none", *["selective"] * 32, "none")},
    "recompute=full on layer 0": {"recompute": ("full",) * 34},
    "recompute: 33 layers": {"recompute": ("none",) * 33},
    "global_batch_size=100": {"global_batch_size": 100},
    "tp x cp x pp x dp=32": {"dp": 32, "num_microbatches": 4},
    "precision=bf16-8bit": {"precision": "bf16-8bit"},
    "chunks": {"chunks": (Chunk(0, 0, 16), Chunk(0, 17, 34))},
}
OF_DEEPSPEED = {("deepspeed", "tp=2"), ("deepspeed", "pp=2")}
"""What one of the two has."""


@pytest.mark.parametrize(
    ("target", "named"),
    [(t, n) for t in ("deepspeed", "fsdp") for n in BEYOND_BOTH if (t, n) not in OF_DEEPSPEED],
)
def test_an_inexpressible_decision_is_named_alone_and_refused(target: str, named: str) -> None:
    problem, plan = case(target, zero_stage=3)
    wrong = replace(plan, **BEYOND_BOTH[named])
    others = [m for m in inexpressible(problem, wrong) if not m.startswith(named)]
    # pp > 1 makes ZeRO 3 wrong too: the target's own limit with a pipeline.
    assert others == [m for m in others if m.startswith("zero_stage=3") and named == "pp=2"]
    with pytest.raises(MeshwrightError, match=f"target {target} .*{named.replace('+', '.')}"):
        emit(problem, wrong)


def test_deepspeed_has_tensor_ranks_or_a_pipeline_and_not_every_model_has_them() -> None:
    split, piped = case("deepspeed", tp=2), case("deepspeed", pp=2)
    assert inexpressible(*split) == inexpressible(*piped) == []
    both = replace(piped[1], tp=2, dp=4, num_microbatches=32)
    assert inexpressible(piped[0], both) == ["pp=2: only pp=1 with tp=2"]
    away = replace(piped[1], offload="optimizer")
    assert inexpressible(piped[0], away) == ["offload=optimizer: only none with a pipeline"]
    for name, (problem, plan) in {"tp=2": split, "pp=2": piped}.items():
        odd = replace(problem, base=replace(problem.base, family="falcon"))
        found = inexpressible(odd, plan)
        assert len(found) == 1
        assert found[0].startswith(f"{name}: only ") and "llama, qwen2, qwen3, not falcon" in found[0]


@pytest.mark.parametrize("strategy", [{"tp": 2}, {"pp": 2}])
@pytest.mark.parametrize(
    ("job", "named"), [({"tuning": "lora"}, "tuning=lora: only full"), ({"loss": "fused"}, "loss=fused")]
)
def test_deepspeed_splits_models_that_are_trained_whole(strategy: dict, job: dict, named: str) -> None:
    with pytest.raises(MeshwrightError, match=f"target (tensor|pipeline) model: .*{named}"):
        case("deepspeed", job=job, **strategy)


def test_recomputation_is_of_decoder_layers() -> None:
    for target, stage in (("deepspeed", 3), ("fsdp", 3), ("torchtitan", 3), ("megatron", 1)):
        problem, plan = case(target, zero_stage=stage)
        wrong = replace(plan, recompute=("full",) * 34)
        assert inexpressible(problem, wrong) == ["recompute=full on layer 0: only on decoder layers"]


@pytest.mark.parametrize("stage", [0, 1])
def test_fsdp_has_no_zero_0_and_1(stage: int) -> None:
    problem, plan = case("deepspeed", zero_stage=stage)
    assert inexpressible(problem, plan, "fsdp") == [f"zero_stage={stage}: only 2, 3"]
    assert inexpressible(problem, plan, "deepspeed") == []


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_fsdp_through_a_trainer_lacks_some_optimizers(optimizer: str) -> None:
    with pytest.raises(MeshwrightError, match=f"cannot train this: optimizer={optimizer}: only adamw, sgd"):
        case("fsdp", job={"optimizer": optimizer})
    problem, plan = case("deepspeed", job={"optimizer": optimizer}, zero_stage=2)
    assert inexpressible(problem, plan, "fsdp") == [f"optimizer={optimizer}: only adamw, sgd"]
    assert able_targets(problem, plan) == ["deepspeed"]


def test_sixteen_bit_masters_need_zero_under_deepspeed() -> None:
    masters = {"precision": "pure-bf16"}
    with pytest.raises(MeshwrightError, match=r"target ZeRO with the recipe: .* pure-bf16 under ZeRO 1 to 3"):
        case("deepspeed", job=masters, zero_stage=0)
    problem, plan = case("deepspeed", job=masters, zero_stage=1)
    assert inexpressible(problem, plan) == []
    wrong = inexpressible(problem, replace(plan, zero_stage=0))
    assert wrong == ["zero_stage=0: only 1 to 3 with precision=pure-bf16"]


def test_accelerate_cannot_fill_the_last_host_in_part() -> None:
    idle = {"allow_idle": True, "global_batch_size": 24}
    with pytest.raises(MeshwrightError, match=r"target even hosts: .*hosts of 8, or lie on one"):
        case("fsdp", job=idle, dp=12)
    problem, plan = case("deepspeed", job=idle, dp=12, zero_stage=3)
    assert [m.split(":")[0] for m in inexpressible(problem, plan, "fsdp")] == ["dp=12"]
    assert able_targets(problem, plan) == ["deepspeed"]
    assert inexpressible(*case("fsdp", job=idle, dp=6)) == []


def test_fsdp_needs_the_class_of_the_decoder_layers() -> None:
    problem, plan = case("fsdp")
    nameless = replace(problem, base=replace(problem.base, block_class=None))
    assert "unknown" in inexpressible(nameless, plan)[0]
    assert able_targets(nameless, plan) == ["deepspeed", "torchtitan", "native"]


def test_fsdp_on_cpus_would_silently_not_shard() -> None:
    job = Job(global_batch_size=128, sequence_length=8192, target="fsdp")
    problem = Problem(model(), cluster("cpu:1"), job)
    plan = replace(case("fsdp", "dgx-h100:1")[1], dp=1, num_microbatches=128)
    # Accelerate starts such processes, shards nothing and says nothing.
    assert any("not fsdp" in m for m in inexpressible(problem, plan))


def test_an_accelerator_without_the_framework_is_named() -> None:
    problem, plan = case("fsdp", "dgx-h100:1")
    device = problem.cluster.accelerator
    bare = replace(device, support=replace(device.support, targets=frozenset({"pytorch"})))
    problem = replace(problem, cluster=replace(problem.cluster, accelerator=bare))
    assert inexpressible(problem, plan) == [f"cluster=dgx-h100:1: {device.name} runs pytorch, not fsdp"]
    assert able_targets(problem, plan) == ["native"]


def test_a_pipeline_is_beyond_files_of_data_parallelism() -> None:
    problem, plan = case("any", tp=4, pp=2)
    assert able_targets(problem, plan) == ["megatron", "megatron-bridge"]
    assert inexpressible(problem, replace(plan, zero_stage=3)) == ["zero_stage=3: only 0, 1 with a pipeline"]


def test_unknown_target() -> None:
    with pytest.raises(UnknownNameError, match="deepspeed"):
        inexpressible(*case(), "deepsped")
