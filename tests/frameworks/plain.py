"""A decoder of nobody's library, with names of its own: tokens mix with the mean of those before them."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

import meshwright
from tests.frameworks.tiny import SIZES


class Block(nn.Module):
    """Norm, mixing and a feed-forward layer beside the residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)

    def forward(self, stream: Any) -> Any:
        wide = self.widen(self.norm(stream))
        counts = torch.arange(1, wide.shape[1] + 1)[None, :, None]
        return stream + self.narrow(torch.relu(wide.cumsum(1) / counts))


class Plain(nn.Module):
    """Token numbers in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        width, vocabulary = SIZES["hidden_size"], SIZES["vocab_size"]
        self.table = nn.Embedding(vocabulary, width)
        self.stack = nn.ModuleList(Block(width) for _ in range(SIZES["num_hidden_layers"]))
        self.last = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Any) -> Any:
        stream = self.table(ids)
        for block in self.stack:
            stream = block(stream)
        return self.out(self.last(stream))


ARCHITECTURE = meshwright.Architecture(
    embedding="table",
    blocks="stack",
    norm="last",
    head="out",
    tensor={"norm": "norm", "widen": ColwiseParallel(), "narrow": "rowwise"},
)


def build() -> Plain:
    """Return it with the same weights in every process."""
    torch.manual_seed(0)
    return Plain()
