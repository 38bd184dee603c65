"""The sizes and switches of a dense decoder, whatever file they were read from."""

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.operators import Part

NormPlace = Literal["pre_attention", "post_attention", "pre_mlp", "post_mlp"]
PRE_NORMS: tuple[NormPlace, ...] = ("pre_attention", "pre_mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A dense decoder-only transformer; the defaults are Llama's switches.

    Attributes
    ----------
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab
        Sizes. ``ffn`` is the width of one branch of a gated MLP.
    gated
        Whether the MLP multiplies two branches (SwiGLU, GeGLU).
    norm_weight, norm_bias
        Whether a norm has a scale and a shift (RMSNorm: scale; LayerNorm: both; OLMo: neither).
    norms
        Where a block normalises: before and after (inside the residual) attention and MLP.
    qk_norm
        Norm of queries and keys with weights per head's feature (``head``) or for each head (``full``).
    qk_norm_bias
        Whether that norm has a shift.
    qkv_bias, o_bias, mlp_bias, head_bias
        Biases of the products.
    parallel
        Attention and MLP read the same input and are added once (GPT-J, GPT-NeoX, Falcon, Phi, Cohere).
    positions
        How positions enter; ``position_rows`` rows are learned if ``learned`` (OPT: two more than tokens).
    embedding_norm, embedding_dim
        A norm behind the token embedding (BLOOM); its width where projections lead in and out (OPT-350m).
    final_norm, tied
        Whether the head normalises first, and shares the embedding's weight.
    windows
        Attention window of each layer, None for all tokens; a shorter pattern repeats over the layers.
    attention_dropout, hidden_dropout, embedding_dropout
        Probabilities; zero costs nothing.
    max_sequence_length
        Tokens that the positions allow, None if unbounded.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    norm_weight: bool = True
    norm_bias: bool = False
    norms: tuple[NormPlace, ...] = PRE_NORMS
    qk_norm: Literal["head", "full"] | None = None
    qk_norm_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    parallel: bool = False
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    position_rows: int = 0
    embedding_norm: bool = False
    embedding_dim: int | None = None
    final_norm: bool = True
    tied: bool = False
    windows: tuple[int | None, ...] = (None,)
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    embedding_dropout: float = 0.0
    max_sequence_length: int | None = None

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each of ``layers`` blocks, the pattern repeated."""
        return tuple(self.windows[i % len(self.windows)] for i in range(self.layers))

    @property
    def vocabulary(self) -> Part:
        """The vocabulary as tensor parallelism splits it."""
        return Part(self.vocab, self.vocab, "vocabulary", padded=True)

    @property
    def embedding_width(self) -> int:
        """Features of the token embedding."""
        return self.hidden if self.embedding_dim is None else self.embedding_dim
