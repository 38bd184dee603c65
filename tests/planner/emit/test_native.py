"""The native target writes the plan and the training script of the examples, which applies it."""

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.registry import emit, inexpressible
from meshwright.planner.job import Job
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.runtime.limits import check_plan
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import case, cluster, model
from tests.strategies import launchable

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train.py"


def test_the_written_script_is_the_example() -> None:
    text = emit(*case("native", tp=2, zero_stage=3))["train.py"]
    assert text == EXAMPLE.read_text()
    assert len(text.splitlines()) < 80
    called = {ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)}
    assert "meshwright.apply" in called


def test_the_launcher_starts_the_script_beside_it() -> None:
    files = emit(*case("native", "dgx-h100:1", tp=8, dp=1))
    assert '"$HERE/train.py"' in files["launch.sh"] and "MESHWRIGHT_PLAN" in files["launch.sh"]
    own = emit(*case("native"), script="mine.py")
    assert "train.py" not in own and "mine.py" in own["launch.sh"]


@settings(max_examples=40, deadline=None)
@given(launchable("native"))
def test_what_is_written_is_applied(drawn) -> None:
    problem, plan = drawn
    assert inexpressible(problem, plan) == []
    check_plan(Plan.from_json(plan.to_json()))


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ({"cp": 2, "kv_exchange": "ring"}, "key/value exchange"),
        ({"cp": 2, "ulysses": 2}, "ulysses"),
        ({"offload": "optimizer", "zero_stage": 2}, "offload"),
        ({"recompute": "selective"}, "selective"),
        ({"schedule": "zb2p", "pp": 2, "zero_stage": 2}, "schedule"),
        ({"schedule": "zbv", "pp": 2, "vpp": 2, "zero_stage": 3}, "ZeRO with weight passes"),
        ({"schedule": "zb1p", "pp": 2, "zero_stage": 2, "recompute": "0:full"}, "and schedule zb1p"),
        ({"zero_stage": 1}, "ZeRO|zero_stage"),
    ],
)
def test_rules_name_what_is_not_applied(strategy: dict, rule: str) -> None:
    with pytest.raises(MeshwrightError, match=rule):
        case("native", **strategy)


def test_recomputation_outside_the_layers_is_refused() -> None:
    problem, plan = case("native")
    beyond = Plan.from_dict({**plan.to_dict(), "recompute": ["full", *plan.recompute[1:]]})
    assert inexpressible(problem, beyond) == ["recompute=full on layer 0: only on decoder layers"]


def test_tied_embeddings_have_no_pipeline() -> None:
    from dataclasses import replace

    tied = replace(model(), tied=((0, 33),))
    problem = Problem(tied, cluster("dgx-h100:1"), Job(8, 4096, target="native"))
    with pytest.raises(MeshwrightError, match="tied"):
        make_plan(problem, pp=2, zero_stage=2)
    assert make_plan(problem, tp=2, zero_stage=2).tp == 2
