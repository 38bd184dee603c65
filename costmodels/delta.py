"""The gated delta rule in chunks (DeltaNet arXiv 2406.06484, section 3; gated: arXiv 2412.06464)."""

from dataclasses import dataclass

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.part import Part
from meshwright.costmodels.scan import STATE_BYTES, HeadScan, product
from meshwright.costmodels.work import Shape, Work


@dataclass(frozen=True, slots=True)
class DeltaRule(HeadScan):
    """Linear attention whose state forgets (gate) and overwrites (delta rule), as products over chunks.

    A head keeps a (K x V) state. A chunk of C tokens costs, with the kernels of
    ``fla/ops/gated_delta_rule/chunk.py``: scores of keys with keys, (C x K)(K x C); the inverse of a unit
    triangle of C, C^3 / 3 FLOPs; from it the WY form of keys and values, (C x C)(C x K) and (C x C)(C x V);
    the recurrence over chunks, two products of (C x K)(K x V); the output, one of these, scores
    (C x K)(K x C) and (C x C)(C x V). Triangles are whole tiles: nothing is halved. The recurrence runs chunk
    after chunk, so that only heads and sequences fill the device: its products are priced as ``groups`` of
    (K x V) results with a long inner dimension. Backward repeats the WY form and the recurrence and has
    16 K V + C (18 K + 10 V) + 4 C^2 FLOPs a token and head in all.

    Attributes
    ----------
    heads
        Heads of values (and of the state).
    key_heads
        Heads of queries and keys, each read by ``heads / key_heads``.
    key_dim, value_dim
        Widths K and V of a head.
    chunk
        Tokens of a chunk, at most the sequence (64 in the kernels).
    head_weights
        Parameters a head: decay and time-step bias.
    gates
        Decays for each token and head: one, or ``key_dim`` (Kimi delta attention, arXiv 2510.26692).

    Left out: the normalisation of queries and keys inside the kernel.
    """

    name: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    chunk: int = 64
    head_weights: int = 2
    gates: int = 1
    light: bool = False
    trained: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits: heads of values, and of keys where it can."""
        return (
            Part(self.heads * self.value_dim, self.heads, "linear value heads"),
            Part(self.key_heads * self.key_dim, self.key_heads, "linear key heads", replicable=True),
        )

    def _bytes(self, shape: Shape) -> tuple[Num, Num, Num, Num]:
        """Return the bytes of keys, values, states and one (C x C) matrix a chunk, for all local heads."""
        c, q = self._chunk(shape), shape.element_bytes
        rows = shape.tokens * self._heads(shape)
        keys = shape.tokens * ceil_div(self.key_heads, shape.tp) * self.key_dim * q
        states = rows / c * self.key_dim * self.value_dim * q
        return keys, rows * self.value_dim * q, states, rows * c * q

    def _chunks(self, shape: Shape) -> Num:
        return shape.tokens / self._chunk(shape) * self._heads(shape)

    def _inverse(self, shape: Shape) -> Work:
        flops = self._chunks(shape) * self._chunk(shape) ** 3 / 3
        return Work("memory", flops, 2 * self._bytes(shape)[3])

    def _wy(self, shape: Shape) -> Work:
        """Return the WY form: the inverse times keys and values."""
        keys, values, _, square = self._bytes(shape)
        c = self._chunk(shape)
        wide = self._wide_keys(shape)
        return product(
            self._chunks(shape), c, self.key_dim + self.value_dim, c, keys + wide + 2 * values + square
        )

    def _wide_keys(self, shape: Shape) -> Num:
        """Return the bytes of keys written once for each value head."""
        return shape.tokens * self._heads(shape) * self.key_dim * shape.element_bytes

    def _recurrence(self, shape: Shape, products: int) -> tuple[Work, ...]:
        """Return products that update the state chunk after chunk, each over a whole sequence."""
        keys, values, states, _ = self._bytes(shape)
        whole = shape.sequences * self._heads(shape)
        length = products * shape.tokens / shape.sequences
        moved = self._wide_keys(shape) + keys + 2 * values + states
        return (product(whole, self.key_dim, self.value_dim, length, moved),)

    def _gate(self, shape: Shape) -> Work:
        """Return the cumulated decays."""
        elements = shape.tokens * self._heads(shape) * (self.gates + 1)
        return Work("memory", 0.0, elements * (shape.element_bytes + STATE_BYTES))

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return decays, key scores, inverse, WY form, recurrence and output."""
        keys, values, states, square = self._bytes(shape)
        c, n = self._chunk(shape), self._chunks(shape)
        return (
            self._gate(shape),
            product(n, c, c, self.key_dim, keys + square),
            self._inverse(shape),
            self._wy(shape),
            *self._recurrence(shape, 2),
            product(n, c, c, self.key_dim, 2 * keys),
            product(n, c, self.value_dim, c + self.key_dim, keys + 2 * values + states),
        )

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return WY form and recurrence again, then the gradients kernel by kernel."""
        keys, values, states, square = self._bytes(shape)
        c, n, k, v = self._chunk(shape), self._chunks(shape), self.key_dim, self.value_dim
        wide = self._wide_keys(shape)
        return (
            self._wy(shape),
            *self._recurrence(shape, 2),
            product(n, c, c, k, 2 * keys),
            product(n, c, v, c, 2 * values),
            *self._recurrence(shape, 3),
            product(n, c, k, 3 * v, 3 * (values + wide) + 2 * states),
            product(n, c, c, v, 2 * values),
            product(n, c, 2 * k, c, 2 * (keys + wide)),
            product(n, c, c, k + v, wide + 2 * values + keys + square),
            product(n, c, k + v, c, 2 * (wide + values) + square),
            product(n, c, 2 * k, c, keys + wide + square),
            product(n, c, c, k, keys),
            product(n, c, c, 2 * c, 3 * square),
            self._gate(shape),
        )

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the output, the inverses, and the fp32 cumulated decays; inputs belong to their makers."""
        _, values, _, square = self._bytes(shape)
        gates = shape.tokens * self._heads(shape) * self.gates * STATE_BYTES
        return values + square + gates

    def transient_bytes(self, shape: Shape) -> Num:
        """Return what lives while it runs backward: states, the WY form, and their gradients."""
        _, values, states, _ = self._bytes(shape)
        return 2 * (states + values + self._wide_keys(shape))
