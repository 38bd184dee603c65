"""Vision towers by ``model_type``: rules for a :class:`~meshwright.planner.vision.VisionSpec`.

The defaults are those of the configuration classes in transformers 5.24. Towers that stand alone and towers
of vision-language models are read by the same tables.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

from meshwright.planner.importers.config import MISSING, Config
from meshwright.planner.importers.family import NO, YES
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    choose,
    constant,
    dropout,
    flag,
    plus,
    quotient,
    read_fields,
    same_as,
    size,
)
from meshwright.planner.vision import VisionSpec

Pair = tuple[int, int]


def pair(config: Config, names: tuple[str, ...], default: int) -> Pair:
    """Return height and width of a key that holds one number or two."""
    name, value = config.find(names)
    if value is MISSING or value is None:
        return default, default
    if isinstance(value, list | tuple) and len(value) == 2:
        return config.count(name, value[0], "width"), config.count(name, value[1], "width")
    side = config.count(name, value, "width")
    return side, side


def _grid(image: int, patch: int) -> Rule:
    """Return the rule for the patches of an image."""

    def read(reading: Reading) -> int:
        """Read the patches of an image."""
        height, width = pair(reading.config, ("image_size",), image)
        rows, columns = pair(reading.config, ("patch_size",), patch)
        return max(1, (height // rows) * (width // columns))

    return read


def _values(patch: int, frames: int = 1) -> Rule:
    """Return the rule for the values of a patch; ``frames`` is the default of ``temporal_patch_size``."""

    def read(reading: Reading) -> int:
        """Read the values of a patch."""
        channels = size("num_channels", "in_channels", "in_chans", default=3)(reading)
        depth = size("temporal_patch_size", default=frames, what="rows")(reading) if frames > 1 else 1
        return int(channels * depth * prod(pair(reading.config, ("patch_size",), patch)))

    return read


def _tower(
    hidden: int, layers: int, heads: int, ffn: int | None, image: int, patch: int, extra: int = 0
) -> dict[str, Rule]:
    """Return the rules of a tower with learned positions for each token of one image size."""
    return {
        "hidden": size("hidden_size", default=hidden),
        "layers": size("num_hidden_layers", default=layers, what="layers"),
        "heads": size("num_attention_heads", default=heads, what="heads"),
        "head_dim": quotient("hidden", "heads"),
        "ffn": size("intermediate_size", default=ffn),
        "patch_features": _values(patch),
        "patches": _grid(image, patch),
        "extra_tokens": constant(extra),
        "token_weights": constant(extra),
        "position_rows": plus(same_as("patches"), extra),
        "attention_dropout": dropout("attention_dropout", "attention_probs_dropout_prob"),
        "hidden_dropout": dropout("hidden_dropout_prob"),
    }


def _vit(*sizes: int, extra: int = 1) -> dict[str, Rule]:
    hidden, layers, heads, ffn, image, patch = sizes
    bias = flag("qkv_bias", default=True)
    return {
        **_tower(hidden, layers, heads, ffn, image, patch, extra),
        "qkv_biases": lambda reading: (bias(reading),) * 3,
    }


def _swiglu_width(hidden: int, ratio: int) -> int:
    """DINOv2's SwiGLU: two thirds of the MLP's width, rounded up to a multiple of 8."""
    return (int(hidden * ratio * 2 / 3) + 7) // 8 * 8


def _dino_width(reading: Reading) -> int:
    hidden, ratio = int(reading.fields["hidden"]), size("mlp_ratio", default=4)(reading)
    return _swiglu_width(hidden, ratio) if reading.fields["gated"] else hidden * ratio


def _dinov2(patch: int, registers: int | None) -> dict[str, Rule]:
    """Return DINOv2's rules: layer scale, a mask token, registers that have no positions."""
    base = _vit(768, 12, 12, 3072, 224, patch)
    extra: dict[str, Rule] = {}
    if registers is not None:
        count = size("num_register_tokens", default=registers, what="rows")
        extra = {"extra_tokens": plus(count, 1), "token_weights": plus(count, 2)}
    rules: dict[str, Rule] = {
        **base,
        "position_rows": plus(same_as("patches"), 1),
        "token_weights": constant(2),
        "layer_scale": YES,
        **extra,
    }
    return {"gated": flag("use_swiglu_ffn"), **rules, "ffn": _dino_width}


