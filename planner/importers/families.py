"""The families: for each ``model_type`` a table of rules, one for each field that differs from Llama.

Families that exist only as code beside a model (Baichuan, ChatGLM, InternLM, Qwen) follow their published
``modeling_*.py``; the others the classes of transformers. To add a family, add a row to the table that it
resembles; ``tests/frameworks/test_parameter_counts.py`` compares it with the framework's class.
"""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers import windows
from meshwright.planner.importers.families_gpt import GPT_FAMILIES
from meshwright.planner.importers.families_hybrid import HYBRID_FAMILIES
from meshwright.planner.importers.families_latent import LATENT_FAMILIES
from meshwright.planner.importers.families_llama import LLAMA_FAMILIES
from meshwright.planner.importers.families_moe import MOE_FAMILIES
from meshwright.planner.importers.families_moe_mixed import MIXED_MOE_FAMILIES
from meshwright.planner.importers.families_norms import NORM_FAMILIES
from meshwright.planner.importers.family import LLAMA, LLAMA_BIAS, Family, mtp_layers, sizes
from meshwright.planner.importers.mixing import if_latent, latent
from meshwright.planner.importers.routing import experts, if_given, node_limit, shared_experts
from meshwright.planner.importers.rules import same_as

FAMILIES: Final[Mapping[str, Family]] = {
    **LLAMA_FAMILIES,
    **NORM_FAMILIES,
    **GPT_FAMILIES,
    **MOE_FAMILIES,
    **MIXED_MOE_FAMILIES,
    **LATENT_FAMILIES,
    **HYBRID_FAMILIES,
}

ALIASES: Final[Mapping[str, str]] = {
    "Yi": "llama",
    "yi": "llama",
    "aquila": "llama",
    "xverse": "llama",
    "kimi_k2": "deepseek_v3",
    "apertus1p5_text": "apertus",
    "hunyuan": "hunyuan_v1_moe",
    "gpt-sw3": "gpt2",
}
"""Names under which Llama's layers were published."""

GENERIC: Final = Family(
    None,
    {
        **LLAMA,
        **sizes(None, None, None, None, None),
        **LLAMA_BIAS,
        "windows": windows.windowed(windows.no_layers),
        "mixers": if_latent(latent()),
        "feeds": if_given(experts(default_width=same_as("ffn"), shared=shared_experts(), limit=node_limit())),
        **mtp_layers(),
    },
)
"""What an unknown ``model_type`` is read as: Llama's layers, every size required."""
