"""Families with multi-head latent attention, dense or with experts; sparse and compressed attention."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers.compression import compressed
from meshwright.planner.importers.families_moe import grouped
from meshwright.planner.importers.family import (
    ATTENTION_BIAS,
    DROPOUT,
    LLAMA,
    LLAMA_BIAS,
    Family,
    mtp_layers,
    sizes,
    tied,
)
from meshwright.planner.importers.mixing import head_dim, indexer, latent
from meshwright.planner.importers.routing import EXPERT_WIDTH, experts, shared_experts
from meshwright.planner.importers.rules import Rule, constant, floor, same_as, size
from meshwright.planner.importers.unsupported import HYBRID


def heads(nope: int, rope: int) -> dict[str, Rule]:
    """Return the rules for heads of latent attention: each has its own key and value."""
    return {"kv_heads": same_as("heads"), "head_dim": head_dim(nope, rope)}


def _deepseek_v3(index: Rule | None = None, length: int = 4096) -> dict[str, Rule]:
    return {
        **LLAMA,
        **ATTENTION_BIAS,
        **sizes(7168, 61, 128, 18432, 129280, 128, length=length),
        **heads(128, 64),
        "mixers": latent(512, 128, 64, 128, 1536, index),
        "feeds": grouped(8, 4, first=3, shared=1, number=256, topk=8, width=2048),
        **mtp_layers(),
    }


LATENT_FAMILIES: Final[Mapping[str, Family]] = {
    "deepseek_v2": Family(
        "DeepseekV2DecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **sizes(4096, 32, 32, 11008, 102400, length=2048),
            **heads(128, 64),
            "mixers": latent(512, 128, 64, 128, 1536),
            "feeds": grouped(1, 1, first=0, shared=2, number=64, width=1407),
        },
    ),
    "deepseek_v3": Family("DeepseekV3DecoderLayer", _deepseek_v3()),
    "deepseek_v32": Family(
        "DeepseekV32DecoderLayer", _deepseek_v3(indexer(64, 128, 2048), 163840), reads=(HYBRID,)
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(6144, 78, 64, 12288, 154880, 64, length=202752),
            **heads(192, 64),
            "mixers": latent(512, 192, 64, 256, 2048, indexer(32, 128, 2048)),
            "feeds": grouped(1, 1, first=3, shared=1, number=256, topk=8, width=2048),
            **mtp_layers(),
        },
        reads=(HYBRID,),
    ),
    "minicpm3": Family(
        "MiniCPM3DecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **sizes(2560, 62, 40, 6400, 73448, 40, length=32768),
            **tied(True),
            **heads(64, 32),
            "mixers": latent(256, 64, 32, floor("hidden", "heads"), 768),
        },
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2048, 47, 20, 10240, 154880, 20, length=202752),
            **heads(192, 64),
            "mixers": latent(512, 192, 64, 256, 768),
            "feeds": grouped(1, 1, first=1, shared=1, number=64, topk=4, width=1536),
            **mtp_layers(),
        },
    ),
    "mistral4": Family(
        "Mistral4DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 36, 32, 12288, 131072, 32, length=1_048_576),
            **heads(64, 64),
            "mixers": latent(256, 64, 64, 128, 1024),
            "feeds": grouped(1, 1, first=0, shared=1, number=128, topk=4, width=2048),
        },
    ),
    "axk1": Family(
        "AXK1DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(7168, 61, 64, 18432, 163840, 64, length=32768),
            **heads(128, 64),
            "mixers": latent(512, 128, 64, 128, 1536),
            "feeds": grouped(8, 4, first=1, shared=1, norm=True, number=192, topk=8, width=2048),
            **mtp_layers(),
        },
    ),
    "sarvam_mla": Family(
        "DeepseekV3DecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 32, 64, 16384, 262144, length=4096),
            **heads(128, 64),
            "mixers": latent(512, 128, 64, 128),
            "feeds": grouped(1, 1, first=1, shared=1, number=128, topk=8, width=2048),
            **mtp_layers(),
        },
    ),
    "youtu": Family(
        "YoutuDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2048, 32, 16, 6144, 128256, 16, length=131072),
            **tied(True),
            **heads(128, 64),
            "mixers": latent(512, 128, 64, 128, 1536),
        },
    ),
    "deepseek_v4": Family(
        "DeepseekV4DecoderLayer",
        {
            **sizes(4096, 43, 64, None, 129280, 1, 512, 1_048_576),
            "ffn": size(*EXPERT_WIDTH, default=2048),
            **tied(False),
            **DROPOUT,
            "mixers": compressed,
            "gate": constant("clamped"),
            "residual_streams": size("hc_mult", default=4),
            "feeds": experts(
                number=256, topk=6, default_width=2048, shared=shared_experts(1, same_as("ffn"))
            ),
            **mtp_layers(),
        },
        reads=(HYBRID,),
    ),
}