def _registers(reading: Reading) -> int:
    name, value = reading.config.find(("num_register_tokens",))
    return 0 if value is MISSING or value is None else reading.config.count(name, value, "rows", minimum=0)


_DINOV3: Final[dict[str, Rule]] = {
    **_tower(384, 12, 6, 1536, 224, 16),
    "extra_tokens": plus(_registers, 1),
    "token_weights": plus(_registers, 2),
    "position_rows": constant(0),
    "rotary": YES,
    "layer_scale": YES,
    "gated": flag("use_gated_mlp"),
    "qkv_biases": lambda reading: (
        flag("query_bias", default=True)(reading),
        flag("key_bias")(reading),
        flag("value_bias", default=True)(reading),
    ),
    "out_bias": flag("proj_bias", default=True),
    "mlp_bias": flag("mlp_bias", default=True),
}
_CLIP: Final[dict[str, Rule]] = {
    **_tower(768, 12, 12, 3072, 224, 32, extra=1),
    "patch_bias": NO,
    "pre_norm": YES,
}
_SIGLIP: Final = _tower(768, 12, 12, 3072, 224, 16)
_IDEFICS3: Final = _tower(1152, 12, 16, 3072, 224, 32)
_PIXTRAL: Final[dict[str, Rule]] = {
    **_tower(1024, 24, 16, 4096, 1024, 16),
    "patches": constant(None),
    "position_rows": constant(0),
    "patch_bias": NO,
    "pre_norm": YES,
    "final_norm": NO,
    "norm_bias": NO,
    "qkv_biases": constant((False, False, False)),
    "out_bias": NO,
    "mlp_bias": NO,
    "gated": YES,
    "rotary": YES,
}


def _internvl_norm(reading: Reading) -> int | None:
    return 2 * int(reading.fields["hidden"]) if flag("use_qk_norm")(reading) else None


_INTERNVL: Final[dict[str, Rule]] = {
    **_tower(1024, 24, 16, 4096, 448, 14, extra=1),
    "token_weights": choose(flag("use_mask_token"), 2, 1),
    "position_rows": choose(
        flag("use_absolute_position_embeddings", default=True), plus(same_as("patches"), 1), 0
    ),
    "final_norm": NO,
    "qkv_biases": lambda reading: (flag("attention_bias")(reading),) * 3,
    "qk_norm_weights": _internvl_norm,
    "layer_scale": YES,
}


def _qwen(hidden: int, ffn: Rule, patch: int) -> dict[str, Rule]:
    """Return the rules of Qwen's towers: any image size, rotary, a merger instead of a final norm."""
    return {
        "hidden": size("embed_dim", "hidden_size", default=hidden),
        "layers": size("depth", default=32, what="layers"),
        "heads": size("num_heads", default=16, what="heads"),
        "head_dim": quotient("hidden", "heads"),
        "ffn": ffn,
        "patch_features": _values(patch, frames=2),
        "patches": constant(None),
        "patch_bias": NO,
        "final_norm": NO,
        "rotary": YES,
    }


def indexes(name: str, default: tuple[int, ...]) -> Rule:
    """Return the rule for a list of layers."""

    def read(reading: Reading) -> tuple[int, ...]:
        """Read the layers."""
        _, value = reading.config.find((name,))
        if value is MISSING or value is None:
            return default
        if not isinstance(value, list | tuple):
            reading.config.refuse(name, value, "a list of layers")
        return tuple(reading.config.count(name, i, "layers", minimum=0) for i in value)

    return read


