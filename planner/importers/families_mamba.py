"""Families with Mamba's or Mamba-2's mixer, alone or with attention among the layers or beside it."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from meshwright.planner.decoder import Sublayer
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.family import (
    DROPOUT,
    LLAMA_BIAS,
    NO,
    PLAIN_MLP,
    YES,
    Family,
    biases,
    sizes,
    tied,
)
from meshwright.planner.importers.layer_types import (
    FULL,
    LINEAR,
    Make,
    Names,
    by_arithmetic,
    chosen,
    letters,
    listed,
)
from meshwright.planner.importers.routing import experts
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    choose,
    constant,
    flag,
    optional_size,
    same_as,
    size,
)
from meshwright.planner.importers.unsupported import EXPERTS, HYBRID, LATENT
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.recurrent import Beside, Mamba, Mamba2

READS: Final = (
    "a state-space model",
    "a hybrid of attention and convolutions",
    "linear attention",
    "a recurrent model",
    "a recurrent hybrid",
    "a model whose layers differ (searched by NAS)",
    HYBRID,
    EXPERTS,
    LATENT,
)
"""Architectures that the rules of hybrids read."""

NO_FEED: Final[Rule] = constant((None,))
NOPE: Final[dict[str, Rule]] = {"positions": constant("none")}


def hybrid(block_class: str, rules: Mapping[str, Rule], notes: tuple[str, ...] = ()) -> Family:
    """Return a family whose rules read what tells hybrids and state-space models."""
    return Family(block_class, rules, notes, READS)


def attention(reading: Reading) -> Sublayer:
    """Return the family's attention; what it shares stands in the flat fields."""
    return SelfAttention()


def mlp(reading: Reading) -> Sublayer:
    """Return the family's dense MLP."""
    return Mlp()


def nothing(reading: Reading) -> None:
    """Return no sublayer."""
    return


def pure(layers: int, vocab: int, ties: bool, hidden: int) -> dict[str, Rule]:
    """Return the rules of a model without attention and MLP: their sizes stand for nothing."""
    one = constant(1)
    return {
        **sizes(hidden, layers, 1, 1, vocab),
        "heads": one,
        "kv_heads": one,
        "head_dim": one,
        "ffn": one,
        "max_sequence_length": constant(None),
        **tied(ties),
        **NOPE,
        "feeds": NO_FEED,
    }


def automatic(*names: str, default: Rule) -> Rule:
    """Return a rule for a width that may be given as "auto"."""

    def read(reading: Reading) -> int:
        """Read the size, or derive it."""
        name, value = reading.config.find(names)
        if value is MISSING or value is None or value == "auto":
            return int(default(reading))
        return reading.config.count(name, value, "width")

    return read


def _step_rank(reading: Reading) -> int:
    return ceil(int(reading.fields["hidden"]) / 16)


def _mamba(prefix: str, norms: str = "none") -> Make:
    """Return the rule for Mamba's mixer; ``prefix`` stands before the keys of hybrids."""
    keys = {
        "state": f"{prefix}d_state" if prefix else "state_size",
        "conv": f"{prefix}d_conv" if prefix else "conv_kernel",
        "rank": f"{prefix}dt_rank" if prefix else "time_step_rank",
        "conv_bias": f"{prefix}conv_bias" if prefix else "use_conv_bias",
        "bias": f"{prefix}proj_bias" if prefix else "use_bias",
    }

    def read(reading: Reading) -> Sublayer:
        """Read the mixer."""
        return Mamba(
            channels=size(f"{prefix}expand", default=2)(reading) * reading.fields["hidden"],
            state=size(keys["state"], default=16)(reading),
            rank=automatic(keys["rank"], default=_step_rank)(reading),
            conv_width=size(keys["conv"], default=4)(reading),
            conv_bias=flag(keys["conv_bias"], default=True)(reading),
            bias=flag(keys["bias"])(reading),
            norms=norms,  # type: ignore[arg-type]
        )

    return read


def _mamba2(reading: Reading) -> Sublayer:
    """Return the mixer of the ``mamba2`` family."""
    return Mamba2(
        heads=size("num_heads", default=128, what="heads")(reading),
        head_dim=size("head_dim", default=64)(reading),
        groups=size("n_groups", default=8, what="heads")(reading),
        state=size("state_size", default=128)(reading),
        conv_width=size("conv_kernel", default=4)(reading),
        conv_bias=flag("use_conv_bias", default=True)(reading),
        bias=flag("use_bias")(reading),
        chunk=size("chunk_size", default=256)(reading),
    )


