"""The attention core: flash or unfused, causal, windowed, sparse or full, split by heads and sequence."""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import Num, ceil_div
from meshwright.costmodels.attention_kernels import AttentionKernel, find_attention_kernel
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain
from meshwright.costmodels.work import Shape, Traffic, Work


@dataclass(frozen=True, slots=True)
class Attention(Plain):
    """The attention core, flash or unfused, split by heads.

    An unfused kernel computes the whole square and moves its scores through memory
    (:mod:`meshwright.costmodels.attention_kernels`). FLOPs: 2 products of (s x s) a head, halved when causal,
    banded when windowed (formulas: 4 b s^2 a d full; 2 b s^2 a d causal; 4 b a d (s w - w(w-1)/2) windowed;
    4 b s s' a d over a context of s' tokens).
    Flash attention's backward pass runs five products for the forward pass' two, hence 2.5 times its FLOPs
    (FlashAttention-2, arXiv 2307.08691); the unfused one runs four, hence twice.
    Saved: the output, and per head the fp32 log-sum-exp (flash) or the softmax's output (unfused; with
    dropout also its mask and the dropped-out copy: 5 a s bytes a token at 16 bits, arXiv 2205.05198).

    Under context parallelism each rank holds ``1 / cp`` of the tokens. ``ulysses`` ranks exchange tokens for
    heads before and after the core (all-to-all, arXiv 2309.14509); the ``cp / ulysses`` others see all keys
    and values, passed round a ring beside the core (arXiv 2310.01889) or gathered before it (Llama 3,
    arXiv 2407.21783, section 3.3.2). Causal work is balanced by giving each rank two mirrored pieces, so
    every rank does ``1 / cp`` of the pairs. The backward pass passes keys, values and their gradients.

    Attributes
    ----------
    window
        Keys that a query sees at most, itself included.
    topk_keys
        Keys that a query reads at most, picked by an indexer; their number counts, not their place.
    chunk
        Tokens of a chunk beyond whose borders nothing is seen (Llama-4).
    stride
        Tokens that are compressed to one key: beside its ``window`` a query sees one key for so many earlier
        tokens (DeepSeek-V4), ``topk_keys`` of them where that is set; None: keys are not compressed.
    cross
        Whether keys come from the context stream (all of them are seen).
    sinks
        Whether each head has a learned sink (one parameter).
    core
        Name of the kernel; empty: FlashAttention-2, or Megatron-LM's fused softmax where not ``flash``.

    Left out: a window that would spare a ring some of its hops.
    """

    name: str
    heads: Num
    kv_heads: Num
    head_dim: Num
    v_head_dim: Num
    causal: bool = True
    window: Num | None = None
    flash: bool = True
    dropout: bool = False
    light: bool = False
    topk_keys: Num | None = None
    cross: bool = False
    sinks: bool = False
    chunk: Num | None = None
    stride: Num | None = None
    core: str = ""
    trained: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits, and what exchanging heads splits further: query heads."""
        width = self.heads * self.head_dim
        return (
            Part(width, self.heads, "attention heads"),
            Part(width, self.heads, "attention heads", axis="ulysses"),
        )

    def parameters(self) -> int:
        """Return one sink a head, if it has them."""
        return int(self.sinks * self.heads)

    def local_parameters(self, shape: Shape) -> Num:
        """Return the sinks on one rank."""
        return self.sinks * ceil_div(self.heads, shape.tp)

    def keys(self, shape: Shape) -> Num:
        """Return the tokens that keys and values are made of, in a whole sequence."""
        return shape.context_length if self.cross else shape.sequence_length

    def reach(self, shape: Shape) -> Num:
        """Return the keys that a query sees at most: what a kernel streams past it, and thus its ramp.

        Kernels are measured on causal sequences, of which a query sees half in the mean; of a causal window
        it sees the whole, so that counts as a sequence of twice its length.
        """
        seen: Num = 1.0 * self.keys(shape)
        window = self.window if self.window is None or not self.causal else 2.0 * self.window
        for limit in (window, self.topk_keys, self.chunk):
            if limit is not None and self.stride is None:
                seen = np.minimum(seen, limit)
        return seen

    def pairs(self, sequence_length: Num, keys: Num | None = None) -> Num:
        """Return the query-key pairs of one head and sequence: full, causal half, or banded."""
        s = 1.0 * sequence_length
        if self.cross and keys is not None:
            return s * keys
        if self.chunk is not None:
            return s * (np.minimum(s, self.chunk) + 1) / 2
        if self.stride is not None:
            return self._compressed_pairs(s)
        limits = [w for w in (self.window, self.topk_keys) if w is not None]
        if limits:
            w = np.minimum(s, np.minimum.reduce([np.asarray(v, dtype=np.float64) for v in limits]))
            band = s * w - w * (w - 1) / 2
            if self.causal:
                return band
            return s * w if self.window is None else np.minimum(2 * band - s, s * s)
        return s * (s + 1) / 2 if self.causal else s * s

    def _compressed_pairs(self, s: Num) -> Num:
        """Return the pairs within the window, and those with compressed keys of all earlier tokens.

        A query at ``t`` sees ``t / stride`` compressed keys, at most ``topk_keys``.
        """
        stride = np.asarray(self.stride, dtype=np.float64)
        near = np.minimum(s, s if self.window is None else self.window)
        last = s / stride
        most = last if self.topk_keys is None else np.minimum(last, self.topk_keys)
        return s * near - near * (near - 1) / 2 + stride * (last * most - most**2 / 2)

    def _heads(self, shape: Shape) -> Num:
        """Return the query heads whose core one rank computes, times the sequence parts it sees of them."""
        return ceil_div(self.heads, shape.tp) / shape.cp

    @property
    def kernel(self) -> AttentionKernel:
        """Its implementation; one that keeps scores on chip if and only if ``flash``."""
        named = find_attention_kernel(self.core or "flash-2")
        if named.flash == self.flash:
            return named
        return find_attention_kernel("flash-2" if self.flash else "megatron-softmax")

    def computed_pairs(self, shape: Shape) -> Num:
        """Return the query-key pairs of one head and sequence that are computed: all, unless flash skips."""
        if self.flash:
            return self.pairs(shape.sequence_length, self.keys(shape))
        return 1.0 * shape.sequence_length * self.keys(shape)

    def _flops(self, shape: Shape) -> Num:
        per_pair = 2 * (self.head_dim + self.v_head_dim)
        return shape.sequences * self._heads(shape) * per_pair * self.computed_pairs(shape)

    def _scores(self, shape: Shape) -> Num:
        """Return the scores that go through memory on one rank."""
        return (not self.flash) * shape.sequences * self._heads(shape) * self.computed_pairs(shape)

    def _key_tokens(self, shape: Shape) -> Num:
        """Return the tokens whose keys and values a rank holds before it sees those of others."""
        return shape.context_tokens if self.cross else shape.tokens

    def _kv_width(self, shape: Shape) -> Num:
        """Return the features of keys and values of one token on one rank."""
        heads = np.maximum(ceil_div(self.kv_heads, shape.tp), shape.ulysses)
        return heads * (self.head_dim + self.v_head_dim)

    def key_bytes(self, shape: Shape) -> Num:
        """Return the bytes of a rank's own keys and values."""
        return self._key_tokens(shape) * self._kv_width(shape) * shape.element_bytes

    def _io_bytes(self, shape: Shape) -> Num:
        """Return the bytes of Q, K, V and O."""
        heads = ceil_div(self.heads, shape.tp)
        queries = shape.tokens * heads * (self.head_dim + self.v_head_dim)
        seen = self._key_tokens(shape) * (shape.cp / shape.ulysses)
        return (queries + seen * self._kv_width(shape)) * shape.element_bytes

    def _core(self, shape: Shape, *, backward: bool) -> tuple[Work, ...]:
        """Return the products, and of unfused kernels what runs between them.

        The products of an unfused core write scores and read probabilities (forward), and write one and read
        three such tensors backward; dropout reads and writes them once more, and a mask of one byte.
        """
        kernel, width, scores = self.kernel, shape.element_bytes, self._scores(shape)
        ratio = 1.0 if not backward else 2.5 if self.flash else 2.0
        products = Work(
            "attention",
            ratio * self._flops(shape),
            (1 + backward) * self._io_bytes(shape) + (4 if backward else 2) * width * scores,
            n=self.head_dim,
            k=self.reach(shape),
            kernels=1 + backward if self.flash else 2 + 2 * backward,
            core=kernel.name,
        )
        if self.flash:
            return (products,)
        own = kernel.backward_bytes if backward else kernel.forward_bytes
        dropped = self.dropout * (2 * width + 1)
        launches = kernel.backward_kernels if backward else kernel.forward_kernels
        between = Work(
            "memory", 0.0, scores * (own * width / 2 + dropped), kernels=launches - products.kernels
        )
        return products, between

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the two products, and the softmax between them."""
        return self._core(shape, backward=False)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return 2.5 (flash) or 2 (unfused) times the forward products, and the softmax's gradient."""
        return self._core(shape, backward=True)

    def traffic(self, shape: Shape) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the exchange of heads, and of keys and values (none without context parallelism)."""
        around = self._exchange(shape)
        rest = shape.cp / shape.ulysses
        part = self.key_bytes(shape) * (rest > 1)
        passed = part * (rest - 1) * shape.ring
        whole = part * rest * (1 - 1 * shape.ring)
        forward = (
            Traffic("send_recv", passed, "self", "ring"),
            Traffic("all_gather", whole, group="ring"),
        )
        backward = (
            Traffic("send_recv", 2 * passed, "self", "ring"),
            Traffic("all_gather", whole, group="ring"),
            Traffic("reduce_scatter", whole, group="ring"),
        )
        return (*around, *forward), (*around, *backward)

    def _exchange(self, shape: Shape) -> tuple[Traffic, ...]:
        """Return the all-to-alls of queries, keys and values before the core, and of its output behind."""
        heads, on = ceil_div(self.heads, shape.tp), np.asarray(shape.ulysses) > 1
        wide = np.maximum(ceil_div(self.kv_heads, shape.tp), shape.ulysses)
        keys = self._key_tokens(shape) * wide * (self.head_dim + self.v_head_dim)
        before = shape.tokens * heads * self.head_dim + keys
        behind = shape.tokens * heads * self.v_head_dim
        return tuple(
            Traffic("all_to_all", on * n * shape.element_bytes, group="ulysses") for n in (before, behind)
        )

    def transient_bytes(self, shape: Shape) -> Num:
        """Return what exists while the core runs alone.

        Keys and values of others: all, or two parts of a ring. Of an unfused core's backward pass the
        gradients of scores: dropout's second one comes when the copy that it dropped from, which the product
        behind it kept, is gone, and so does all of the softmax's.
        """
        rest = shape.cp / shape.ulysses
        part = self.key_bytes(shape) * (rest > 1)
        per_score = self.kernel.working_bytes / 2
        if self.dropout:
            per_score = max(per_score - 1, 1.0 * (not self.flash))
        others = part * (2 * shape.ring + rest * (1 - 1 * shape.ring))
        return others + per_score * shape.element_bytes * self._scores(shape)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the output and of the log-sum-exp or the scores."""
        heads = ceil_div(self.heads, shape.tp)
        output = shape.tokens * heads * self.v_head_dim * shape.element_bytes
        return output + self.core_bytes(shape)

    def core_bytes(self, shape: Shape) -> Num:
        """Return what recomputing the core alone frees: the scores, or flash's log-sum-exp."""
        heads = ceil_div(self.heads, shape.tp)
        kept = self.kernel.saved_bytes * shape.element_bytes / 2
        per_score = kept + (shape.element_bytes + 1) * self.dropout
        per_token = 4 if self.flash else per_score * self.keys(shape)
        return shape.tokens * heads * per_token
