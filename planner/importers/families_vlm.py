"""Vision-language families: which tower, which decoder, and what the projector between them is made of.

A projector works on image tokens as the decoder sees them: ``merge`` patches become one. The defaults are
those of the configuration classes in transformers 5.24. Left out: mixing the features of several tower
layers costs what their concatenation costs (deepstack of Qwen3-VL: its mergers stand with the projector).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class VisionLanguage:
    """One family.

    Attributes
    ----------
    tower, text
        The parts' model types where the file names none.
    projector, merge
        The operators between them; patches for each image token.
    tied
        Whether embedding and head are tied where the file does not say.
    inherits_tie
        Whether the text part's own word counts as well.
    tower_is
        The tower's class whatever its part says (the class is fixed), else None.
    text_is
        The same for the decoder.
    vision_absent, text_absent
        What the class fills in where the part is missing as a whole.
    merges_text
        Whether what stands for an absent text part also stands below the keys of one that is there.
    flat
        Whether old files hold the text part's keys beside the whole model's.
    block_class
        The class of the decoder's blocks where it is not that of the family it is read as.
    """

    tower: str
    text: str
    projector: Projector
    merge: Merge
    tied: bool = False
    inherits_tie: bool = False
    tower_is: str | None = None
    text_is: str | None = None
    vision_absent: Mapping[str, Any] = field(default_factory=dict)
    text_absent: Mapping[str, Any] = field(default_factory=dict)
    merges_text: bool = False
    flat: bool = False
    block_class: str | None = None


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


def _same(b: Between) -> float:
    return 1.0


def _side(*names: str, default: int) -> Merge:
    """Return the patches of a square of so many on each side."""
    return lambda b: float(b.count(*names, default=default) ** 2)


def _vision_side(*names: str, default: int) -> Merge:
    return lambda b: float(b.vision_count(*names, default=default) ** 2)


def _shuffle(name: str, part: str) -> Merge:
    """Return 1 / ratio^2 of a pixel shuffle."""

    def merge(b: Between) -> float:
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


def _llava(newline: bool = False) -> Projector:
    """Return LLaVA's projector: two layers on each patch; ``newline``: a learned vector ends each row."""

    def build(b: Between) -> Operators:
        bias, t = b.flag("multimodal_projector_bias", True), b.text_hidden
        mlp = _mlp("projector", b.vision.hidden * _feature_layers(b), t, t, bias=bias)
        return *_final(b), *mlp, *((few_tokens("newline", t),) if newline else ())

    return build


def _vipllava(b: Between) -> Operators:
    width, t = b.vision.hidden * _feature_layers(b, 5), b.text_hidden
    return *_final(b), norm("projector_norm", width), *_mlp("projector", width, t, t, bias=True)


def _paligemma(b: Between) -> Operators:
    width = b.count("projection_dim", default=2048)
    return *_final(b), dense("projector", b.vision.hidden, width)


def _gemma_merge(b: Between) -> float:
    patches = b.vision.patches or 1
    return patches / b.count("mm_tokens_per_image", default=256)


def _gemma3(b: Between) -> Operators:
    """Pool patches to tokens, normalise, project."""
    h, merge = b.vision.hidden, _gemma_merge(b)
    return (
        *_final(b, merge),
        Pointwise("pooling", "sequence", h * merge, h),
        norm("projector_norm", h, bias=False),
        dense("projector", h, b.text_hidden, bias=False),
    )


def _qwen(*, rms: bool) -> Projector:
    """Return Qwen's merger: the norm of each patch, then an MLP over four together."""

    def build(b: Between) -> Operators:
        side = b.vision_count("spatial_merge_size", default=2)
        width = b.vision.hidden * side**2
        name = "out_hidden_size" if rms else "hidden_size"
        outputs = b.vision_count(name, default=3584)
        merger = vision_norm(b.vision, "merger_norm", merged=side**2)
        return merger, *_mlp("merger", width, width, outputs, bias=True)

    return build


def _qwen3(b: Between) -> Operators:
    side = b.vision_count("spatial_merge_size", default=2)
    width, outputs = b.vision.hidden * side**2, b.vision_count("out_hidden_size", default=3584)
    made = [vision_norm(b.vision, "merger_norm", merged=side**2)]
    made += _mlp("merger", width, width, outputs, bias=True)
    for i in range(len(indexes("deepstack_visual_indexes", (8, 16, 24))(Reading(b.vision_config)))):
        made += [norm(f"deepstack{i}_norm", width), *_mlp(f"deepstack{i}", width, width, outputs, bias=True)]
    return tuple(made)


def _llama4(b: Between) -> Operators:
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


def _internvl(b: Between) -> Operators:
    width, t = int(b.vision.hidden * INTERNVL_MERGE(b)), b.text_hidden
    return norm("projector_norm", width), *_mlp("projector", width, t, t, bias=True)


def _mistral3(b: Between) -> Operators:
    side = b.count("spatial_merge_size", default=2)
    h, t, bias = b.vision.hidden, b.text_hidden, b.flag("multimodal_projector_bias", False)
    return (
        vision_norm(b.vision, "projector_norm", merged=side**2),
        dense("merger", h * side**2, h, bias=False, saves_output=True),
        *_mlp("projector", h * _feature_layers(b), t, t, bias=bias),
    )


