"""Projectors of vision-language models: what stands between a tower and a decoder.

A projector works on image tokens as the decoder sees them: ``merge`` patches become one. Left out: mixing
the features of several tower layers costs what their concatenation costs (deepstack of Qwen3-VL: its mergers
stand with the projector).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.planner.importers.config import MISSING, Config
from meshwright.planner.importers.families_vision import indexes
from meshwright.planner.importers.rules import Reading, flag, size
from meshwright.planner.pieces import activation, dense, few_tokens, norm
from meshwright.planner.vision import VisionSpec, pooling_head, vision_norm

Operators = tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """What a projector is built from: both files' parts, the tower and the decoder's width."""

    config: Config
    vision_config: Config
    vision: VisionSpec
    text_hidden: int

    def count(self, *names: str, default: int) -> int:
        """Return a size of the whole model's file."""
        return int(size(*names, default=default)(Reading(self.config)))

    def vision_count(self, *names: str, default: int) -> int:
        """Return a size of the tower's part."""
        return int(size(*names, default=default)(Reading(self.vision_config)))

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch of the whole model's file."""
        return bool(flag(name, default=default)(Reading(self.config)))


Projector = Callable[[Between], Operators]
Merge = Callable[[Between], float]


def _mlp(name: str, inputs: int, inner: int, outputs: int, *, bias: bool) -> Operators:
    return (
        dense(f"{name}_in", inputs, inner, bias=bias, saves_output=True),
        activation(f"{name}_activation", inner),
        dense(f"{name}_out", inner, outputs, bias=bias),
    )


def _unused(b: Between) -> Operators:
    """Return weights that the class holds and the projector's path does not use: norm and pooling head."""
    pooled = b.vision_config.values.get("model_type") == "siglip_vision_model"
    has_head = pooled and flag("vision_use_head", default=True)(Reading(b.vision_config))
    return (few_tokens("pooling_head", pooling_head(b.vision)),) if has_head else ()


def _feature_layers(b: Between, default: int = 1) -> int:
    """Return how many tower layers' features are concatenated."""
    _, value = b.config.find(("vision_feature_layer",))
    if value is MISSING or value is None:
        return default
    return len(value) if isinstance(value, list | tuple) else 1


def same(b: Between) -> float:
    """Return one patch for one image token."""
    return 1.0


def side(*names: str, default: int) -> Merge:
    """Return the patches of a square of so many on each side."""
    return lambda b: float(b.count(*names, default=default) ** 2)


def vision_side(*names: str, default: int) -> Merge:
    """Return the patches of a square whose side the tower's part tells."""
    return lambda b: float(b.vision_count(*names, default=default) ** 2)


def _shuffle(name: str, part: str) -> Merge:
    """Return 1 / ratio^2 of a pixel shuffle."""

    def merge(b: Between) -> float:
        """Return the patches that become one token."""
        source = b.config if part == "whole" else b.vision_config
        _, value = source.find((name,))
        ratio = 0.5 if value is MISSING or value is None else value
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            source.refuse(name, ratio, "a number above 0 and up to 1")
        return float(int(1 / ratio) ** 2)

    return merge


def _final(b: Between, merged: float = 1) -> Operators:
    """Return the tower's own norm and its unused head."""
    own = (vision_norm(b.vision, "tower_norm", merged=int(merged)),) if b.vision.final_norm else ()
    return *own, *_unused(b)


def llava(newline: bool = False) -> Projector:
    """Return LLaVA's projector: two layers on each patch; ``newline``: a learned vector ends each row."""

    def build(b: Between) -> Operators:
        """Return the operators of the projector."""
        bias, t = b.flag("multimodal_projector_bias", True), b.text_hidden
        mlp = _mlp("projector", b.vision.hidden * _feature_layers(b), t, t, bias=bias)
        return *_final(b), *mlp, *((few_tokens("newline", t),) if newline else ())

    return build


def vipllava(b: Between) -> Operators:
    """Normalise five tower layers' features, then an MLP."""
    width, t = b.vision.hidden * _feature_layers(b, 5), b.text_hidden
    return *_final(b), norm("projector_norm", width), *_mlp("projector", width, t, t, bias=True)


def paligemma(b: Between) -> Operators:
    """Project each patch."""
    width = b.count("projection_dim", default=2048)
    return *_final(b), dense("projector", b.vision.hidden, width)


