"""``meshwright.apply`` on the families it knows, a model of one's own, in bf16, from the meta device."""

from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.plan import Plan
from meshwright.planner.runtime.architecture import Architecture
from tests.frameworks import tiny
from tests.frameworks.native_checks import check_applied
from tests.frameworks.runs import check_losses, read, start_ranks, write_case

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

TENSOR = {"tp": 2, "dp": 1, "micro_batch_size": 2}
STAGES = {"pp": 2, "dp": 1, "micro_batch_size": 2}
SHARDS = {"dp": 2, "zero_stage": 3, "micro_batch_size": 2}
FAMILIES: dict[str, tuple[tiny.Model, dict[str, Any]]] = {
    "tied-tensor": (tiny.Model(tied=True), TENSOR),
    "tied-shards": (tiny.Model(tied=True), SHARDS),
    **{
        f"{family}-{kind}": (tiny.Model(family), strategy)
        for family in ("mistral", "qwen2", "qwen3")
        for kind, strategy in (("tensor", TENSOR), ("stages", STAGES))
    },
}
META = {"meta-shards": {**SHARDS, "recompute": "0:full"}, "meta-tensor": TENSOR}
HALF = {"bf16": {"zero_stage": 3}, "bf16-copies": {"zero_stage": 0}, "bf16-alone": {"tp": 2, "dp": 1}}
OWN = {"own-tensor": {**TENSOR, "sequence_parallel": False}, "own-shards": {**SHARDS, "recompute": "full"}}
Ran = tuple[Plan, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Run everything on two ranks in one go; return plan and what was seen by name."""
    folder: Path = tmp_path_factory.mktemp("models")
    plans = {name: write_case(folder / name, 2, *case) for name, case in FAMILIES.items()}
    for name, strategy in META.items():
        plans[name] = write_case(folder / name, 2, tiny.LLAMA, strategy, "meta")
    for name, strategy in HALF.items():
        half = {"job": {"precision": "bf16"}, "micro_batch_size": 2, **strategy}
        plans[name] = write_case(folder / name, 2, tiny.LLAMA, half)
    for name, strategy in OWN.items():
        # The plan is a Llama's: only the layers are the same.
        facts = {"parameters": None, "hidden_size": None}
        plans[name] = write_case(folder / name, 2, tiny.LLAMA, strategy, "plain", **facts)
    start_ranks("native_ranks", folder, 2)
    return {name: (plan, read(folder / name, 2)) for name, plan in plans.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_laid_out_and_trains_as_in_one_process(ran: dict[str, Ran], name: str) -> None:
    plan, seen = ran[name]
    for own in seen:
        check_losses(own["losses"], tiny.reference(FAMILIES[name][0]))
    if not FAMILIES[name][0].tied:
        check_applied(plan, seen)


@pytest.mark.parametrize("name", META)
def test_weights_may_come_after_the_layout(ran: dict[str, Ran], name: str) -> None:
    plan, seen = ran[name]
    check_applied(plan, seen)
    for own in seen:
        check_losses(own["losses"], tiny.reference())


@pytest.mark.parametrize("name", HALF)
def test_bf16_computes_in_half_and_keeps_single_precision(ran: dict[str, Ran], name: str) -> None:
    _, seen = ran[name]
    for own in seen:
        assert own["dtypes"] == ["torch.bfloat16"]
        # bf16 has 8 bits: losses are near, not the same.
        check_losses(own["losses"], tiny.reference(), 2e-2)
        with pytest.raises(AssertionError):
            check_losses(own["losses"], tiny.reference())


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_one_s_own_needs_an_architecture(ran: dict[str, Ran], name: str) -> None:
    from tests.frameworks import plain

    _, seen = ran[name]
    for own in seen:
        check_losses(own["losses"], tiny.losses_of(plain.build()))
    again = [0, 1, 2, 3, 4, 5] if name == "own-shards" else []
    assert seen[0]["parts"][0]["checkpointed"] == again
    wide = seen[0]["parts"][0]["placements"]["stack.0.widen.weight"]
    assert wide == ({"tp": "S(0)"} if name == "own-tensor" else {"dp_shard": "S(0)"})


def test_a_part_that_a_model_lacks_is_named() -> None:
    from meshwright.hardware.errors import MeshwrightError
    from meshwright.planner.runtime.architecture import find_architecture
    from tests.frameworks import plain

    with pytest.raises(MeshwrightError, match=r"blocks is 'model.layers', which Plain does not have"):
        Architecture().part(plain.build(), "blocks")
    with pytest.raises(MeshwrightError, match=r"known are llama, mistral, qwen2, qwen3; .* architecture="):
        find_architecture(plain.build())
