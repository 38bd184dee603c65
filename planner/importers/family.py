"""What a family is, and the words its tables are written in: key spellings, sizes, biases, dropout.

The defaults in the tables are those of the configuration classes in transformers 5.24
(``PreTrainedConfig`` subclasses), so that a file which omits a key means here what it means there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.planner.importers.rules import (
    Default,
    Reading,
    Rule,
    amount,
    constant,
    dropout,
    flag,
    optional_size,
    plus,
    quotient,
    same_as,
    share,
    size,
    times,
)

HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN: Final = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff")
LENGTH: Final = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
ROTARY_SHARE: Final = (
    "partial_rotary_factor",
    "rope_parameters.partial_rotary_factor",
    "rotary_pct",
    "rotary_percent",
    "rotary_emb_fraction",
)
MTP: Final = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
POST_NORMS: Final = ("post_attention", "post_mlp")
FOUR_NORMS: Final = ("pre_attention", "post_attention", "pre_mlp", "post_mlp")
ONE_NORM: Final = ("pre_attention",)

YES: Final = constant(True)
NO: Final = constant(False)


@dataclass(frozen=True, slots=True)
class Family:
    """How a ``model_type`` is read: its rules, the framework's block class, and what reading leaves out.

    ``reads`` names architectures (in the words of :data:`~meshwright.planner.importers.unsupported.MARKERS`)
    that the rules read though no field tells it; experts and latent attention are told by ``feeds`` and
    ``mixers``.
    """

    block_class: str | None
    rules: Mapping[str, Rule]
    notes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def sizes(
    hidden: int | None,
    layers: int | None,
    heads: int | None,
    ffn: Default,
    vocab: int | None,
    kv_heads: Default = None,
    head_dim: int | None = None,
    length: int | None = None,
) -> dict[str, Rule]:
    """Return rules for the sizes with a class's defaults; None: the key is required (or derived)."""
    heads_alike, even = same_as("heads"), quotient("hidden", "heads")
    return {
        "hidden": size(*HIDDEN, default=hidden),
        "layers": size(*LAYERS, default=layers, what="layers"),
        "heads": size(*HEADS, default=heads, what="heads"),
        "kv_heads": size(*KV_HEADS, default=kv_heads or heads_alike, null=heads_alike, what="heads"),
        "head_dim": size("head_dim", default=head_dim or even, null=even),
        "ffn": size(*FFN, default=ffn, null=ffn if callable(ffn) else None),
        "vocab": size("vocab_size", default=vocab, what="vocab"),
        "max_sequence_length": optional_size(*LENGTH, default=length, what="rows"),
    }


def rotary(default: float) -> dict[str, Rule]:
    """Return the rules for the share of a head's features that is rotated, and whether they are scaled."""
    return {"rotary_share": share(*ROTARY_SHARE, default=default), "rotary_scaled": scaled_rotary(False)}


def scaled_rotary(default: bool) -> Rule:
    """Return the rule for YaRN's attention factor: whether cosines and sines are scaled by another than one.

    It follows from the stretch unless the file names it, or two of which it is the quotient
    (``_compute_yarn_parameters`` of transformers' modeling_rope_utils.py).

    Parameters
    ----------
    default
        For a file that says nothing of how positions are stretched.
    """

    def read(reading: Reading) -> bool:
        """Read the block of either name."""
        blocks = (reading.config.find((name,))[1] for name in ("rope_scaling", "rope_parameters"))
        given = next((block for block in blocks if isinstance(block, Mapping)), {})
        kind = given.get("rope_type", given.get("type"))
        if kind != "yarn":
            return default if kind is None else False
        if given.get("attention_factor") is not None:
            return bool(given["attention_factor"] != 1)
        above, below = given.get("mscale"), given.get("mscale_all_dim")
        return given.get("factor") != 1 and not (above and above == below)

    return read


def rotary_width(default: int | None) -> Rule:
    """Return the rule for that share where the file tells its features (``rotary_dim``); None: all."""
    width, told = optional_size("rotary_dim", default=default), share(*ROTARY_SHARE, default=-1.0)

    def read(reading: Reading) -> float:
        """Read the share of a head that rotates."""
        part, dim = width(reading), reading.fields["head_dim"]
        return float(told(reading)) if told(reading) >= 0 else min(1.0, (part or dim) / dim)

    return read


def mtp_layers() -> dict[str, Rule]:
    """Return the rule for the layers of multi-token prediction that the file names."""
    return {"mtp_layers": amount(*MTP, what="layers")}


def biases(qkv: Rule, o: Rule | None = None, mlp: Rule | None = None) -> dict[str, Rule]:
    """Return rules for the biases; without ``o`` and ``mlp`` one switch is meant for all."""
    return {"qkv_bias": qkv, "o_bias": o or qkv, "mlp_bias": mlp or qkv}


def tied(default: bool) -> dict[str, Rule]:
    """Return the rule for tied embeddings."""
    return {"tied": flag("tie_word_embeddings", default=default)}


def learned(extra_rows: int = 0) -> dict[str, Rule]:
    """Return the rules for learned positions, ``extra_rows`` more than there are tokens (OPT: 2)."""
    return {
        "positions": constant("learned"),
        "position_rows": plus(same_as("max_sequence_length"), extra_rows),
    }


DROPOUT: Final[dict[str, Rule]] = {
    "attention_dropout": dropout("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
    "hidden_dropout": dropout("hidden_dropout", "resid_pdrop", "residual_dropout", "dropout"),
    "embedding_dropout": dropout("embd_pdrop", "embedding_dropout", "emb_pdrop"),
}
GPT2_DROPOUT: Final[dict[str, Rule]] = {
    "attention_dropout": dropout("attn_pdrop", default=0.1),
    "hidden_dropout": dropout("resid_pdrop", default=0.1),
    "embedding_dropout": dropout("embd_pdrop", default=0.1),
}
LAYER_NORM: Final[dict[str, Rule]] = {"norm_bias": YES}
PLAIN_MLP: Final[dict[str, Rule]] = {"gated": NO}
ATTENTION_BIAS: Final = biases(flag("attention_bias"), mlp=NO)
LLAMA_BIAS: Final = biases(flag("attention_bias"), mlp=flag("mlp_bias"))
FOUR_TIMES: Final = times(same_as("hidden"), 4)

LLAMA: Final = {
    **sizes(4096, 32, 32, 11008, 32000, length=2048),
    **tied(False),
    **DROPOUT,
    **rotary(1.0),
}
GEMMA: Final = {**tied(True), **DROPOUT, **ATTENTION_BIAS}
GPT: Final = {**LAYER_NORM, **PLAIN_MLP, **DROPOUT, **biases(YES)}
