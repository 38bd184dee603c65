"""How a library runs a product on the cores of a device: tiles, waves, and sums over the inner dimension.

A kernel cuts the (m x n) result into tiles, deals them to the cores in waves and runs each over the inner
dimension k. Time is ``waves x tile time``, which gives tile and wave quantisation and the loss at a small k
(NVIDIA matrix-multiplication guide; arXiv 2401.14489). The library picks among tile shapes and split-k
factors, so the fastest of a table counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import Num

TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
SPLITS: Final = (1, 2, 4, 8)
PARTIAL_BYTES: Final = 8
"""Of each element of a split product's partial results: written and read in fp32."""
CACHE_SPEED: Final = 3.0
"""Rate of the level-two cache that holds them over the memory's (A100: 5.3 TB/s, gpu-l2-cache of gpu-benches,
against 1.7 sustained)."""


@dataclass(frozen=True, slots=True)
class TileLoop:
    """What a tile loses: both in elements, either may be an array.

    Attributes
    ----------
    fill_k
        Inner length that filling and draining a tile's pipeline costs.
    reuse
        Operand reuse ``tm tn / (tm + tn)`` of a (tm x tn) tile at which it runs at half of its rate: small
        tiles need more operand bytes per FLOP.
    """

    fill_k: Num
    reuse: Num


PLAIN_LOOP: Final = TileLoop(256, 8.0)
"""Where nothing else is known; 256 to 512 elements of fill in measured curves of GPUs."""
LOOPS: Final[Mapping[str, TileLoop]] = {"ampere": TileLoop(160, 64.0)}
"""By architecture; those whose tiles were not measured so closely have the plain one.

Ampere's explains products on A100 of 1,024 rows and 512 features and more, a level for each source taken off,
within 4.3 and 4.5 % (320 of two stacks, aiconfigurator) and 3.7 % (180 of training shapes, SimuMax), the
plain one within 6.5, 6.6 and 4.6 %; of 313 that Vidur profiled it explains no more (6.9 against 6.1 %). A
reuse of 40 to 80 does as well. What 128 large tiles make reaches 0.57 of the plateau on its 108 cores up to
an inner length of 4,096: smaller tiles that would fill the cores lose as much."""


def loop_on(architecture: str, fill_k: float | None = None) -> TileLoop:
    """Return an architecture's loop, with the fill that was measured on a device itself if there is one.

    A refinement of an architecture (as ``blackwell-ultra`` is one) has its parent's.
    """
    known = LOOPS.get(architecture) or LOOPS.get(architecture.partition("-")[0], PLAIN_LOOP)
    return known if fill_k is None else TileLoop(fill_k, known.reuse)


_TILE_M, _TILE_N = np.array(TILES, dtype=np.float64).T
_FLOPS: Final = 2.0 * _TILE_M * _TILE_N
_REUSE: Final = _TILE_M * _TILE_N / (_TILE_M + _TILE_N)
_SPLIT: Final = np.array(SPLITS, dtype=np.float64)
_PARTIAL: Final = (_SPLIT > 1) * _SPLIT * PARTIAL_BYTES / CACHE_SPEED


def product_time(
    sizes: tuple[Num, Num, Num],
    *,
    groups: Num,
    cores: Num,
    loop: TileLoop,
    flops_per_s: Num,
    memory_bytes_per_s: Num,
) -> Num:
    """Return the seconds of ``groups`` (m x k)(k x n) products: the fastest tile shape and split-k factor.

    The products of a group share the waves; each has tiles of its own (grouped GEMM). Splits write their
    partial results, and one more pass adds them.

    Parameters
    ----------
    sizes
        m, n and k.
    flops_per_s
        What the largest tiles sustain over a long k.
    """
    given = (*sizes, groups, cores, loop.fill_k, loop.reuse, flops_per_s, memory_bytes_per_s)
    values = [np.asarray(v, dtype=np.float64) for v in given]
    m, n, k, each, cores, fill, reuse, rate, memory = values
    wide = (-1,) + (1,) * max(v.ndim for v in values)
    tile_m, tile_n, flops, its_reuse = (v.reshape(wide) for v in (_TILE_M, _TILE_N, _FLOPS, _REUSE))
    split, partial = _SPLIT.reshape(wide), _PARTIAL.reshape(wide)
    rounds = each * np.ceil(m / tile_m) * np.ceil(n / tile_n) / cores  # divided last: whole waves stay whole
    waves = np.ceil(split[:, None] * rounds)
    waves *= flops * ((1 + reuse / its_reuse) / (1 + reuse / _REUSE.max()))
    seconds = waves.min(axis=1) * (k / split + fill) * (cores / rate) + partial * (each * m * n / memory)
    return seconds.min(axis=0)
