"""FLOPs of models of several streams against torch's own counter.

Attention is counted in full on both sides: torch computes the scores that a causal mask or a window hides.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch counts the FLOPs")
transformers = pytest.importorskip("transformers", reason="compares with the framework's own classes")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402  # after the skip

from meshwright.costmodels.attention import Attention  # noqa: E402
from meshwright.planner.graph import ModelGraph  # noqa: E402
from meshwright.planner.importers.config import Config  # noqa: E402
from meshwright.planner.importers.hf import model_from_config  # noqa: E402
from meshwright.planner.job import Job  # noqa: E402
from meshwright.planner.lengths import sample_shape  # noqa: E402

SIZES = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4}
WORDS = {**SIZES, "vocab_size": 200}
TEXT = {**WORDS, "vocab_size": 400, "num_key_value_heads": 2}
HEADS_OF_16 = {**TEXT, "head_dim": 16}
TOWER = {**SIZES, "image_size": 140, "patch_size": 14}
"""100 patches of 14 x 14."""
ROTARY = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = 399
SIGLIP = {**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
STACKS = {
    "d_model": 64,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 100,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "vocab_size": 200,
}
T5 = {"d_model": 64, "d_kv": 8, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}


def words(tokens: int) -> Any:
    return torch.randint(5, 100, (1, tokens))


def picture(*shape: int) -> Any:
    return torch.randn(*(shape or (1, 3, 140, 140)))


def joined(image_tokens: int, text: int = 16) -> Any:
    """Return a text with the image's tokens behind it."""
    return torch.cat([words(text), torch.full((1, image_tokens), IMAGE)], 1)


def kinds_of(image_tokens: int, text: int = 16) -> Any:
    return torch.tensor([[0] * text + [1] * image_tokens])


def seen_by_qwen(*, patch: int) -> dict[str, Any]:
    """Return a text with 16 tokens of an image of 8 x 8 patches, two frames each."""
    return {
        "input_ids": joined(16),
        "pixel_values": torch.randn(64, 3 * 2 * patch * patch),
        "image_grid_thw": torch.tensor([[1, 8, 8]]),
        "mm_token_type_ids": kinds_of(16),
    }


def flops(graph: ModelGraph, job: Job) -> float:
    """Return the FLOPs of one sample's forward pass, every score counted."""
    total = 0.0
    for k in graph.layer_kinds:
        shape = sample_shape(graph, job, graph.kinds[k])
        for op in graph.kinds[k].operators:
            full = replace(op, causal=False, window=None) if isinstance(op, Attention) else op
            total += sum(float(work.flops) for work in full.forward(shape))
    return total


