"""The sizes and switches of a decoder and the pattern of its layers, whatever file they were read from.

A layer is a pair: a *mixer* that lets tokens see each other (attention of some form, a state-space scan,
...) and a *feed* that treats each token alone (a dense MLP, a mixture of experts). Either may be missing.
Both are small frozen values that know their operators; layers with equal pairs are one layer kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from meshwright.costmodels.operators import Operator
from meshwright.costmodels.part import Part
from meshwright.costmodels.work import Gate

NormPlace = Literal["pre_attention", "post_attention", "pre_mlp", "post_mlp"]
PRE_NORMS: tuple[NormPlace, ...] = ("pre_attention", "pre_mlp")
T = TypeVar("T")


class Sublayer(Protocol):
    """A mixer or a feed: what stands between a norm and a residual sum.

    Implementations are frozen dataclasses: equal values make equal layer kinds.
    """

    @property
    def label(self) -> str:
        """The word that tells it from others in a layer kind's name ("sliding", "moe", "mamba")."""
        ...

    @property
    def detail(self) -> str:
        """A longer word, used where two different ones of a model share a label ("sliding512")."""
        ...

    @property
    def feeds_products(self) -> bool:
        """Whether its input is read by products alone, so that it may be kept in their (8-bit) type."""
        ...

    def operators(self, spec: "DecoderSpec") -> tuple[Operator, ...]:
        """Return its operators, from the normalised input to the output, with its own boundaries.

        Input and output are in the sequence region (split by sequence parallelism).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only model; the defaults are a dense transformer with Llama's switches.

    The flat fields describe the usual layer, standard attention and a dense MLP; ``mixers`` and ``feeds``
    take its place where layers are of other kinds or differ among each other. These read what they share
    (norms, biases, head sizes) from the flat fields.


    Attributes
    ----------
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab
        Sizes. ``ffn`` is the width of one branch of a gated MLP.
    gated
        Whether the MLP multiplies two branches (SwiGLU, GeGLU).
    gate
        How its activation, and the experts', joins them.
    activation_weights
        Learned numbers of an MLP's activation function (xIELU: 2).
    norm_weight, norm_bias
        Whether a norm has a scale and a shift (RMSNorm: scale; LayerNorm: both; OLMo: neither).
    norms
        Where a block normalises: before and after (inside the residual) attention and MLP.
    qk_norm
        Norm of queries and keys with weights per head's feature (``head``), for each head (``full``) or none
        (``plain``).
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
    rotary_share
        Share of a head's features that the rotary embedding turns.
    rotary_scaled
        Whether what is turned is scaled as well (YaRN's attention factor, where it is not one).
    mixers, feeds
        One for each layer, None where a layer has none; a shorter pattern repeats over the layers. Empty:
        standard attention with ``windows``, a dense MLP of width ``ffn``.
    residual_streams
        Copies of the residual stream that hyper-connections mix (DeepSeek-V4); 1: a plain residual.
    mtp_layers
        Layers for multi-token prediction that the file names behind the last; they are of the kind that
        follows in a longer pattern, else of the last layer's.
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
    gate: Gate = "plain"
    activation_weights: int = 0
    norm_weight: bool = True
    norm_bias: bool = False
    norms: tuple[NormPlace, ...] = PRE_NORMS
    qk_norm: Literal["head", "full", "plain"] | None = None
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
    rotary_share: float = 1.0
    rotary_scaled: bool = False
    mixers: tuple[Sublayer | None, ...] = ()
    feeds: tuple[Sublayer | None, ...] = ()
    residual_streams: int = 1
    mtp_layers: int = 0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    embedding_dropout: float = 0.0
    max_sequence_length: int | None = None

    @property
    def vocabulary(self) -> Part:
        """The vocabulary as tensor parallelism splits it."""
        return Part(self.vocab, self.vocab, "vocabulary", padded=True)

    @property
    def embedding_width(self) -> int:
        """Features of the token embedding."""
        return self.hidden if self.embedding_dim is None else self.embedding_dim


def repeated(pattern: Sequence[T], layers: int) -> tuple[T, ...]:
    """Return one entry for each layer, a shorter pattern repeated."""
    return tuple(pattern[i % len(pattern)] for i in range(layers))
