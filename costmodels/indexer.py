"""The indexer of sparse attention: a light score of all keys for each query, and the pick of the best."""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.plain import Weightless
from meshwright.costmodels.work import Shape, Work

SCORE_BYTES = 8.0
"""A summed fp32 score is written once and read once by the pick."""
INDEX_BYTES = 4.0
"""A position that was picked, int32."""


@dataclass(frozen=True, slots=True)
class Indexer(Weightless):
    """Scores of a few small heads over all earlier keys, and the choice of ``topk`` of them.

    DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, section 2): ``heads`` queries of ``dim`` features meet one
    key of ``dim`` features a token; scores are summed over the heads by learned weights. ``stride`` tokens
    are compressed to one key (DeepSeek-V4; 1: none). The heads are not split by tensor parallelism: a sum
    over them is needed before the pick; the queries are, with the sequence. In the backward pass the
    indexer's own loss reaches the chosen keys alone. Kept: the chosen indices.

    Left out: products in 8 bits, and the loss's target, the attention's own scores.
    """

    name: str
    heads: int
    dim: int
    topk: int
    stride: Num = 1
    light: bool = False
    trained: bool = True

    def _pairs(self, shape: Shape, most: Num) -> Num:
        """Return the query-key pairs of one head on one rank, at most ``most`` keys a query."""
        last = shape.sequence_length / (1.0 * np.asarray(self.stride))
        seen = np.minimum(last, most)
        whole = np.asarray(self.stride) * (last * seen - seen**2 / 2)
        return shape.sequences * whole / (shape.cp * shape.sequence_split)

    def _scores(self, shape: Shape, pairs: Num) -> Work:
        return Work("attention", 2.0 * self.heads * self.dim * pairs, 0.0, k=shape.sequence_length)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the product with all earlier keys, and the pick over the sums."""
        pairs = self._pairs(shape, np.inf)
        return self._scores(shape, pairs), Work("memory", 0.0, SCORE_BYTES * pairs, kernels=2)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the products for queries' and keys' gradients over the chosen keys."""
        if not self.trained:
            return ()
        pairs = self._pairs(shape, self.topk)
        return self._scores(shape, 2 * pairs), Work("memory", 0.0, SCORE_BYTES * pairs, kernels=2)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the chosen indices."""
        return INDEX_BYTES * self.topk * shape.tokens / shape.sequence_split
