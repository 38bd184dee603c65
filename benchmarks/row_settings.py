"""What a published run trains with: precision recipe, optimizer, sharding, recomputation.

Each reading takes the words of a row and returns the planner's word for them.
:mod:`benchmarks.row_profile` finds the software profile.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.row_cluster import USUAL_HOST, cluster_of
from benchmarks.row_model import style_of
from benchmarks.rows import Row
from meshwright.costmodels.modules import MODULES
from meshwright.costmodels.precision import find_precision
from meshwright.planner.tuning import Tuning

_RECIPES: Final = (
    ("nvfp4|fp4", "nvfp4"),
    ("mxfp8|fp8-mx", "mxfp8"),
    (r"(fp8|float8)\W*(block|sub|tile|128)|(block|tile)\w*\W*(fp8|float8)", "fp8-block"),
    ("all-gather", "fp8-weights"),
    ("fp8-cs|float8 (rowwise|tensorwise|dynamic)", "fp8-current"),
    ("fp8|float8", "fp8"),
    ("pure bf16|bf16-true", "pure-bf16"),
    ("bf16|bfloat16", "bf16"),
    ("fp16|float16|half", "fp16"),
    ("tf32", "tf32"),
    (r"^(fp32|float32|single|32-true)\b", "fp32"),
)
_NO_MX: Final = ("h100", "h200", "h800", "h20")
"""Where Megatron-Bridge's tables mean scales of tiles by FP8-MX ("MXFP8 or sub-channel", their footnote)."""
_PRIMARY: Final = {"fp8": "fp8-weights", "fp8-current": "fp8-weights", "mxfp8": "mxfp8-weights"}
_PRIMARY_LOW: Final = 2024
"""From then on Megatron's kin gather 8-bit weights and keep no 16-bit copy (--fp8-param-gather)."""
_ALIGNED_LATER: Final = 2023
"""From then on Megatron and NeMo shard the optimizer by default."""
_SPLIT_LATER: Final = 2024
"""From then on recipes split the sequence by default; before, it was a flag to be set."""


_NAMED: Final = r"\b(nvfp4|mxfp8|fp8|float8|fp16|bf16|tf32|fp32)\b"
"""Words of a precision in a model's or framework's name."""


