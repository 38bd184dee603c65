"""Vision-language families: which tower, which decoder, and which projector stands between them.

The defaults are those of the configuration classes in transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meshwright.planner.importers.projectors import (
    INTERNVL_MERGE,
    LLAMA4_MERGE,
    Merge,
    Projector,
    aya,
    gemma3,
    gemma_merge,
    idefics3,
    internvl,
    llama4,
    llava,
    mistral3,
    paligemma,
    qwen,
    qwen3,
    same,
    side,
    vipllava,
    vision_side,
)


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
        "clip_vision_model", "llama", llava(), same, inherits_tie=True, vision_absent=_CLIP_336
    ),
    "llava_next": VisionLanguage(
        "clip_vision_model", "llama", llava(newline=True), same, vision_absent=_CLIP_336
    ),
    "llava_onevision": VisionLanguage(
        "siglip_vision_model",
        "qwen2",
        llava(newline=True),
        same,
        inherits_tie=True,
        vision_absent=_SO400M,
    ),
    "vipllava": VisionLanguage("clip_vision_model", "llama", vipllava, same, vision_absent=_CLIP_336),
    "paligemma": VisionLanguage(
        "siglip_vision_model",
        "gemma",
        paligemma,
        same,
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
        "siglip_vision_model", "gemma3_text", gemma3, gemma_merge, tied=True, text_is="gemma3_text"
    ),
    "qwen2_vl": VisionLanguage(
        "qwen2_vl_vision",
        _QWEN_TEXT,
        qwen(rms=False),
        vision_side("spatial_merge_size", default=2),
        inherits_tie=True,
        tower_is="qwen2_vl_vision",
        text_is=_QWEN_TEXT,
        flat=True,
        block_class="Qwen2VLDecoderLayer",
    ),
    "qwen2_5_vl": VisionLanguage(
        "qwen2_5_vl_vision",
        _QWEN_TEXT,
        qwen(rms=True),
        vision_side("spatial_merge_size", default=2),
        inherits_tie=True,
        tower_is="qwen2_5_vl_vision",
        text_is=_QWEN_TEXT,
        flat=True,
        block_class="Qwen2_5_VLDecoderLayer",
    ),
    "qwen3_vl": VisionLanguage(
        "qwen3_vl_vision",
        "qwen3_vl_text",
        qwen3,
        vision_side("spatial_merge_size", default=2),
        tower_is="qwen3_vl_vision",
        text_is="qwen3_vl_text",
        block_class="Qwen3VLTextDecoderLayer",
    ),
    "qwen3_vl_moe": VisionLanguage(
        "qwen3_vl_moe_vision",
        "qwen3_vl_moe_text",
        qwen3,
        vision_side("spatial_merge_size", default=2),
        tower_is="qwen3_vl_moe_vision",
        text_is="qwen3_vl_moe_text",
        block_class="Qwen3VLMoeTextDecoderLayer",
    ),
    "llama4": VisionLanguage(
        "llama4_vision_model",
        "llama4_text",
        llama4,
        LLAMA4_MERGE,
        tower_is="llama4_vision_model",
        text_is="llama4_text",
    ),
    "internvl": VisionLanguage(
        "internvl_vision", "qwen2", internvl, INTERNVL_MERGE, tied=True, tower_is="internvl_vision"
    ),
    "mistral3": VisionLanguage(
        "pixtral",
        "mistral",
        mistral3,
        side("spatial_merge_size", default=2),
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
        "idefics3_vision", "llama", idefics3, side("scale_factor", default=2), tower_is="idefics3_vision"
    ),
    "smolvlm": VisionLanguage(
        "smolvlm_vision", "llama", idefics3, side("scale_factor", default=2), tower_is="smolvlm_vision"
    ),
    "aya_vision": VisionLanguage(
        "siglip_vision_model",
        "cohere2",
        aya,
        side("downsample_factor", default=2),
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
