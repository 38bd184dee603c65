"""A root unit sends its gradient when the backward pass ends: PyTorch's own FSDP1 on one process."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="its FSDP1 is what runs")

import torch  # after the skip
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, VOCAB, LAYERS = 8, 24, 3


class Block(nn.Linear):
    """A layer with a unit of its own."""


class Model(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block(HIDDEN, HIDDEN, bias=False) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Watch(TorchDispatchMode):
    """Notes the products of blocks' weight gradients, and the elements of each gradient that is scattered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int | str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and tuple(out.shape) == (HIDDEN, HIDDEN):
            self.seen.append("block")
        elif "reduce_scatter" in str(func):
            self.seen.append(args[1].numel())
        return out


@pytest.fixture
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("own_unit", [False, True])
def test_the_gradient_of_a_head_in_the_root_unit_waits_for_the_embedding(ranks: None, own_unit: bool) -> None:
    kinds: set[type[nn.Module]] = {Block, nn.Linear} if own_unit else {Block}
    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=ModuleWrapPolicy(kinds), use_orig_params=True, device_id=torch.device("cpu")
    )
    loss = model(torch.arange(VOCAB)[None]).sum()
    with Watch() as watch:
        loss.backward()
    end = VOCAB * HIDDEN
    blocks = ["block", HIDDEN * HIDDEN] * LAYERS
    assert watch.seen == ([end, *blocks, end] if own_unit else [*blocks, 2 * end])
