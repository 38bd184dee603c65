"""PyTorch dispatches the operators that the chains of eager activations and expert biases count."""

from collections.abc import Callable
from typing import Any

import pytest

from meshwright.costmodels.fusion import GROUPS, bias_chain, unfused
from meshwright.costmodels.moe import ExpertActivation, ExpertGemm
from meshwright.costmodels.part import Part
from meshwright.costmodels.work import Shape

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.frameworks.dispatched import Dispatched  # noqa: E402

ROWS, WIDTH, BOUND = 1024, 256, 7.0
EAGER = dict.fromkeys(GROUPS, "eager")


def passes(run: Callable[..., Any], *inputs: Any) -> tuple[Dispatched, Dispatched, int]:
    """Return what both passes dispatch, and the elements of the output."""
    with Dispatched() as forward:
        out = run(*inputs)
    gradient = torch.ones_like(out)
    with Dispatched() as backward:
        out.backward(gradient)
    return forward, backward, out.numel()


def leaf(*shape: int, dtype: Any) -> Any:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def plain(gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate) * up


def clamped(gate: Any, up: Any) -> Any:
    return plain(gate.clamp(max=BOUND), up.clamp(min=-BOUND, max=BOUND))


def clamped_offset(gate: Any, up: Any) -> Any:
    gate, up = gate.clamp(max=BOUND), up.clamp(min=-BOUND, max=BOUND)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gate", [plain, clamped, clamped_offset])
def test_an_eager_activation_moves_what_pytorch_moves(gate: Callable[..., Any], dtype: Any) -> None:
    forward, backward, each = passes(gate, *(leaf(ROWS, WIDTH, dtype=dtype) for _ in range(2)))
    act = ExpertActivation("act", 1, 2 * WIDTH, WIDTH, WIDTH, WIDTH, gate=gate.__name__)  # type: ignore[arg-type]
    shape = Shape(1, ROWS, 1, False, element_bytes=dtype.itemsize)
    chain = unfused(act, EAGER, wide=dtype.itemsize >= 4)
    assert isinstance(chain, ExpertActivation)
    for works, seen in ((chain.forward(shape), forward), (chain.backward(shape), backward)):
        assert works[0].bytes / each == pytest.approx(seen.bytes / each, rel=1e-3)
        assert works[0].strided_elements == seen.strided == 0  # the branches are products of their own


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_clamps_in_front_of_a_fused_kernel_move_what_pytorch_moves(dtype: Any) -> None:
    def joined(both: Any) -> Any:
        gate, up = both.chunk(2, -1)
        return torch.cat((gate.clamp(max=BOUND), up.clamp(min=-BOUND, max=BOUND)), -1)

    forward, backward, _ = passes(joined, leaf(ROWS, 2 * WIDTH, dtype=dtype))
    act = ExpertActivation("act", 1, 2 * WIDTH, WIDTH, WIDTH, WIDTH, gate="clamped_offset")
    shape = Shape(1, ROWS, 1, False, element_bytes=dtype.itemsize)
    chain = unfused(act, {"activation": "fused", "clamp": "eager"}, wide=dtype.itemsize >= 4)
    assert isinstance(chain, ExpertActivation)
    for ours, fused, seen in (
        (chain.forward(shape), act.forward(shape), forward),
        (chain.backward(shape), act.backward(shape), backward),
    ):
        assert ours[0].bytes - fused[0].bytes == pytest.approx(seen.bytes, rel=1e-3)
        assert ours[0].strided_elements == seen.strided > 0


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weighted_biases_move_what_pytorch_moves(dtype: Any, experts: int) -> None:
    def add(rows: Any, probabilities: Any, *biases: Any) -> Any:
        """Add as Megatron-Core's TEGroupedMLP does."""
        sizes = [ROWS // experts] * experts
        parts = zip(rows.split(sizes), biases, probabilities.split(sizes), strict=True)
        return torch.cat([t + b * p for t, b, p in parts]).to(rows.dtype)

    rows, biases = leaf(ROWS, WIDTH, dtype=dtype), [leaf(WIDTH, dtype=dtype) for _ in range(experts)]
    forward, backward, each = passes(add, rows, leaf(ROWS, 1, dtype=torch.float32), *biases)
    part = Part(WIDTH, WIDTH, "x")
    product = ExpertGemm("down", experts, 1, part, (part,), "row", bias=True)
    chain = bias_chain(product, "weighted", wide=dtype.itemsize >= 4)
    # beside rows and probabilities, a bias itself is read once an expert
    for ours, strided, seen in (
        (chain.forward, chain.forward_strided, forward),
        (chain.backward, chain.backward_strided, backward),
    ):
        assert ours == pytest.approx(seen.bytes / each, rel=0.03)
        assert strided.elements == pytest.approx(seen.strided / each, rel=0.03)
