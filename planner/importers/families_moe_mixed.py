"""Further families with a mixture of experts: with windows, gates, sinks or heads that differ by layer, and
those that exist only as code beside a model (DeepSeek-MoE, Ling).
"""

from collections.abc import Mapping
from typing import Any, Final

from meshwright.planner.importers import windows
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.families_moe import grouped
from meshwright.planner.importers.family import (
    ATTENTION_BIAS,
    DROPOUT,
    FOUR_NORMS,
    LLAMA,
    LLAMA_BIAS,
    NO,
    ONE_NORM,
    YES,
    Family,
    biases,
    mtp_layers,
    rotary,
    sizes,
    tied,
)
from meshwright.planner.importers.mixing import attention, sliding_only, sliding_or_alone
from meshwright.planner.importers.routing import (
    EXPERT_WIDTH,
    SHARED_WIDTH,
    experts,
    routed_layers,
    shared_experts,
)
from meshwright.planner.importers.rules import (
    Reading,
    Rule,
    amount,
    choose,
    constant,
    flag,
    same_as,
    size,
)


def _mimo(reading: Reading, layer: int, window: int | None) -> dict[str, Any]:
    """MiMo-V2: layers with a window have sinks and twice the key/value heads."""
    kv_heads = reading.fields["kv_heads"]
    return {"sinks": window is not None, "kv_heads": 2 * kv_heads if window else kv_heads}


def _laguna(reading: Reading, layer: int, window: int | None) -> dict[str, Any]:
    """Laguna: a gate for each head or each feature, and a number of heads for each layer."""
    name, gating = reading.config.find(("gating",))
    if gating is not MISSING and gating not in (True, "per-head", "per-element", "per-feature"):
        reading.config.refuse(name, gating, "true, per-head or per-element")
    key, each = reading.config.find(("num_attention_heads_per_layer",))
    gate = "head" if gating in (MISSING, True, "per-head") else "feature"
    if each is MISSING or each is None:
        return {"gate": gate}
    if not isinstance(each, list) or len(each) <= layer:
        reading.config.refuse(key, each, "one number of heads for each layer")
    return {"gate": gate, "heads": reading.config.count(key, each[layer], "heads")}


def _bailing(qk_norm: Rule) -> dict[str, Rule]:
    """Ling and Ring (modeling_bailing_moe.py, modeling_bailing_moe_v2.py); their files name all sizes."""
    return {
        **LLAMA,
        **sizes(None, None, None, None, None),
        **biases(flag("use_qkv_bias"), flag("use_bias"), flag("use_bias")),
        "qk_norm": choose(qk_norm, "head", None),
        "feeds": grouped(1, 1, first=0, shared=0),
        **mtp_layers(),
    }


