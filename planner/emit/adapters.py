"""What a script must do to train what a tuning says: adapters, frozen parts, stored frozen weights.

Sources: the documentation of PEFT (``LoraConfig``; "PEFT with FSDP", section on QLoRA), of bitsandbytes
("FSDP-QLoRA") and of transformers (``BitsAndBytesConfig``).
"""

from collections.abc import Mapping
from typing import Final

from meshwright.costmodels.precision import find_precision
from meshwright.planner.plan import Plan
from meshwright.planner.tuning import ALL_LINEAR, ATTENTION, EXPERTS, MLP, Tuning, read_tuning

TORCH: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "tf32": "float32",
    "fp32": "float32",
}
"""torch's names of compute dtypes."""

MODULES: Final[Mapping[str, str]] = {
    ALL_LINEAR: "every linear layer of the blocks but routers and experts",
    ATTENTION: "the products of attention",
    MLP: "the products of the MLP",
    EXPERTS: "the products of every expert",
}
"""Targets in words; others are named as they are."""

DOUBLE: Final[Mapping[str, bool]] = {"nf4": True, "nf4-single": False}
"""Whether the scales of a 4-bit base are quantised too."""

OTHER_BASES: Final[Mapping[str, str]] = {
    "int4": "in 4 bits with groups of 128 (GPTQ)",
    "int8": "in 8 bits (`load_in_8bit=True`)",
    "fp8": "in fp8",
}


def tuning_notes(plan: Plan) -> list[str]:
    """Return what the script must do beyond training all weights, one line each; empty for full training."""
    tuning = read_tuning(plan.tuning)
    if tuning.kind == "full":
        return []
    if tuning.kind == "freeze":
        return [f"Freeze {_frozen(tuning)}{_embedding(tuning)}: the plan is priced so (`{plan.tuning}`)."]
    compute = TORCH.get(find_precision(plan.precision).compute, "bfloat16")
    return [*_adapters(tuning), *_base(tuning, compute)]


def _adapters(tuning: Tuning) -> list[str]:
    dropout = f", lora_dropout={tuning.dropout}" if tuning.dropout else ""
    apart = f", none in {_frozen(tuning)}" if tuning.frozen_layers or tuning.frozen_streams else ""
    trained = "adapters, embedding and head" if tuning.train_embeddings else "adapters"
    return [
        f"Freeze all weights and train {trained}, of rank {tuning.rank} as priced "
        f"(PEFT: `LoraConfig(r={tuning.rank}{dropout})`).",
        f"Put adapters beside {', '.join(MODULES.get(t, f'`{t}`') for t in tuning.targets)}{apart}, as "
        "priced (PEFT: `target_modules`).",
    ]


def _base(tuning: Tuning, compute: str) -> list[str]:
    if tuning.base in OTHER_BASES:
        return [f"Store the frozen linear weights {OTHER_BASES[tuning.base]}: the memory counts on it."]
    if tuning.base not in DOUBLE:
        return []
    return [
        'Store the frozen linear weights as NF4: `load_in_4bit=True`, `bnb_4bit_quant_type="nf4"`, '
        f"`bnb_4bit_use_double_quant={DOUBLE[tuning.base]}`, `bnb_4bit_compute_dtype=torch.{compute}`.",
        f"Set `bnb_4bit_quant_storage=torch.{compute}`, the compute dtype, and load the other weights in it: "
        "FSDP and ZeRO-3 shard 4-bit weights only then.",
    ]


def _frozen(tuning: Tuning) -> str:
    """Return the layers and streams that stay as they are."""
    layers = [f"the first {tuning.frozen_layers} blocks"] if tuning.frozen_layers else []
    return " and ".join([*layers, *(f"the stream `{s}`" for s in tuning.frozen_streams)])


def _embedding(tuning: Tuning) -> str:
    return ", not the embedding" if tuning.train_embeddings and tuning.frozen_layers else ""
