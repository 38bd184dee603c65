"""Scans over time: state-space and linear-attention cores whose cost is linear in the tokens.

A scan carries a state from token to token (``head_dim x state`` numbers a head), so that its sequence cannot
be dealt to a context group as an attention core's can: ``splits_sequence`` is false. Heads are independent
and split over ``tp``; inputs that several heads share (B and C of a group, or keys) are copied where ``tp``
exceeds the groups.

Two ways to run one:

- :class:`SelectiveScan` token by token in one fused kernel (Mamba, arXiv 2312.00752, section 3.3.2), bound by
  memory or by the fp32 units;
- :class:`ChunkedScan` chunk by chunk as products (state-space duality, arXiv 2405.21060, section 6), with
  the five kernels of the reference code (``mamba_ssm/ops/triton/ssd_combined.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain
from meshwright.costmodels.work import Shape, Work

STATE_BYTES = 4
"""States and scores between kernels are fp32."""
SCAN_FLOPS = 9
"""FLOPs for each token, channel and state: ``flops_selective_scan`` of the Mamba reference code."""
SCAN_BLOCK = 2048
"""Tokens between the states that the fused kernel keeps (``selective_scan_fwd_kernel.cuh``)."""


def product(groups: Num, m: Num, n: Num, k: Num, moved_bytes: Num) -> Work:
    """Return ``groups`` equal products in one kernel that together move ``moved_bytes``.

    Operands that several products share count once: they come from the cache.
    """
    return Work("gemm", groups * (2.0 * m * n * k), moved_bytes, m, n, k, groups=groups)


class HeadScan(Plain):
    """A scan of heads that are independent: they are split over ``tp``, a sequence is not.

    ``heads`` have ``head_weights`` parameters each; a chunked one takes ``chunk`` tokens at a time, at most
    the sequence.
    """

    __slots__ = ()
    heads: int
    chunk: int
    head_weights: int
    splits_sequence: ClassVar[bool] = False

    def parameters(self) -> int:
        """Return the heads' own weights."""
        return self.heads * self.head_weights

    def local_parameters(self, shape: Shape) -> Num:
        """Return those of one rank's heads."""
        return self._heads(shape) * self.head_weights

    def _heads(self, shape: Shape) -> Num:
        """Return the heads on one rank."""
        return ceil_div(self.heads, shape.tp)

    def _chunk(self, shape: Shape) -> Num:
        """Return the tokens of a chunk."""
        return np.minimum(self.chunk, shape.sequence_length)