MIXED_MOE_FAMILIES: Final[Mapping[str, Family]] = {
    "afmoe": Family(
        "AfmoeDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2048, 32, 16, 6144, 200192, head_dim=128, length=16384),
            "norms": constant(FOUR_NORMS),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.all_but_every("global_attn_every_n_layers", default=4), 1024),
            "mixers": attention(sliding_only, gate=constant("feature"), gate_bias=NO),
            "feeds": experts(
                number=64,
                topk=6,
                default_width=1408,
                routed=routed_layers(1),
                shared=shared_experts(2),
                router_bias=YES,
            ),
        },
    ),
    "exaone_moe": Family(
        "ExaoneMoeDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 32, 32, 16384, 102400, 32, length=2048),
            **biases(NO),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
            "mixers": attention(sliding_or_alone),
            "feeds": grouped(1, 1, first=1, shared=1, number=64, topk=8, width=1024),
            **mtp_layers(),
        },
    ),
    "granitemoe_swa": Family(
        "GraniteMoeSWADecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            "windows": windows.windowed(windows.all_but_first_of(4), 128),
            "mixers": attention(sinks=True),
            "feeds": experts(
                number=8, topk=2, width=same_as("ffn"), shared=amount("shared_intermediate_size")
            ),
        },
    ),
    "hy_v3": Family(
        "HYV3DecoderLayer",
        {
            **LLAMA,
            **LLAMA_BIAS,
            **sizes(4096, 80, 64, 13312, 120832, 8, 128, 131072),
            "qk_norm": constant("head"),
            "feeds": grouped(1, 1, first=1, shared=1, number=192, topk=8, width=1536),
        },
    ),
    "laguna": Family(
        "LagunaDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2048, 40, 48, 8192, 100352, 8, 128, 131072),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.no_layers, 512),
            "mixers": attention(by_layer=_laguna, gate_bias=NO),
            "feeds": experts(
                number=256,
                topk=8,
                default_width=512,
                routed=routed_layers(1),
                shared=amount(*SHARED_WIDTH, default=512),
                router_bias=YES,
            ),
        },
    ),
    "mellum": Family(
        "MellumDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(2304, 28, 32, 7168, 98304, 4, 128, 131072),
            "qk_norm": constant("head"),
            "windows": windows.windowed(windows.no_layers, 1024),
            "feeds": experts(number=64, topk=8, default_width=896),
            **mtp_layers(),
        },
    ),
    "mimo_v2_flash": Family(
        "MiMoV2FlashDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 48, 64, 16384, 152576, 4, 192, 131072),
            **biases(flag("attention_bias"), NO, NO),
            **rotary(0.334),
            "windows": windows.windowed(windows.all_but_first_and_every(6), 129),
            "mixers": attention(by_layer=_mimo, value_dim=size("v_head_dim", default=128)),
            "feeds": grouped(1, 1, first=1, shared=0, number=256, topk=8, width=2048),
            **mtp_layers(),
        },
    ),
    "cohere2_moe": Family(
        "Cohere2MoeDecoderLayer",
        {
            **sizes(8192, 40, 64, 22528, 256000, head_dim=128, length=8192),
            **tied(True),
            **DROPOUT,
            **ATTENTION_BIAS,
            "parallel": YES,
            "norms": constant(ONE_NORM),
            "windows": windows.windowed(windows.all_but_every("sliding_window_pattern", default=4), 4096),
            "mixers": attention(sliding_only),
            "feeds": experts(
                number=8,
                topk=2,
                width=same_as("ffn"),
                shared=shared_experts(),
                dense=size("prefix_dense_intermediate_size", default=same_as("ffn")),
            ),
        },
    ),
    "solar_open": Family(
        "SolarOpenDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 48, 64, None, 196608, 8, 128, 131072),
            "ffn": size(*EXPERT_WIDTH, default=1280),
            **biases(flag("attention_bias"), NO, NO),
            "feeds": grouped(1, 1, first=0, shared=1, number=128, topk=8, width=1280),
        },
    ),
    "sarvam_moe": Family(
        "Glm4MoeDecoderLayer",
        {
            **LLAMA,
            **sizes(4096, 19, 64, 8192, 262144, 4, 64, 131072),
            **biases(flag("attention_bias", "use_qkv_bias"), NO, NO),
            "qk_norm": choose(flag("use_qk_norm", default=True), "head", None),
            "feeds": grouped(1, 1, first=1, shared=1, number=128, topk=6, width=1024),
            **mtp_layers(),
        },
    ),
    "deepseek": Family(  # modeling_deepseek.py of DeepSeek-MoE
        "DeepseekDecoderLayer",
        {
            **LLAMA,
            **ATTENTION_BIAS,
            **sizes(4096, 30, 32, 11008, 102400, length=2048),
            "feeds": grouped(1, 1, first=0, shared=0, width=1407),
        },
    ),
    "bailing_moe": Family("BailingMoeDecoderLayer", _bailing(flag("use_qk_norm"))),
    "bailing_moe_v2": Family("BailingMoeV2DecoderLayer", _bailing(flag("use_qk_norm", default=True))),
}