def _inner(reading: Reading) -> int:
    return int(size("mamba_expand", default=2)(reading)) * int(reading.fields["hidden"])


def _bamba_mixer(
    inner: Rule = _inner, norm: Rule = YES, out_bias: Rule | None = None, groups: int = 1
) -> Make:
    """Return Bamba's mixer, which Falcon-H1 and Granite share."""

    def read(reading: Reading) -> Sublayer:
        """Read the mixer."""
        heads = size("mamba_n_heads", default=128, what="heads")(reading)
        return Mamba2(
            heads=heads,
            head_dim=automatic("mamba_d_head", default=lambda r: max(1, inner(r) // heads))(reading),
            groups=size("mamba_n_groups", default=groups, what="heads")(reading),
            state=size("mamba_d_state", default=256)(reading),
            conv_width=size("mamba_d_conv", default=4)(reading),
            conv_bias=flag("mamba_conv_bias", default=True)(reading),
            bias=flag("mamba_proj_bias")(reading),
            out_bias=None if out_bias is None else out_bias(reading),
            chunk=size("mamba_chunk_size", default=256)(reading),
            norm=norm(reading),
        )

    return read


def _falcon_h1(reading: Reading) -> Sublayer:
    inner = automatic("mamba_d_ssm", default=lambda r: 1024 if _absent(r, "mamba_d_ssm") else _inner(r))
    mixer = _bamba_mixer(inner, flag("mamba_rms_norm"), flag("projectors_bias"))(reading)
    assert mixer is not None
    return Beside((SelfAttention(), mixer))


def _absent(reading: Reading, name: str) -> bool:
    return reading.config.find((name,))[1] is MISSING


# Which layer is what -------------------------------------------------------------------------------------


def every_nth(period: str, offset: str, defaults: tuple[int, int], yes: str, no: str) -> Names:
    """Return names by a period and an offset (Jamba): ``yes`` where the index modulo the period is it."""

    def name_of(reading: Reading, layer: int) -> str:
        """Return the type of one layer."""
        n = size(period, default=defaults[0], what="layers")(reading)
        _, at = reading.config.find((offset,))
        first = defaults[1] if at is MISSING or at is None else at
        first = reading.config.count(offset, first, "layers", minimum=0)
        return yes if layer % n == first else no

    return by_arithmetic(name_of)


def _bamba_name(reading: Reading, layer: int) -> str:
    _, at = reading.config.find(("attn_layer_indices",))
    if at is MISSING or at is None:
        return LINEAR
    if not isinstance(at, list) or not all(isinstance(i, int) for i in at):
        reading.config.refuse("attn_layer_indices", at, "a list of layer numbers from 0")
    return FULL if layer in at else LINEAR


NEMOTRON_LETTERS: Final = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_NEMOTRON_DEFAULT: Final = (LINEAR, "moe", FULL, "mlp")


def _nemotron_names(reading: Reading) -> tuple[str, ...]:
    """Return the listed layer types, the pattern's, or the class's default; they say how many there are."""
    key, value = reading.config.find(("layers_block_type", "layer_types"))
    if isinstance(value, list):
        reading.fields.setdefault("layers", len(value))
        return listed(key, otherwise=constant(()))(reading)
    return letters("hybrid_override_pattern", NEMOTRON_LETTERS)(reading) or _NEMOTRON_DEFAULT


# Feeds ---------------------------------------------------------------------------------------------------


def _nemotron_experts(reading: Reading) -> Sublayer:
    return Experts(
        size("n_routed_experts", "num_local_experts", default=8, what="heads")(reading),
        size("num_experts_per_tok", default=2, what="heads")(reading),
        width=size("moe_intermediate_size", default=7688)(reading),
        shared=size("moe_shared_expert_intermediate_size", default=7688)(reading),
        latent=optional_size("moe_latent_size")(reading),
    )


def _granite_feed(reading: Reading) -> tuple[Sublayer, ...]:
    """Return the shared MLP, with routed experts beside it unless there are none."""
    name, experts = reading.config.find(("num_local_experts", "num_experts"))
    count = 8 if experts is MISSING or experts is None else reading.config.count(name, experts, "heads", 0)
    shared = size("shared_intermediate_size", default=1024)(reading)
    if count == 0:
        return (Mlp(shared),)
    topk = size("num_experts_per_tok", default=2, what="heads")(reading)
    return (Experts(count, topk, width=reading.fields["ffn"], shared=shared),)


_JAMBA_MIXERS: Final = every_nth("attn_layer_period", "attn_layer_offset", (8, 4), FULL, LINEAR)
_JAMBA_FEEDS: Final = every_nth("expert_layer_period", "expert_layer_offset", (2, 1), "moe", "mlp")


def _is_routed(reading: Reading, layer: int) -> bool:
    return _JAMBA_FEEDS(reading)[layer] == "moe"


_HYBRID: Final = {**DROPOUT, **LLAMA_BIAS}

MAMBA_FAMILIES: Final[Mapping[str, Family]] = {
    "mamba": hybrid("MambaBlock", {**pure(32, 50280, True, 768), "mixers": lambda r: (_mamba("")(r),)}),
    "falcon_mamba": hybrid(
        "FalconMambaBlock", {**pure(32, 50280, True, 768), "mixers": lambda r: (_mamba("", "plain")(r),)}
    ),
    "mamba2": hybrid("Mamba2Block", {**pure(64, 32768, False, 4096), "mixers": lambda r: (_mamba2(r),)}),
    "jamba": hybrid(
        "JambaMambaDecoderLayer",
        {
            **sizes(4096, 32, 32, 14336, 65536, 8, length=262144),
            **tied(False),
            **DROPOUT,
            **NOPE,
            "mixers": chosen(_JAMBA_MIXERS, {FULL: attention, LINEAR: _mamba("mamba_", "weighted")}),
            "feeds": experts(number=16, topk=2, width=same_as("ffn"), routed=_is_routed),
        },
    ),
    "nemotron_h": hybrid(
        "NemotronHBlock",
        {
            **sizes(4096, 1, 32, 21504, 131072, 8, length=4096),
            "layers": lambda r: len(_nemotron_names(r)),
            "head_dim": size("head_dim", "attention_head_dim", default=128),
            "tied": NO,  # the class ties nothing, whatever the file says
            **DROPOUT,
            **PLAIN_MLP,
            **NOPE,
            **biases(NO, NO, flag("mlp_bias")),
            "mixers": chosen(
                _nemotron_names,
                {
                    LINEAR: lambda r: Mamba2(
                        heads=size("mamba_num_heads", default=128, what="heads")(r),
                        head_dim=size("mamba_head_dim", default=64)(r),
                        groups=size("mamba_n_groups", "n_groups", default=8, what="heads")(r),
                        state=size("ssm_state_size", default=128)(r),
                        conv_width=size("mamba_d_conv", "conv_kernel", default=4)(r),
                        conv_bias=flag("mamba_conv_bias", "use_conv_bias", default=True)(r),
                        bias=flag("use_bias")(r),
                        chunk=size("mamba_chunk_size", "chunk_size", default=128)(r),
                    ),
                    FULL: attention,
                    "mlp": nothing,
                    "moe": nothing,
                },
            ),
            "feeds": chosen(
                _nemotron_names, {LINEAR: nothing, FULL: nothing, "mlp": mlp, "moe": _nemotron_experts}
            ),
        },
    ),
    "bamba": hybrid(
        "BambaDecoderLayer",
        {
            **sizes(4096, 32, 32, 14336, 128000, 8, length=262144),
            **tied(False),
            **_HYBRID,
            "rotary_share": constant(0.5),
            "mixers": chosen(by_arithmetic(_bamba_name), {FULL: attention, LINEAR: _bamba_mixer()}),
        },
    ),
    "falcon_h1": hybrid(
        "FalconH1DecoderLayer",
        {
            **sizes(4096, 32, 32, 14336, 128000, 8, length=8192),
            **tied(False),
            **_HYBRID,
            "mixers": lambda r: (_falcon_h1(r),),
        },
    ),
    "granitemoehybrid": hybrid(
        "GraniteMoeHybridDecoderLayer",
        {
            **sizes(4096, 32, 32, 11008, 32000, length=2048),
            **tied(False),
            **DROPOUT,
            **biases(flag("attention_bias"), mlp=NO),
            "positions": choose(
                lambda r: r.config.find(("position_embedding_type",))[1] == "rope", "rotary", "none"
            ),
            "mixers": chosen(
                listed("layer_types", "layers_block_type", otherwise=by_arithmetic(lambda r, i: LINEAR)),
                {FULL: attention, LINEAR: _bamba_mixer()},
            ),
            "feeds": _granite_feed,
        },
    ),
}