def precision_of(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return the recipe's name, and what was assumed."""
    if row.precision is None and row.stated("precision_label") is None:
        named = re.search(_NAMED, f"{row.model_name} {row.framework}".lower())
        if named:
            name, notes = precision_of(replace(row, precision=named.group()))
            return name, (f"precision not stated: {name}, as names tell", *notes)
        name = "pure-bf16" if "litgpt" in row.framework.lower() else "bf16"
        name, lacking = _computable(row, name)
        return name, (f"precision not stated: {name}", *lacking)
    said = " ".join(str(w) for w in (row.stated("precision_label"), row.precision) if w).lower()
    name = next((recipe for pattern, recipe in _RECIPES if re.search(pattern, said)), "bf16")
    if name == "mxfp8" and any(word in (row.accelerator or "").lower() for word in _NO_MX):
        return "fp8-block", ("scales of tiles, for the accelerator has no products of mxfp8",)
    name, lacking = _computable(row, name)
    if lacking:
        return name, lacking
    if "fp8" in said and "FP8_CS" in (row.stated("recipe") or ""):
        name = "fp8-current"
    if name == "nvfp4" and megatron(row):
        return "nvfp4-all", (
            "every block in 4 bits, as the performance recipes of Megatron-Bridge have them",
        )
    if megatron(row) and (row.year or 0) >= _PRIMARY_LOW and name in _PRIMARY:
        return _PRIMARY[name], ("8-bit primary weights, as the recipes of NeMo and Megatron-Core have them",)
    return name, ()


def _computable(row: Row, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a recipe that the row's accelerator has products for, and a note where it is another one.

    Tables print a label for all machines, and stacks fall back where a device has no such products.
    """
    accelerator = cluster_of(row)[0].accelerator
    for other in (name, "bf16", "fp16", "fp32"):
        recipe = find_precision(other)
        if set(recipe.dtypes) <= set(accelerator.peak_flops_per_s) and recipe.runs_on(
            accelerator.architecture or ""
        ):
            note = f"{name}: {accelerator.name} has no products of it, {other} is taken"
            return other, () if other == name else (note,)
    return name, ()


def optimizer_of(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return the optimizer's name, and what was assumed."""
    said = (row.optimizer or row.notes).lower()
    if "muon" in said:
        return "muon", ()
    if "galore" in said:
        return "adamw", ("GaLore: priced as AdamW, its low-rank moments are not",)
    return "adamw", () if row.optimizer else ("optimizer not stated: AdamW",)


_ADAPTED: Final = (
    ("litgpt", ("q", "v"), "LitGPT's default"),
    ("fsdp_qlora", ("q", "k", "v", "gate", "up", "down"), "fsdp_qlora's default"),
    ("nemo", ("qkv",), "NeMo's default"),
)
_ALL_LINEAR: Final = "gemma|phi|tiny-llama"
"""Models whose recipes (github:Lightning-AI/litgpt config_hub/finetune) adapt every product."""
_STORED: Final = (("nf4-dq", "nf4"), ("bnb.nf4 base", "nf4"), ("bnb.nf4", "nf4-single"), ("gptq", "int4"))
DEFAULT_RANK: Final = 16
DEFAULT_DROPOUT: Final = 0.05
"""Of adapters, in the scripts of QLoRA, Alpaca-LoRA, LitGPT, axolotl and Qwen."""
_UNDROPPED: Final = "torchtune|unsloth"
"""Frameworks whose recipes set none."""


def tuning_of(row: Row) -> tuple[Tuning, tuple[str, ...]]:
    """Return what is trained, and what was assumed."""
    kind = (row.tuning or "full").lower()
    if kind.startswith("full"):
        return Tuning(), ()
    rank, targets, told = row.lora or DEFAULT_RANK, *_adapted(row)
    assumed: tuple[str, ...] = (told,)
    if row.lora is None:
        assumed += (f"adapter rank not stated: {rank}",)
    if kind.startswith("adapter"):
        rank, targets = 1, ("all-linear",)
        assumed = (f"{kind}: priced as adapters of rank 1 beside all products",)
    dropout = 0.0 if re.search(_UNDROPPED, row.framework.lower()) else DEFAULT_DROPOUT
    assumed += (f"dropout before adapters not printed: {dropout}",)
    words = (row.precision or "").lower()
    base = next((b for word, b in _STORED if word in words), "nf4" if kind == "qlora" else "model")
    ends = "embedding and output layers trainable" in row.notes.lower()
    return (
        Tuning(kind="lora", rank=rank, targets=targets, base=base, dropout=dropout, train_embeddings=ends),
        assumed,
    )


_JOINED: Final = ("gpt2", "gpt_neox", "bloom", "falcon", "phi3", "qwen", "deepseek_v2", "deepseek_v3")
"""Types in which one product makes queries, keys and values, or latents do."""


def _adapted(row: Row) -> tuple[tuple[str, ...], str]:
    """Return the products with adapters, and the note that says so."""
    said = [(products, whose) for word, products, whose in _ADAPTED if word in row.framework.lower()]
    targets, whose = said[0] if said else (("all-linear",), "the usual choice")
    if "litgpt" in row.framework.lower() and re.search(_ALL_LINEAR, row.model_name.lower()):
        return (
            "all-linear",
        ), "adapted products not printed: all-linear, as LitGPT's recipe of this model has it"
    joined = style_of(row).model_type in _JOINED or re.search(
        r"falcon|stablelm|phi-3", row.model_name.lower()
    )
    if said and joined:
        targets = ("attention",)  # one product makes queries, keys and values
    return targets, f"adapted products not printed: {', '.join(targets)}, {whose}"


JAX: Final = (
    r"maxtext|pathways|gspmd|jax|levanter|t5x|praxis|\bpax|flax|easylm|axlearn|haliax|mesh.?tensorflow|"
    r"\bxla\b"
)
"""Stacks whose whole step XLA compiles, sharded over every device by default."""
TRANSFORMERS: Final = (
    r"hf trainer|transformers|\btrl\b|axolotl|belle|llama.?factory|verl|openrlhf|xtuner|lmflow|swift|"
    r"hugging.?face(?!.*nanotron)|optimum"
)
"""Stacks around the modules of transformers and its Trainer, or loops like it."""
_SHARDS: Final = (
    r"fsdp|torchtitan|litgpt|lit-|llama.?recipes|automodel|torchtune|llm.?foundry|composer|mosaic|olmo|lingua|"
    r"fully.?sharded|metaseq|modalities|" + JAX
)


def fsdp(row: Row) -> bool:
    """Return whether PyTorch's sharding (or another that keeps fp32 shards alone) runs it."""
    return bool(re.search(_SHARDS, row.framework.lower()))


def captures_graphs(row: Row) -> bool:
    """Return whether torchtitan's experiments run it that capture a training step as a graph."""
    return bool(re.search("graphtrainer|compiler_toolkit", row.framework.lower()))


_MEGATRON: Final = r"megatron|nemo(?! ?automodel)|aa-scaling|neox|mindspeed|\bprimus|\bslime\b"
"""Forks and wrappers of Megatron-LM: Ascend's MindSpeed, AMD's Primus, the trainer of slime."""


def megatron(row: Row) -> bool:
    """Return whether a descendant of Megatron-LM runs it."""
    return bool(re.search(_MEGATRON, row.framework.lower()))


def pipeline_of_modules(row: Row) -> bool:
    """Return whether a pipeline is a list of modules, embedding and head among them, that is cut evenly.

    PyTorch's pipelines and those built like it are; Megatron's descendants count transformer layers alone.
    """
    return "megatron-style" in row.framework.lower()


def sharding_of(row: Row, dp: int, slices: int = 1) -> tuple[int, int, tuple[str, ...]]:
    """Return the ZeRO stage, the copies of the sharded states, and what was assumed.

    Parameters
    ----------
    dp
        Data-parallel degree.
    slices
        Slices of a pod; each holds a copy where sharding stays inside a slice.
    """
    said = sharding_words(row)
    if not said:
        return _default_sharding(row, dp)
    group = re.search(r"shard group (\d+)|within (\d+)|fsdp (\d+) within", said)
    inner = next((int(g) for g in group.groups() if g), dp) if group else dp
    if group is None and _HYBRID.search(said):
        inner = max((row.gpus_per_node or USUAL_HOST) // ((row.tp or 1) * (row.pp or 1)), 1)
    if "pods" in said:
        inner = dp // slices
    if "over dcn" in said:
        inner = dp // slices
    inner = max(inner, 1)
    replicas = max(dp // inner, 1) if dp % inner == 0 else 1
    return _stage(said), replicas, ()


_HYBRID: Final = re.compile(r"\bhsdp|hybrid.?shard|\bmics\b|\bhybrid fsdp")
"""PyTorch's words for whole shards inside a node and copies between nodes (MiCS of DeepSpeed: likewise)."""
_NUMBERED: Final = re.compile(r"zero\W*(?:stage)?\W*([0-3])|\bstage\W*([0-3])")


def sharding_words(row: Row) -> str:
    """Return what a row says of its sharding; a stage may stand in the framework's name (``ZeRO-3``)."""
    said = " ".join(w for w in (row.sharding, row.sharding_as_printed) if w).lower()
    if said:
        return said
    framework = row.framework.lower()
    return framework if _NUMBERED.search(framework) else ""


def _stage(said: str) -> int:
    """Return the ZeRO stage that words mean: the number behind ZeRO, else what stacks call it."""
    if number := _NUMBERED.search(said):
        return int(number.group(1) or number.group(2))
    if "fsdp=0" not in said and not re.search(r"no.?shard", said):
        if re.search(r"shard.?grad.?op", said):
            return 2
        if re.search(r"fsdp|hsdp|full.?shard|hybrid.?shard|infinity|zero\+\+|mics", said):
            return 3
    return 1 if re.search(r"distributed.?(fused|optimizer)|hybrid|shard\w* optim|\bzero\b", said) else 0


def _default_sharding(row: Row, dp: int) -> tuple[int, int, tuple[str, ...]]:
    """Return what a stack does unless told, the copies, and the note that says so.

    Megatron's kin share the optimizer from 2023 on, nanotron too; InternEvo shares it inside a node
    (``zero1=dict(size=8)`` in its configurations); the first stage of DeepSpeed's tutorials, and of those of
    transformers, is the second.
    """
    framework, replicas = row.framework.lower(), 1
    if fsdp(row):
        stage = 3
    elif megatron(row):
        stage = 1 if (row.year or _ALIGNED_LATER) >= _ALIGNED_LATER or "deepspeed" in framework else 0
    elif re.search("internevo|nanotron", framework):
        stage = 1
        replicas = dp // USUAL_HOST if "internevo" in framework and dp % USUAL_HOST == 0 else 1
    else:
        stage = 2 if "deepspeed" in framework else 0
    return stage, replicas, (f"sharding not stated: ZeRO-{stage}",)


def offload_of(row: Row) -> str:
    """Return what lives in host memory."""
    said = (row.offload or "none").lower()
    if said == "none" or "checkpoints" in said:
        return "none"
    return "optimizer" if said == "cpu (optimizer)" else "parameters"


def recompute_of(row: Row, blocks: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mode of each block, and what was assumed."""
    away = row.stated("cpu_offloading_num_layers")
    if away:
        return ("offload",) * min(int(away), blocks) + ("none",) * max(blocks - int(away), 0), ()
    said = (row.recompute or "").lower()
    if not said:
        return _default_recompute(row, blocks)
    if every := _every(said):
        return tuple("full" if i % every == 0 else "none" for i in range(blocks)), ()
    if part := re.search(r"(\d+) ?%", said):
        again = round(blocks * min(int(part.group(1)), 100) / 100)
        return ("full",) * again + ("none",) * (blocks - again), (f"{row.recompute}: of the first layers",)
    if "partial" in row.notes.lower() and row.stated("recompute_num_layers"):
        some = min(int(row.stated("recompute_num_layers")), blocks)
        return ("full",) * some + ("none",) * (blocks - some), ("partial recompute: the first layers",)
    if said.startswith("full") or "qkv projections" in said:
        return ("full",) * blocks, ()
    if said.startswith("none"):
        return ("none",) * blocks, ()
    told = said == "selective" or _by_operator(row)
    return ("selective",) * blocks, () if told else (f"{row.recompute}: priced as selective",)


_ORDINALS: Final[Mapping[str, int]] = {"other": 2, "second": 2, "third": 3, "fourth": 4}


def _every(said: str) -> int | None:
    """Return n where one layer in n runs again ("every 2nd layer"), None if nothing is said of it."""
    found = re.search(rf"every (\d+)(?:st|nd|rd|th)?\b|every ({'|'.join(_ORDINALS)})\b", said)
    if found is None:
        return None
    return max(int(found.group(1)), 1) if found.group(1) else _ORDINALS[found.group(2)]


def recompute_modules_of(row: Row) -> tuple[str, ...]:
    """Return the modules that selective recompute names; none where the mode's own choice runs again.

    Megatron-LM's descendants run the attention core alone again unless told (``recompute_modules``, since
    ``--recompute-activations`` of 2022).
    """
    if _by_operator(row):
        return ("by_operator",)
    told = tuple(name for name in row.stated("recompute_modules") or () if name in MODULES)
    plain = (row.recompute or "").strip().lower() == "selective"
    return told or (("core_attn",) if megatron(row) and plain else ())


def _by_operator(row: Row) -> bool:
    """Return whether torchtitan's policy tells operator by operator what is kept: its own default."""
    said = (row.recompute or "").lower()
    if "torchtitan" not in row.framework.lower() or "qkv" in said or "graph default" in said:
        return False
    unsaid = not said and not captures_graphs(row)
    return unsaid or said.startswith(("selective-op", "selective ("))


_SELECTIVE_LATER: Final = 2023
"""Before flash attention and selective recomputation came into use, Megatron's scripts recomputed all layers
(``--checkpoint-activations`` in every example of distributed pre-training)."""


def _default_recompute(row: Row, blocks: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if captures_graphs(row):
        return ("none",) * blocks, ("recompute not stated: none, as graph passes have it unless told",)
    if "torchtitan" in row.framework.lower():
        modes, _ = recompute_of(replace(row, recompute="selective-op"), blocks)
        return modes, ("recompute not stated: by operators, as torchtitan's configurations have it",)
    if "repo script enables it" in row.notes.lower():
        return ("full",) * blocks, ("recompute not printed: full, as its script has it",)
    full = ("full",) * blocks
    unfused = row.flash_attention is False or (row.year or _SELECTIVE_LATER) < _SELECTIVE_LATER
    if unfused and "nemo" in row.framework.lower():
        mode = ("selective",) * blocks
        return mode, ("recompute not stated: selective, as NeMo's configurations of its time have it",)
    if megatron(row) and unfused:
        return full, ("recompute not stated: full, as the scripts of its time have it",)
    if re.search(JAX, row.framework.lower()):
        return full, ("recompute not stated: full, MaxText's default (remat_policy)",)
    return ("none",) * blocks, ("recompute not stated: none",)


def sequence_parallel_of(row: Row, tp: int) -> bool:
    """Return whether norms and residuals are split by ``tp``."""
    if row.sequence_parallel is not None:
        return row.sequence_parallel and tp > 1
    return tp > 1 and (row.year or _SPLIT_LATER) >= _SPLIT_LATER