@dataclass(frozen=True, slots=True)
class SelectiveScan(Plain):
    """Mamba's selective scan: a diagonal recurrence of ``state`` numbers a channel, in one fused kernel.

    Reads the input, the time step and the gate of each channel, B and C of each token; writes the gated
    output. Parameters: ``state`` decay rates and one skip weight a channel. Backward recomputes the states
    from those kept every 2,048 tokens, reads the gradient and the inputs and writes four gradients, with
    three times the FLOPs.

    No matrices are multiplied: the FLOPs run on the fp32 units and bind more than memory does from a few
    states a channel on, so that time grows with ``state`` (arXiv 2405.21060, figure 10).
    """

    name: str
    channels: int
    state: int
    light: bool = False
    trained: bool = True
    splits_sequence: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: channels."""
        return (Part(self.channels, self.channels, "scan channels"),)

    def parameters(self) -> int:
        """Return decay rates and skip weights."""
        return self.channels * (self.state + 1)

    def local_parameters(self, shape: Shape) -> Num:
        """Return those of one rank's channels."""
        return self._local(shape) * (self.state + 1)

    def _local(self, shape: Shape) -> Num:
        return ceil_div(self.channels, shape.tp)

    def _work(self, shape: Shape, passes: Num, over_channels: Num, over_state: Num) -> Work:
        width = over_channels * self._local(shape) + over_state * self.state
        flops = passes * SCAN_FLOPS * shape.tokens * self._local(shape) * self.state
        return Work("vector", 1.0 * flops, shape.tokens * width * shape.element_bytes)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the scan: input, time step, gate and output, B and C."""
        return (self._work(shape, 1, 4, 2),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the scan again with its gradients: nine passes over the channels, B and C and theirs."""
        return (self._work(shape, 3, 9, 6),)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the output before and behind the gate, and a state for every block of tokens."""
        outputs = 2 * shape.tokens * self._local(shape) * shape.element_bytes
        states = shape.tokens / np.minimum(shape.sequence_length, SCAN_BLOCK)
        return outputs + states * self._local(shape) * 2 * self.state * STATE_BYTES


@dataclass(frozen=True, slots=True)
class ChunkedScan(HeadScan):
    """A scan with one decay a head, run in chunks as products: Mamba-2, lightning attention, mLSTM.

    A head of a chunk of Q tokens with head width P and state N: its state is a (P x Q)(Q x N) product; the
    scores C B^T are (Q x N)(N x Q), once for all heads of a group; the output adds the scores times the
    input, (Q x Q)(Q x P) below the diagonal, to C times the state of the chunk before, (Q x N)(N x P). In
    linear attention the input is the value, B the key, C the query. Backward computes scores and states
    again (the reference code keeps neither), has two products for each forward, and one more below the
    diagonal for the decays' gradient.

    Attributes
    ----------
    heads, head_dim
        Heads of the input and their width P.
    groups
        Heads of B and C, each shared by ``heads / groups``.
    state
        Width N of B and C.
    chunk
        Tokens of a chunk, at most the sequence.
    head_weights
        Parameters a head: 3 in Mamba-2 (time-step bias, decay, skip), none in lightning attention.

    The scores are fp32 and read again for each head, below the diagonal.

    Left out: the arithmetic of decays and masks (their bytes count), and the normaliser of mLSTM.
    """

    name: str
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int = 256
    head_weights: int = 3
    light: bool = False
    trained: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: heads, and groups where it can."""
        return (
            Part(self.heads * self.head_dim, self.heads, "scan heads"),
            Part(self.groups * self.state, self.groups, "scan groups", replicable=True),
        )

    def _groups(self, shape: Shape) -> Num:
        return ceil_div(self.groups, shape.tp)

    def _bytes(self, shape: Shape) -> tuple[Num, Num, Num, Num]:
        """Return the bytes of the input, of B (or C), of all states and of all scores on one rank."""
        q = self._chunk(shape)
        inputs = shape.tokens * self._heads(shape) * self.head_dim * shape.element_bytes
        keys = shape.tokens * self._groups(shape) * self.state * shape.element_bytes
        states = shape.tokens / q * self._heads(shape) * self.head_dim * self.state * STATE_BYTES
        return inputs, keys, states, shape.tokens * self._groups(shape) * q * STATE_BYTES

    def _reads(self, shape: Shape) -> Num:
        """Return the bytes of the scores below the diagonal, read for each head."""
        return shape.tokens * self._heads(shape) * (self._chunk(shape) + 1) / 2 * STATE_BYTES

    def _states(self, shape: Shape) -> tuple[Work, ...]:
        """Return what backward repeats: decays, states of each chunk, states handed on, scores."""
        q, x, n = self._chunk(shape), self.head_dim, self.state
        inputs, keys, states, scores = self._bytes(shape)
        per_head = shape.tokens / q * self._heads(shape)
        per_group = shape.tokens / q * self._groups(shape)
        return (
            Work("memory", 0.0, shape.tokens * self._heads(shape) * (shape.element_bytes + 2 * STATE_BYTES)),
            product(per_head, x, n, q, inputs + keys + states),
            Work("memory", 0.0, 2 * states),
            product(per_group, q, q, n, 2 * keys + scores),
        )

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the five kernels: decays, chunk states, their recurrence, scores, outputs."""
        q = self._chunk(shape)
        inputs, keys, states, _ = self._bytes(shape)
        per_head = shape.tokens / q * self._heads(shape)
        moved = 2 * inputs + keys + states + self._reads(shape)
        output = product(per_head, q, self.head_dim, self.state + (q + 1) / 2, moved)
        return (*self._states(shape), output)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return states and scores again, and the gradients of states, input, B, C and scores."""
        q, p, n = self._chunk(shape), self.head_dim, self.state
        inputs, keys, states, scores = self._bytes(shape)
        per_head = shape.tokens / q * self._heads(shape)
        per_group = shape.tokens / q * self._groups(shape)
        causal, reads = (q + 1) / 2, self._reads(shape)
        return (
            *self._states(shape),
            product(per_head, p, n, q, inputs + keys + states),
            Work("memory", 0.0, 3 * states),
            product(per_head, q, p, n + causal, 2 * inputs + keys + states + reads),
            product(per_head, q, n, p, inputs + keys + states),
            product(per_head, q, n, p, inputs + keys + states),
            product(per_head, q, causal, p, 2 * inputs + scores),
            product(per_head, q, causal, p, 2 * inputs + reads),
            product(per_group, q, n, q, 2 * keys + scores),
            product(per_group, q, n, q, 2 * keys + scores),
        )

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the output; the inputs belong to those who made them."""
        return shape.tokens * self._heads(shape) * self.head_dim * shape.element_bytes

    def transient_bytes(self, shape: Shape) -> Num:
        """Return what lives while it runs backward: states and their gradients, scores and theirs."""
        _, _, states, scores = self._bytes(shape)
        return 2 * (states + scores)
