"""PyTorch dispatches the operators that eager rotations count, and what of them has no vector loads."""

from collections.abc import Callable
from typing import Any

import pytest

from meshwright.costmodels.fusion import GROUPS, unfused
from meshwright.costmodels.operators import Pointwise
from meshwright.costmodels.work import Shape

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.frameworks.dispatched import Dispatched  # noqa: E402

BATCH, LENGTH, HEADS, DIM = 2, 64, 8, 32
FUSED = dict.fromkeys(GROUPS, "fused")


def turned_half(x: Any) -> Any:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def halves(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate as transformers' ``apply_rotary_pos_emb``."""
    heads = x.view(BATCH, LENGTH, HEADS, DIM).transpose(1, 2)
    first, second = heads[..., : DIM // 2], heads[..., DIM // 2 :]
    return heads * cos + torch.cat((-second, first), -1) * sin


def scaled(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate as Megatron-Core's ``_apply_rotary_pos_emb_bshd``."""
    heads = x.view(LENGTH, BATCH, HEADS, DIM)
    turned, rest = heads[..., :DIM], heads[..., DIM:]
    return torch.cat((turned * cos + turned_half(turned) * sin, rest), -1)


def pairs(x: Any, factors: Any) -> Any:
    """Rotate as torchtitan's ``apply_rotary_emb``."""
    heads = x.view(BATCH, LENGTH, HEADS, DIM)
    numbers = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * factors).flatten(3).type_as(x)


@pytest.mark.parametrize(
    ("run", "table", "dtype", "switches"),
    [
        (halves, (BATCH, 1, LENGTH, DIM), torch.bfloat16, {"rotary": "eager"}),
        (pairs, (1, LENGTH, 1, DIM // 2), torch.complex64, {"rotary": "complex"}),
        (scaled, (LENGTH, 1, 1, DIM), torch.bfloat16, {"scaled_rotary": "eager"}),
    ],
)
def test_an_eager_rotation_moves_and_makes_what_pytorch_does(
    run: Callable[..., Any], table: tuple[int, ...], dtype: Any, switches: dict[str, str]
) -> None:
    angles = [torch.ones(table, dtype=dtype) for _ in range(1 if run is pairs else 2)]
    leaf = torch.randn(BATCH * LENGTH, HEADS * DIM, dtype=torch.bfloat16, requires_grad=True)
    with Dispatched() as forward:
        out = run(leaf, *angles)
    gradient = torch.ones_like(out)
    with Dispatched() as backward:
        out.backward(gradient)
    width = HEADS * DIM
    op = Pointwise(
        "rotary", "tensor", width, width, units=HEADS, backward_ratio=1.0, group="rotary", scaled=True
    )
    chain = unfused(op, FUSED | switches)
    shape, made = Shape(BATCH, LENGTH, 1, False), BATCH * LENGTH * width
    for passed, seen in ((chain.forward, forward), (chain.backward, backward)):
        (work,) = passed(shape)
        assert work.bytes / made == pytest.approx(seen.bytes / made, rel=0.04)
        assert work.strided_elements / made == pytest.approx(seen.strided / made, rel=0.01)
