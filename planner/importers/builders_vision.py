"""Vision transformers that stand alone: patches, blocks, a classifier's or a bare model's head.

A sequence is one image: its patches and the tokens beside them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Segment, assemble, chain
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.attributes import block_sizes
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_vision import read_tower
from meshwright.planner.importers.reading import architecture, assumptions, head_note, labels
from meshwright.planner.importers.rules import Reading, flag, size
from meshwright.planner.pieces import dense, few_tokens
from meshwright.planner.vision import VisionSpec, pooling_head, tower, vision_norm

Attributes = dict[str, int | float | str | bool | None]
Head = Callable[[Config, VisionSpec], tuple[Operator, ...]]


def attention_pooling(spec: VisionSpec) -> tuple[Operator, ...]:
    """Return SigLIP's head: one learned query attends to all patches, then an MLP of its own.

    Keys and values are made of every token; the rest meets one token an image.
    """
    keys_values = dense("pooling_kv", spec.hidden, 2 * spec.hidden)
    return keys_values, few_tokens("pooling", pooling_head(spec) - keys_values.parameters())


def _pooler(config: Config, spec: VisionSpec) -> tuple[Operator, ...]:
    """ViT's bare model: a dense layer over the class token."""
    h = spec.hidden
    outputs = size("pooler_output_size", default=h)(Reading(config))
    return (few_tokens("pooler", h * outputs + outputs),)


def _bare(config: Config, spec: VisionSpec) -> tuple[Operator, ...]:
    return (Pointwise("pooling", "sequence", spec.hidden, 0),)


def _siglip(config: Config, spec: VisionSpec) -> tuple[Operator, ...]:
    has_head = flag("vision_use_head", default=True)(Reading(config))
    return attention_pooling(spec) if has_head else _bare(config, spec)


def _classifier(width: int = 1, heads: int = 1, before: Head = _bare) -> Head:
    """Return a head of linear classifiers over ``width`` pooled vectors."""

    def build(config: Config, spec: VisionSpec) -> tuple[Operator, ...]:
        """Return the operators of the head."""
        classes = labels(config)
        weights = heads * (width * spec.hidden * classes + classes)
        return *before(config, spec), few_tokens("classifier", weights)

    return build


def _projection(config: Config, spec: VisionSpec) -> tuple[Operator, ...]:
    """CLIP: a linear layer without bias over the class token."""
    width = size("projection_dim", default=512)(Reading(config))
    return (few_tokens("projection", spec.hidden * width),)


PLAIN: Final[Mapping[str, Head]] = {
    "ForImageClassificationWithTeacher": _classifier(heads=2),
    "ForImageClassification": _classifier(),
    "Model": _bare,
}
HEADS: Final[Mapping[str, Mapping[str, Head]]] = {
    "vit": {**PLAIN, "Model": _pooler},
    "deit": {**PLAIN, "Model": _pooler},
    "vit_msn": PLAIN,
    "ijepa": PLAIN,
    "dinov2": {**PLAIN, "ForImageClassification": _classifier(width=2)},
    "dinov2_with_registers": {**PLAIN, "ForImageClassification": _classifier(width=2)},
    "dinov3_vit": PLAIN,
    "clip_vision_model": {**PLAIN, "ModelWithProjection": _projection},
    "siglip_vision_model": {
        "Model": _siglip,
        "ForImageClassification": _classifier(before=_siglip),
    },
    "pixtral": PLAIN,
}
"""Heads by ``model_type`` and the ending of the class's name."""

DEFAULT_HEADS: Final[Mapping[str, str]] = {
    "vit": "ForImageClassification",
    "deit": "ForImageClassification",
}
BLOCK_CLASSES: Final[Mapping[str, str]] = {
    "vit": "ViTLayer",
    "deit": "DeiTLayer",
    "vit_msn": "ViTMSNLayer",
    "ijepa": "IJepaLayer",
    "dinov2": "Dinov2Layer",
    "dinov2_with_registers": "Dinov2WithRegistersLayer",
    "dinov3_vit": "DINOv3ViTLayer",
    "clip_vision_model": "CLIPEncoderLayer",
    "siglip_vision_model": "SiglipEncoderLayer",
    "pixtral": "PixtralAttentionLayer",
}


def vision_model(config: Config, name: str) -> ModelGraph:
    """Return the graph of a vision transformer.

    Raises
    ------
    ModelConfigError
        A value is not allowed, or ``architectures`` names a head that is not known.
    """
    model_type = config.model_type
    spec = read_tower(config)
    heads = HEADS[model_type]
    head = architecture(config, tuple(heads), DEFAULT_HEADS.get(model_type, "Model"))
    final = (vision_norm(spec, "final_norm"),) if spec.final_norm else ()
    operators = (*final, *heads[head](config, spec))
    segments = (
        *tower(spec, "text", "encoder"),
        Segment("head", (LayerKind("head", "head", operators, spec.hidden),)),
    )
    return assemble(
        name,
        segments,
        chain(segments),
        family=model_type,
        hidden_size=spec.hidden,
        vocab_size=0,
        max_sequence_length=spec.tokens,
        block_class=BLOCK_CLASSES[model_type],
        notes=(*head_note(config, head), *assumptions(config, model_type)),
        attributes=block_sizes(spec, gated=spec.gated, positions="rotary" if spec.rotary else "learned"),
    )