def seen(name: str, config: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return what torch counts, and the file that the framework would write."""
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**json.loads(json.dumps(config)))).eval()
    model.set_attn_implementation("eager")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(**inputs)
    written = json.loads(model.config.to_json_string(use_diff=False))
    return counter.get_total_flops(), {**written, "architectures": [name]}


def job(text: int, target: int | None = None, image: int | None = None) -> Job:
    return Job(sequence_length=text, global_batch_size=1, target_length=target, image_tokens=image)


ENCODERS: dict[str, tuple[dict[str, Any], Any, Job]] = {
    "BertForPreTraining": (WORDS, lambda: {"input_ids": words(64)}, job(64)),
    "RobertaForMaskedLM": (WORDS, lambda: {"input_ids": words(64)}, job(64)),
    "ElectraForMaskedLM": ({**WORDS, "embedding_size": 32}, lambda: {"input_ids": words(64)}, job(64)),
    "ModernBertForMaskedLM": (
        {**WORDS, **SPECIAL, "cls_token_id": 1, "sep_token_id": 2},
        lambda: {"input_ids": words(64)},
        job(64),
    ),
    "ViTForImageClassification": (TOWER, lambda: {"pixel_values": picture()}, job(101)),
    "Dinov2Model": ({**TOWER, "use_swiglu_ffn": True}, lambda: {"pixel_values": picture()}, job(101)),
    "CLIPModel": (
        {"text_config": {**WORDS, "eos_token_id": 3}, "vision_config": TOWER, "projection_dim": 32},
        lambda: {"input_ids": words(70), "pixel_values": picture()},
        job(70, image=100),
    ),
    "SiglipModel": (
        {"text_config": WORDS, "vision_config": TOWER},
        lambda: {"input_ids": words(64), "pixel_values": picture()},
        job(64, image=100),
    ),
}
ENCODER_DECODERS: dict[str, tuple[dict[str, Any], Any, Job]] = {
    "T5ForConditionalGeneration": (
        {**T5, "vocab_size": 200, "feed_forward_proj": "gated-gelu"},
        lambda: {"input_ids": words(64), "decoder_input_ids": words(24)},
        job(64, target=24),
    ),
    "BartForConditionalGeneration": (
        STACKS,
        lambda: {"input_ids": words(64), "decoder_input_ids": words(24)},
        job(64, target=24),
    ),
    "WhisperForConditionalGeneration": (
        {
            **STACKS,
            **SPECIAL,
            "max_source_positions": 50,
            "decoder_start_token_id": 1,
            "suppress_tokens": [],
            "begin_suppress_tokens": [],
        },
        lambda: {"input_features": torch.randn(1, 80, 100), "decoder_input_ids": words(24)},
        job(50, target=24),
    ),
}
QWEN = {"image_token_id": IMAGE, "vision_start_token_id": 398}
VISION_LANGUAGE: dict[str, tuple[dict[str, Any], Any, Job]] = {
    "LlavaForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "llama"},
            "vision_config": {**TOWER, "model_type": "clip_vision_model"},
            "image_token_index": IMAGE,
        },
        lambda: {"input_ids": joined(100), "pixel_values": picture()},
        job(16, image=100),
    ),
    "Gemma3ForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "gemma3_text"},
            "vision_config": SIGLIP,
            "image_token_index": IMAGE,
            "mm_tokens_per_image": 25,
        },
        lambda: {"input_ids": joined(25), "pixel_values": picture(), "token_type_ids": kinds_of(25)},
        job(16, image=25),
    ),
    "PaliGemmaForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "gemma"},
            "vision_config": SIGLIP,
            "image_token_index": IMAGE,
            "projection_dim": 64,
        },
        lambda: {"input_ids": joined(100), "pixel_values": picture()},
        job(16, image=100),
    ),
    "InternVLForConditionalGeneration": (
        {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": {**TOWER, "image_size": [140, 140]},
            "image_token_id": IMAGE,
        },
        lambda: {"input_ids": joined(25), "pixel_values": picture()},
        job(16, image=25),
    ),
    "Mistral3ForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "mistral"},
            "vision_config": {**TOWER, "model_type": "pixtral"},
            "image_token_index": IMAGE,
        },
        lambda: {
            "input_ids": joined(25),
            "pixel_values": picture(),
            "image_sizes": torch.tensor([[140, 140]]),
        },
        job(16, image=25),
    ),
    "Idefics3ForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "llama", "pad_token_id": 0},
            "vision_config": TOWER,
            "image_token_id": IMAGE,
        },
        lambda: {"input_ids": joined(25), "pixel_values": picture(1, 1, 3, 140, 140)},
        job(16, image=25),
    ),
    "Qwen2VLForConditionalGeneration": (
        {
            **QWEN,
            "text_config": {**TEXT, **ROTARY},
            "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
        },
        lambda: seen_by_qwen(patch=14),
        job(16, image=16),
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        {
            **QWEN,
            "text_config": {**TEXT, **ROTARY},
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "out_hidden_size": 64,
                "intermediate_size": 100,
                "num_heads": 4,
                "fullatt_block_indexes": [1],
                "window_size": 56,
            },
        },
        lambda: seen_by_qwen(patch=14),
        job(16, image=16),
    ),
    "Qwen3VLForConditionalGeneration": (
        {
            **QWEN,
            "text_config": {**HEADS_OF_16, **ROTARY},
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "out_hidden_size": 64,
                "intermediate_size": 100,
                "num_heads": 4,
                "deepstack_visual_indexes": [0],
                "num_position_embeddings": 64,
            },
        },
        lambda: seen_by_qwen(patch=16),
        job(16, image=16),
    ),
    "MllamaForConditionalGeneration": (
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "cross_attention_layers": [1, 3],
                "pad_token_id": 0,
            },
            "vision_config": {
                **TOWER,
                "num_global_layers": 1,
                "attention_heads": 4,
                "vision_output_dim": 128,
                "intermediate_layers_indices": [0],
            },
            "image_token_index": 400,
        },
        lambda: {
            "input_ids": words(32),
            "pixel_values": picture(1, 1, 4, 3, 140, 140),
            "aspect_ratio_ids": torch.tensor([[1]]),
            "aspect_ratio_mask": torch.ones(1, 1, 4, dtype=torch.long),
            "cross_attention_mask": torch.ones(1, 32, 1, 4),
        },
        job(32, image=404),
    ),
}
CLIP_OF_SOUND = {"max_source_positions": 48, "num_mel_bins": 80}
AUDIO_LANGUAGE: dict[str, tuple[dict[str, Any], Any, Job]] = {
    "Qwen2AudioForConditionalGeneration": (
        {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "audio_config": {
                **CLIP_OF_SOUND,
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
            },
            "audio_token_index": IMAGE,
        },
        lambda: {
            "input_ids": joined(24),
            "attention_mask": torch.ones(1, 40, dtype=torch.long),
            "input_features": torch.randn(1, 80, 96),
            "feature_attention_mask": torch.ones(1, 96, dtype=torch.long),
        },
        job(16, image=24),
    ),
    "VoxtralForConditionalGeneration": (
        {
            "text_config": {**HEADS_OF_16, "model_type": "llama"},
            "audio_config": {**SIZES, **CLIP_OF_SOUND, "intermediate_size": 256},
            "audio_token_id": IMAGE,
        },
        lambda: {"input_ids": joined(12), "input_features": torch.randn(1, 80, 96)},
        job(16, image=12),
    ),
}
CASES = {**ENCODERS, **ENCODER_DECODERS, **VISION_LANGUAGE, **AUDIO_LANGUAGE}


@pytest.mark.parametrize("name", CASES)
def test_forward_pass_costs_what_torch_counts(name: str) -> None:
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    config, inputs, lengths = CASES[name]
    counted, written = seen(name, config, inputs())
    graph = model_from_config(Config("test", written), "test")
    assert flops(graph, lengths) == pytest.approx(counted, rel=0.01)