def _qwen25_window(reading: Reading) -> int:
    """Patches of a window that is ``window_size`` pixels wide."""
    pixels = size("window_size", default=112)(reading)
    return max(1, int(pixels // pair(reading.config, ("patch_size",), 14)[0])) ** 2


_QWEN2_VL: Final = _qwen(
    1280, lambda reading: int(reading.fields["hidden"]) * size("mlp_ratio", default=4)(reading), 14
)
_QWEN25_VL: Final[dict[str, Rule]] = {
    **_qwen(3584, size("intermediate_size", default=3420), 14),
    "norm_bias": NO,
    "gated": YES,
    "full_layers": indexes("fullatt_block_indexes", (7, 15, 23, 31)),
    "window": _qwen25_window,
}
_QWEN3_VL: Final[dict[str, Rule]] = {
    **_qwen(1152, size("intermediate_size", default=4304), 16),
    "layers": size("depth", default=27, what="layers"),
    "patch_bias": YES,
    "position_rows": size("num_position_embeddings", default=2304, what="rows"),
}
_LLAMA4: Final[dict[str, Rule]] = {
    **_tower(768, 34, 16, 5632, 448, 14, extra=1),
    "patch_bias": NO,
    "pre_norm": YES,
    "rotary": YES,
}


def _tiles(reading: Reading) -> int:
    return int(size("max_num_tiles", default=4, what="rows")(reading))


def _tile_tokens(reading: Reading) -> int:
    """Tokens of one tile: its patches and a class token."""
    return int(_grid(448, 14)(reading)) + 1


def _tile_weights(reading: Reading) -> int:
    """Mllama: a vector a token and a vector a tile (twice) for each aspect ratio and for none; gates."""
    _, ratios = reading.config.find(("supported_aspect_ratios",))
    kinds = 1 + (len(ratios) if isinstance(ratios, list) else 8)
    return int(kinds * _tiles(reading) * reading.fields["hidden"] * (_tile_tokens(reading) + 2) + 3)


_MLLAMA: Final[dict[str, Rule]] = {
    **_tower(1280, 32, 16, 5120, 448, 14, extra=1),
    "layers": lambda reading: (
        size("num_hidden_layers", default=32, what="layers")(reading)
        + size("num_global_layers", default=8, what="layers")(reading)
    ),
    "heads": size("attention_heads", "num_attention_heads", default=16, what="heads"),
    # One sequence is an image: all its tiles with their class tokens.
    "patches": lambda reading: _tiles(reading) * _tile_tokens(reading),
    "extra_tokens": constant(0),
    "position_rows": _tile_tokens,
    "position_weights": _tile_weights,
    "patch_bias": NO,
    "pre_norm": YES,
    "qkv_biases": constant((False, False, False)),
    "out_bias": NO,
    "gated_layers": size("num_global_layers", default=8, what="layers"),
}

TOWERS: Final[Mapping[str, Mapping[str, Rule]]] = {
    "vit": _vit(768, 12, 12, 3072, 224, 16),
    "vit_msn": _vit(768, 12, 12, 3072, 224, 16),
    "ijepa": _vit(768, 12, 12, 3072, 224, 16, extra=0),
    "deit": _vit(768, 12, 12, 3072, 224, 16, extra=2),
    "dinov2": _dinov2(14, None),
    "dinov2_with_registers": _dinov2(16, 4),
    "dinov3_vit": _DINOV3,
    "clip_vision_model": _CLIP,
    "siglip_vision_model": _SIGLIP,
    "idefics3_vision": _IDEFICS3,
    "smolvlm_vision": _IDEFICS3,
    "pixtral": _PIXTRAL,
    "internvl_vision": _INTERNVL,
    "qwen2_vl_vision": _QWEN2_VL,
    "qwen2_5_vl_vision": _QWEN25_VL,
    "qwen3_vl_vision": _QWEN3_VL,
    "qwen3_vl_moe_vision": _QWEN3_VL,
    "llama4_vision_model": _LLAMA4,
    "mllama_vision_model": _MLLAMA,
}
"""Towers by ``model_type``."""


def read_tower(config: Config, model_type: str | None = None) -> VisionSpec:
    """Return the tower that a configuration (of its own, or a ``vision_config``) describes.

    Raises
    ------
    ModelConfigError
        Its ``model_type`` is not known, or a value is not allowed.
    """
    name = config.model_type if model_type is None else model_type
    if name not in TOWERS:
        config.refuse("model_type", name, ", ".join(sorted(TOWERS)))
    return VisionSpec(**read_fields(config, TOWERS[name]))