def gemma_merge(b: Between) -> float:
    """Return the patches that are pooled to one token."""
    patches = b.vision.patches or 1
    return patches / b.count("mm_tokens_per_image", default=256)


def gemma3(b: Between) -> Operators:
    """Pool patches to tokens, normalise, project."""
    h, merge = b.vision.hidden, gemma_merge(b)
    return (
        *_final(b, merge),
        Pointwise("pooling", "sequence", h * merge, h),
        norm("projector_norm", h, bias=False),
        dense("projector", h, b.text_hidden, bias=False),
    )


def qwen(*, rms: bool) -> Projector:
    """Return Qwen's merger: the norm of each patch, then an MLP over four together."""

    def build(b: Between) -> Operators:
        """Return the operators of the merger."""
        side = b.vision_count("spatial_merge_size", default=2)
        width = b.vision.hidden * side**2
        name = "out_hidden_size" if rms else "hidden_size"
        outputs = b.vision_count(name, default=3584)
        merger = vision_norm(b.vision, "merger_norm", merged=side**2)
        return merger, *_mlp("merger", width, width, outputs, bias=True)

    return build


def qwen3(b: Between) -> Operators:
    """Return Qwen3's merger and those of the deepstack layers."""
    side = b.vision_count("spatial_merge_size", default=2)
    width, outputs = b.vision.hidden * side**2, b.vision_count("out_hidden_size", default=3584)
    made = [vision_norm(b.vision, "merger_norm", merged=side**2)]
    made += _mlp("merger", width, width, outputs, bias=True)
    for i in range(len(indexes("deepstack_visual_indexes", (8, 16, 24))(Reading(b.vision_config)))):
        made += [norm(f"deepstack{i}_norm", width), *_mlp(f"deepstack{i}", width, width, outputs, bias=True)]
    return tuple(made)


def llama4(b: Between) -> Operators:
    """Pixel shuffle, an MLP without biases, then the projection to the decoder."""
    merge = LLAMA4_MERGE(b)
    inner = b.vision_count("projector_input_dim", default=4096)
    outer = b.vision_count("projector_output_dim", default=4096)
    features = b.vision_count("vision_output_dim", default=7680)
    return (
        *_final(b, merge),
        dense("adapter_in", b.vision.ffn, inner, bias=False, saves_output=True),
        activation("adapter_activation", inner),
        dense("adapter_out", outer, outer, bias=False, saves_output=True),
        activation("adapter_out_activation", outer),
        dense("projector", features, b.text_hidden, bias=False),
    )


def internvl(b: Between) -> Operators:
    """Normalise shuffled patches, then an MLP."""
    width, t = int(b.vision.hidden * INTERNVL_MERGE(b)), b.text_hidden
    return norm("projector_norm", width), *_mlp("projector", width, t, t, bias=True)


def mistral3(b: Between) -> Operators:
    """Merge a square of patches, then an MLP."""
    side = b.count("spatial_merge_size", default=2)
    h, t, bias = b.vision.hidden, b.text_hidden, b.flag("multimodal_projector_bias", False)
    return (
        vision_norm(b.vision, "projector_norm", merged=side**2),
        dense("merger", h * side**2, h, bias=False, saves_output=True),
        *_mlp("projector", h * _feature_layers(b), t, t, bias=bias),
    )


def idefics3(b: Between) -> Operators:
    """Project a square of patches."""
    side = b.count("scale_factor", default=2)
    return *_final(b, side**2), dense("projector", b.vision.hidden * side**2, b.text_hidden, bias=False)


def aya(b: Between) -> Operators:
    """SwiGLU over a pixel-shuffled patch."""
    side = b.count("downsample_factor", default=2)
    width = b.vision.hidden * side**2
    inner = b.count("alignment_intermediate_size", default=b.text_hidden)
    return (
        *_final(b, side**2),
        norm("projector_norm", width),
        dense("projector_in", width, inner, saves_output=True),
        Pointwise("projector_activation", "sequence", inner, inner // 2, inner // 2, light=True),
        dense("projector_out", inner // 2, b.text_hidden),
    )


LLAMA4_MERGE: Final = _shuffle("pixel_shuffle_ratio", "vision")
INTERNVL_MERGE: Final = _shuffle("downsample_ratio", "whole")
