"""Attention kernels: what of the scores goes through memory, and how fast their products run.

The figures and their sources are in ``data/attention.toml``. Rates belong to the pair of a kernel and an
accelerator's architecture. Left out: the dropout's random numbers inside flash kernels, and determinism
(10 to 15 % of the backward pass on Blackwell).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num
from meshwright.hardware.errors import UnknownNameError

PLATEAU_HEAD = 128
"""Head dimension of the measured plateaus."""
NARROW_HEAD = 64
"""Head dimension at which a kernel reaches ``narrow`` of them; between the two linear, below it constant."""


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Shares of the dense peak on one architecture.

    Attributes
    ----------
    forward, backward
        Plateaus over long sequences with heads of 128 features, on the kernel's own FLOPs.
    half_length
        Tokens at which half of them is reached.
    narrow
        Share of the plateau that heads of 64 features reach.
    """

    forward: float
    backward: float
    half_length: float
    narrow: float = 1.0

    def share(self, length: Num, head_dim: Num, *, backward: bool) -> FloatArray:
        """Return the share of the peak at a length and a head dimension (0: that of the plateau)."""
        plateau = self.backward if backward else self.forward
        s = np.maximum(length, 1)  # an empty stream has no length, and no FLOPs either
        d = np.where(np.asarray(head_dim) > 0, head_dim, PLATEAU_HEAD)
        wide = np.clip((d - NARROW_HEAD) / (PLATEAU_HEAD - NARROW_HEAD), 0.0, 1.0)
        return np.asarray(plateau * (self.narrow + (1 - self.narrow) * wide) * s / (s + self.half_length))


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """One implementation of the attention core.

    Attributes
    ----------
    flash
        Whether scores stay on chip and what causality masks is skipped.
    forward_bytes, backward_bytes
        Moved per score between the products, at 16 bits and without dropout.
    saved_bytes
        Kept per score for the backward pass, at 16 bits and without dropout.
    working_bytes
        Alive per score at the fullest moment of the backward pass beside what is kept, at 16 bits and without
        dropout.
    forward_kernels, backward_kernels
        Launches of one pass.
    rates
        By architecture; ``other`` for the rest.
    """

    name: str
    title: str
    flash: bool
    source: str
    rates: Mapping[str, AttentionRates] = field(hash=False)
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    saved_bytes: float = 0.0
    working_bytes: float = 0.0
    forward_kernels: int = 1
    backward_kernels: int = 2

    def rates_on(self, architecture: str) -> AttentionRates:
        """Return the rates on an architecture; a refinement (``blackwell-ultra``) has its parent's."""
        parent = architecture.partition("-")[0]
        return self.rates.get(architecture) or self.rates.get(parent) or self.rates["other"]


@lru_cache(maxsize=1)
def attention_kernels() -> Mapping[str, AttentionKernel]:
    """Return all kernels by name."""
    import tomllib

    text = resources.files("meshwright.costmodels").joinpath("data/attention.toml").read_text("utf-8")
    return {name: _kernel(name, entry) for name, entry in tomllib.loads(text).items()}


def _kernel(name: str, entry: Mapping[str, Any]) -> AttentionKernel:
    rates = {architecture: AttentionRates(**values) for architecture, values in entry["rates"].items()}
    rest = {key: value for key, value in entry.items() if key != "rates"}
    return AttentionKernel(name=name, rates=rates, **rest)


def find_attention_kernel(name: str) -> AttentionKernel:
    """Return a kernel by name; raises UnknownNameError."""
    kernels = attention_kernels()
    if name not in kernels:
        raise UnknownNameError("attention kernel", name, list(kernels))
    return kernels[name]
