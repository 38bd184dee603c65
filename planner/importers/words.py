"""What a ``config.json`` says of a model that no price depends on, but that its training needs.

Rates of rotation, small numbers of norms, names of activation functions, how a router scores: launch files
hand them on. A key that is absent, null or of another kind is left out, and whoever needs it says so.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from meshwright.planner.importers.config import MISSING, Config
from meshwright.planner.importers.names import ACTIVATION_KEYS

_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "norm_epsilon": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "rotary_base": ("rope_theta", "rope_parameters.rope_theta", "rotary_emb_base", "rotary_base"),
    "init_std": ("initializer_range",),
    "router_scale": ("routed_scaling_factor",),
    "router_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
}
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "activation": ACTIVATION_KEYS,
    "router_score": ("scoring_func",),
    "router_choice": ("topk_method",),
}
_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {"router_normalised": ("norm_topk_prob",)}
LARGEST: Final = float(np.finfo(np.float32).max)
"""Of a number in a file: what the framework's own fp32 arithmetic on positions can hold."""
_SCALING: Final[tuple[tuple[str, str], ...]] = (
    ("factor", "rope_factor"),
    ("original_max_position_embeddings", "rope_original_length"),
    ("low_freq_factor", "rope_low_frequency"),
    ("high_freq_factor", "rope_high_frequency"),
    ("beta_fast", "rope_beta_fast"),
    ("beta_slow", "rope_beta_slow"),
    ("mscale", "rope_mscale"),
    ("mscale_all_dim", "rope_mscale_all"),
)
_MULTIPLIERS: Final = (
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "logit_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "scale_emb",
)

Word = float | str | bool


def words(config: Config) -> dict[str, Word]:
    """Return the words of a file by our names for them."""
    found: dict[str, Word] = {}
    for kind, table in ((float, _NUMBERS), (str, _TEXTS), (bool, _SWITCHES)):
        for name, keys in table.items():
            value = config.find(keys)[1]
            if _is(kind, value):
                found[name] = value
    scaled = [key for key in _MULTIPLIERS if _is(float, value := config.find((key,))[1]) and value != 1]
    return found | _rope(config) | ({"multipliers": ", ".join(scaled)} if scaled else {})


def _rope(config: Config) -> dict[str, Word]:
    """Return how rotary positions are stretched; nothing where they are not."""
    blocks = (config.find((key,))[1] for key in ("rope_scaling", "rope_parameters"))
    given: Mapping[str, Any] = next((block for block in blocks if _is(Mapping, block)), {})
    kind = given.get("rope_type", given.get("type"))
    if not isinstance(kind, str) or kind == "default":
        return {}
    return {"rope_scaling": kind} | {
        name: value for key, name in _SCALING if _is(float, value := given.get(key, MISSING))
    }


def _is(kind: type, value: Any) -> bool:
    """Return whether a value is of a kind; a whole number is a number, a switch is none."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, kind)