def _idefics3(b: Between) -> Operators:
    side = b.count("scale_factor", default=2)
    return *_final(b, side**2), dense("projector", b.vision.hidden * side**2, b.text_hidden, bias=False)


def _aya(b: Between) -> Operators:
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

_CLIP_336: Final = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_SO400M: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "vision_use_head": False,
}
_QWEN_TEXT: Final = "qwen2_vl_text"

VISION_LANGUAGE: Final[Mapping[str, VisionLanguage]] = {
    "llava": VisionLanguage(
        "clip_vision_model", "llama", _llava(), _same, inherits_tie=True, vision_absent=_CLIP_336
    ),
    "llava_next": VisionLanguage(
        "clip_vision_model", "llama", _llava(newline=True), _same, vision_absent=_CLIP_336
    ),
    "llava_onevision": VisionLanguage(
        "siglip_vision_model",
        "qwen2",
        _llava(newline=True),
        _same,
        inherits_tie=True,
        vision_absent=_SO400M,
    ),
    "vipllava": VisionLanguage("clip_vision_model", "llama", _vipllava, _same, vision_absent=_CLIP_336),
    "paligemma": VisionLanguage(
        "siglip_vision_model",
        "gemma",
        _paligemma,
        _same,
        tied=True,
        vision_absent={**_SO400M, "intermediate_size": 4096, "image_size": 224, "num_hidden_layers": 27},
        text_absent={
            "hidden_size": 2048,
            "num_hidden_layers": 18,
            "intermediate_size": 16384,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "vocab_size": 257152,
        },
    ),
    "gemma3": VisionLanguage(
        "siglip_vision_model", "gemma3_text", _gemma3, _gemma_merge, tied=True, text_is="gemma3_text"
    ),
    "qwen2_vl": VisionLanguage(
        "qwen2_vl_vision",
        _QWEN_TEXT,
        _qwen(rms=False),
        _vision_side("spatial_merge_size", default=2),
        inherits_tie=True,
        tower_is="qwen2_vl_vision",
        text_is=_QWEN_TEXT,
        flat=True,
        block_class="Qwen2VLDecoderLayer",
    ),
    "qwen2_5_vl": VisionLanguage(
        "qwen2_5_vl_vision",
        _QWEN_TEXT,
        _qwen(rms=True),
        _vision_side("spatial_merge_size", default=2),
        inherits_tie=True,
        tower_is="qwen2_5_vl_vision",
        text_is=_QWEN_TEXT,
        flat=True,
        block_class="Qwen2_5_VLDecoderLayer",
    ),
    "qwen3_vl": VisionLanguage(
        "qwen3_vl_vision",
        "qwen3_vl_text",
        _qwen3,
        _vision_side("spatial_merge_size", default=2),
        tower_is="qwen3_vl_vision",
        text_is="qwen3_vl_text",
        block_class="Qwen3VLTextDecoderLayer",
    ),
    "qwen3_vl_moe": VisionLanguage(
        "qwen3_vl_moe_vision",
        "qwen3_vl_moe_text",
        _qwen3,
        _vision_side("spatial_merge_size", default=2),
        tower_is="qwen3_vl_moe_vision",
        text_is="qwen3_vl_moe_text",
        block_class="Qwen3VLMoeTextDecoderLayer",
    ),
    "llama4": VisionLanguage(
        "llama4_vision_model",
        "llama4_text",
        _llama4,
        LLAMA4_MERGE,
        tower_is="llama4_vision_model",
        text_is="llama4_text",
    ),
    "internvl": VisionLanguage(
        "internvl_vision", "qwen2", _internvl, INTERNVL_MERGE, tied=True, tower_is="internvl_vision"
    ),
    "mistral3": VisionLanguage(
        "pixtral",
        "mistral",
        _mistral3,
        _side("spatial_merge_size", default=2),
        tied=True,
        vision_absent={"intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14},
        text_absent={
            "head_dim": 128,
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "max_position_embeddings": 131072,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": None,
            "vocab_size": 131072,
        },
    ),
    "idefics3": VisionLanguage(
        "idefics3_vision", "llama", _idefics3, _side("scale_factor", default=2), tower_is="idefics3_vision"
    ),
    "smolvlm": VisionLanguage(
        "smolvlm_vision", "llama", _idefics3, _side("scale_factor", default=2), tower_is="smolvlm_vision"
    ),
    "aya_vision": VisionLanguage(
        "siglip_vision_model",
        "cohere2",
        _aya,
        _side("downsample_factor", default=2),
        tied=True,
        vision_absent=_SO400M,
    ),
}
"""Vision-language models by ``model_type``."""

TEXT_PARTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "mllama_text_model": (
        "llama",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
    ),
    _QWEN_TEXT: (
        "qwen2",
        {
            "vocab_size": 152064,
            "hidden_size": 8192,
            "intermediate_size": 29568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "max_window_layers": 80,
        },
    ),
    "qwen3_vl_text": (
        "qwen3",
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 128000,
        },
    ),
    "qwen3_vl_moe_text": (
        "qwen3_moe",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 128000,
        },
    ),
}
"""Decoders that are a known family with sizes of their own: what family, and their classes' defaults."""
