"""What Megatron-Core's cross entropy moves through memory, against its own code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.costmodels.loss import find_loss

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ROWS, VOCABULARY = 16, 1_000


class Moved(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of whole logits that operators read and write; what picks single ones moves few."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        out = func(*args, **named)
        if func.is_view or "index" in func.name():
            return out
        named.pop("out", None)  # it is what is returned
        leaves, _ = torch.utils._pytree.tree_flatten((args, named, out))
        whole = (x for x in leaves if isinstance(x, torch.Tensor) and x.numel() == ROWS * VOCABULARY)
        self.bytes += sum(x.numel() * x.element_size() for x in whole)
        return out


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Give Megatron-Core its groups, of one rank each."""
    from megatron.core import parallel_state

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_plain_cross_entropy_writes_every_step_out() -> None:
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    logits = torch.randn(ROWS, 1, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    with Moved() as forward:
        loss = vocab_parallel_cross_entropy(logits, torch.zeros(ROWS, 1, dtype=torch.int64))
    with Moved() as backward:
        loss.backward(torch.ones_like(loss))
    kernel = find_loss("full")
    assert kernel.forward_traffic * logits.numel() == forward.bytes
    assert kernel.backward_traffic * logits.numel() == backward.bytes
