"""What would fail after a model is laid out is refused before."""

from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.runtime.apply import apply
from tests.planner.emit.cases import case


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"optimizer_fn": None}, "optimizer_fn is None"),
        ({"max_grad_norm": -1}, "max_grad_norm is -1"),
        ({"max_grad_norm": True}, "max_grad_norm is True"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm is nan"),
        ({"device": "tpu"}, "device is 'tpu'; allowed: cuda and cpu"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_laid_out(changed: dict[str, Any], said: str) -> None:
    _, plan = case("native", zero_stage=3)
    with pytest.raises(MeshwrightError) as caught:
        apply(plan, None, **{"optimizer_fn": list, **changed})  # type: ignore[arg-type]
    assert said in str(caught.value)
