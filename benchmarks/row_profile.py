"""The software profile of a published run, and the switches by which the run differs from it.

A profile follows from the framework and its year; what a row states beyond that (attention kernel, fused
norms, compilation, CUDA graphs) overrides single switches. Nothing depends on who published the row. Its
model and accelerator count only where a stack's own recipes, which are not printed, choose switches by them.
"""

import re
from typing import Any, Final

from benchmarks import row_settings as settings
from benchmarks.row_cluster import cluster_of
from benchmarks.row_elsewhere import LATEST
from benchmarks.row_model import style_of
from benchmarks.rows import Row
from meshwright.costmodels.fusion import GROUPS
from meshwright.costmodels.profiles import find_profile, profile_with

FSDP2: Final = 2024
"""From then on PyTorch has ``fully_shard`` of single parameters (release notes 2.4)."""

_KERNELS: Final = (
    ("flash_attentionv1", "flash-1"),
    ("flash_attention", "flash-2"),
    ("fused", "megatron-softmax"),
    ("torch", "torch"),
)
"""Words of a stated kernel, and the kernel's name."""

COMPILED: Final = tuple(group for group in GROUPS if group != "scaled_rotary")
"""What ``torch.compile`` fuses; no kernel but its own is too narrow for a rotation that is scaled."""
FUSED_NORMS: Final = 2025
"""From then on PyTorch runs ``nn.RMSNorm`` as one kernel (release notes 2.8 and 2.9)."""

NEMO_2: Final = (24, 9)
"""Release of NeMo 2, whose recipes and libraries Megatron-Bridge's descend from."""
BOARD: Final = 8
"""Devices of one board or host, the largest NVLink domain before racks."""
HYBRID_LATER: Final = 2026
"""From then on Megatron-Bridge's recipes have HybridEP outside racks too, and hide the exchange."""

ASYNC_TENSOR: Final = 0.5
"""Share of tensor-parallel traffic that PyTorch's asynchronous tensor parallelism hides: pieces are copied
beside the products of others, the first and the last stand alone (torchtitan documentation: AsyncTP)."""

PARTLY_CAPTURED: Final = 0.4
"""Share of the host's time that CUDA graphs of single sub-blocks leave."""
ROUTER_CAPTURED: Final = 0.6
"""The same where the router alone is captured, and what comes before its exchange."""

CAPACITIES: Final = {"expert_padding": False, "dispatch_sync_s": 0.0}
"""Experts with a capacity have whole tiles, and their rows are known without asking the device."""

NOT_HIDDEN: Final = re.compile(r"\bno (comm )?overlap", re.IGNORECASE)
"""Words for gradients and parameters that travel while nothing computes."""
FUSED_LOSS: Final = re.compile(
    r"(?<!no )(?<!not )(?<!without )\bfused (CE|cross.entropy)\b(?![^.;,]*\boff\b)", re.IGNORECASE
)
"""Words for Megatron-Core's compiled cross entropy (``--cross-entropy-loss-fusion``)."""
FOUNDRY: Final = re.compile(r"llm.?foundry", re.IGNORECASE)
"""Its models take flash-attn's cross entropy, and its trainer two metrics of the same logits."""
TENSOR_APART: Final = re.compile(r"\bTP overlap\b[^.;]*\boff\b", re.IGNORECASE)
"""Words for tensor-parallel traffic that runs beside no product."""
BATCHES_BESIDE: Final = {"overlap_experts": 0.7, "layer_host_s": 5e-3}
"""Where one micro-batch's exchange runs beside another's compute (``--overlap-moe-expert-parallel-comm``),
each part of a layer (attention, dispatch, experts, combine, what follows) is a node of a schedule, issued by
an autograd call of its own under events and stream switches: some 1 ms each (recalled of combined_1f1b.py).
The first and last micro-batches have no other beside them, and communication takes cores from compute."""

ROWWISE: Final = 0.65
"""Products scaled by rows against those scaled by tensors: the scales are applied in a slower epilogue and
sums are exact (torchao documentation: rowwise scaling trades speed for accuracy)."""

UNPACKED: Final = 0.1
"""Weights of GPTQ are unpacked by a chain of PyTorch operators (shift, mask, scale, zero point), each through
memory: some ten passes for one."""

_FRAMEWORKS: Final = (
    ("internevo|internlm-train", "internevo"),
    (settings.JAX, "maxtext"),
    ("llm.?foundry|composer|mosaic|fsdp1|llama.?(recipes|cookbook)|fastchat|fairscale|metaseq", "fsdp1"),
    ("atorch.*fsdp", "atorch"),
    ("litgpt|lit-gpt|lit-llama", "litgpt"),
    ("unsloth", "unsloth"),
    ("torchtune", "torchtune"),
    (settings.TRANSFORMERS, "hf-trainer"),
    (r"accelerate.*deepspeed|deepspeed.*accelerate", "hf-trainer"),
    (r"(?<!un)fsdp|torchtitan|automodel|accelerate|olmo|lingua|modalities|fully.?sharded", "fsdp2-eager"),
)
"""Patterns of a framework's name, and the profile; Megatron's kin are told apart by year."""


def profile_of(row: Row) -> str:
    """Return the name of the profile, with the switches that the row states otherwise."""
    base = base_profile(row)
    switches = _switches(row, base)
    own = find_profile(base)
    return profile_with(base, {k: v for k, v in switches.items() if getattr(own, k) != v})


def taken_to_overlap(row: Row) -> bool:
    """Return whether a run of a Megatron-Core release is taken to hide tensor-parallel traffic, as NeMo does.

    An assumption about that stack, whatever the model: no row states it.
    """
    own = base_profile(row).startswith(("megatron-core", "nemo-2024"))
    return own and "megatron-core" in row.framework.lower()


def base_profile(row: Row) -> str:
    """Return the profile of a framework and its year."""
    framework = row.framework.lower()
    if re.search("megatron-style|colossal", framework):
        return "megatron-style"
    if settings.megatron(row):
        return _megatron(row, framework)
    tuned = row.tuning in ("lora", "qlora") and "unsloth" not in framework
    if tuned and re.search(rf"trainer|qlora|habana|peft|{settings.TRANSFORMERS}", framework):
        return "peft"
    found = next((name for pattern, name in _FRAMEWORKS if re.search(pattern, framework)), None)
    if found is None:
        found = "deepspeed" if "deepspeed" in framework else "generic"
    if found == "fsdp2-eager" and (row.year or LATEST) < FSDP2 and "fsdp2" not in framework:
        found = "fsdp1"
    return "fsdp1-early" if found == "fsdp1" and _early(row) else found


def _early(row: Row) -> bool:
    """Return whether the run is of the first year of its accelerator's architecture."""
    return (row.year or LATEST) <= cluster_of(row)[0].accelerator.year + 1


def _megatron(row: Row, framework: str) -> str:
    """Return the profile of a descendant of Megatron-LM by its generation."""
    year = row.year or LATEST
    if "habana" in framework:
        return "megatron-gaudi"
    if re.search("deepspeed|neox", framework) and year < LATEST:  # GPT-NeoX: DeepSpeed's engine as well
        return "megatron-deepspeed"
    if year < LATEST:
        return {2021: "megatron-2021", 2022: "megatron-2022"}.get(year, "megatron-2023")
    flexible = _deduplicates(row)
    if "bridge" in framework:
        return "megatron-bridge-hybridep" if flexible else "megatron-bridge"
    if "megatron-core" in framework and row.moe is None:
        return "nemo-2024"  # its releases overlap tensor-parallel traffic as NeMo does
    if "nemo" in framework:
        return "megatron-bridge" if year > LATEST or _release(framework) >= NEMO_2 else "nemo-2024"
    return "megatron-core-deepep" if flexible else "megatron-core"


def _release(framework: str) -> tuple[int, int]:
    """Return the year and month that a framework's name ends with (``NeMo 24.07``); zeros where none does."""
    named = re.search(r"\bv?(\d\d)\.(\d\d)\b", framework)
    return (int(named[1]), int(named[2])) if named else (0, 0)


def drops_tokens(row: Row) -> bool:
    """Return whether experts have a capacity that the host knows before any token arrives."""
    return bool(re.search(r"token.?drop\b", f"{row.model_name} {row.notes}".lower()))


def _hides_exchange(row: Row) -> bool:
    """Return whether a recipe that is not printed runs batches beside each other.

    Megatron-Bridge's have it where the exchange leaves a node and virtual stages allow it, from 2026 on.
    """
    unknown = row.stated("recipe") is None and "bridge" in row.framework.lower()
    if not unknown or row.moe is None or (row.year or LATEST) < HYBRID_LATER:
        return False
    return (row.vpp or 1) > 1 and (row.ep or 1) > cluster_of(row)[0].tiers[0].fan_out


def _deduplicates(row: Row) -> bool:
    """Return whether tokens enter a node once: as stated, else as recipes of Megatron-Bridge came to have it.

    A recipe that is printed names its dispatcher where it is not the plain one. Recipes of DeepSeek-V3, whose
    routing keeps to few nodes, took DeepEP on Hopper; HybridEP came to racks of one NVLink domain at the end
    of 2025 and to other nodes in 2026. None of them drops tokens, and dense models have none to send.
    """
    if row.moe is None:
        return False
    if row.stated("moe_flex_dispatcher_backend"):
        return True
    if row.stated("recipe") or "bridge" not in row.framework.lower() or drops_tokens(row):
        return False
    cluster = cluster_of(row)[0]
    if cluster.accelerator.architecture == "hopper" and style_of(row).model_type == "deepseek_v3":
        return True
    link = cluster.accelerator.on_package_link
    rack = link is not None and (link.max_devices or 0) > BOARD
    return rack or (row.year or LATEST) >= HYBRID_LATER


def _switches(row: Row, base: str) -> dict[str, Any]:
    """Return what a row states of its stack."""
    found: dict[str, Any] = _attention(row, base)
    if (compiled := _compiled(row)) is not None and not settings.megatron(row):
        found |= dict.fromkeys(COMPILED, "fused" if compiled else "eager")
        found |= {"overlap_tensor": ASYNC_TENSOR} if re.search("async.?tp", row.notes.lower()) else {}
        if base == "fsdp2-eager" and (row.year or LATEST) >= FUSED_NORMS:
            found["norm"] = "fused"
    turns = found.get("rotary", find_profile(base).rotary)
    if turns == "eager" and "torchtitan" in row.framework.lower():
        found["rotary"] = "complex"  # its own models: torch.view_as_complex
    if _kernel(row) is not None:
        found["norm"] = "fused" if "rms kernel" in str(row.stated("kernel")).lower() else "eager"
    if (
        base == "litgpt"
        and row.tuning is not None
        and not re.search(r"\+ *(thunder|eager)", row.framework.lower())
    ):
        found["loss"] = "sliced" if row.tuning == "full" else "pieces"
    if FOUNDRY.search(row.framework):
        found["loss"] = "metrics"
    if row.moe is not None and "torchtitan" in row.framework.lower() and not settings.captures_graphs(row):
        found["loss"] = "compiled"  # its configurations of mixtures: compile components ["loss"]
    if (ending := find_profile(base).pipeline_loss) and "pipeline" in row.framework.lower():
        found["loss"] = ending  # a pipeline engine of one stage calls its own as well
    if settings.captures_graphs(row):
        found["loss"] = "traced"
    if "rowwise" in (row.precision or "").lower():
        found["low_gemm_fraction"] = ROWWISE
    if "gptq" in (row.precision or "").lower():
        found["expand_fraction"] = UNPACKED
    if "chunked cross entropy" in row.notes.lower():
        found["loss"] = "chunked"
    if settings.megatron(row) and FUSED_LOSS.search(row.notes):
        found["loss"] = "jit"
    if "thunder" in row.framework.lower():
        found["gradient_buckets"] = False  # thunder.distributed.ddp reduces the gradients themselves
    if drops_tokens(row):
        found |= CAPACITIES
    if taken_to_overlap(row):
        found["overlap_tensor"] = find_profile("nemo-2024").overlap_tensor
    if NOT_HIDDEN.search(row.sharding_as_printed or ""):
        found |= {"overlap_gradients": 0.0, "overlap_parameters": 0.0}
    if TENSOR_APART.search(row.notes):
        found |= {"overlap_tensor": 0.0, "overlap_backward": False}
    if row.stated("moe_a2a_overlap") or _hides_exchange(row):
        found |= BATCHES_BESIDE
    return found | _graphs(row)


def _compiled(row: Row) -> bool | None:
    """Return whether a compiler makes one kernel of what is memory-bound; None if nothing is said.

    Captured graphs alone (torchtitan's GraphTrainer) run the kernels of eager PyTorch unless Inductor makes
    code of them; Lightning's Thunder does so where its executors say ``torchcompile``.
    """
    notes = row.notes.lower()
    if settings.captures_graphs(row):
        return "inductor" in notes
    if row.torch_compile is None and re.search(r"executors \S*torchcompile\b", notes):
        return True
    return row.torch_compile


def _kernel(row: Row) -> str | None:
    """Return the attention kernel that a row states; None if it states none, or one that nobody knows."""
    said = str(row.stated("kernel") or "")
    return next((name for word, name in _KERNELS if word in said), None)


def _attention(row: Row, base: str) -> dict[str, Any]:
    kernel = _kernel(row)
    if kernel is not None:
        return {"attention": kernel}
    own = find_profile(base)
    if row.flash_attention is None or row.flash_attention == own.flash_attention:
        return {}
    if row.flash_attention:
        return {"attention": "flash-2"}
    return {"attention": "megatron-softmax" if settings.megatron(row) else "torch"}


def _graphs(row: Row) -> dict[str, Any]:
    """Return what CUDA graphs leave of the host's time.

    A scope alone captures nothing where the implementation is none (Megatron-Bridge, training/train.py: a
    whole iteration is captured where the one is local and the other says so; later one word says both).
    """
    scope, kind = row.stated("cuda_graph_scope") or [], row.stated("cuda_graph_impl")
    parts = {scope} if isinstance(scope, str) else set(scope)
    if kind == "none" or not (parts or kind):
        return {}
    if "full_iteration" in parts | {kind} or (kind == "local" and not parts):
        return {"host_share": 0.0, "expert_host_share": 0.0, "dispatch_sync_s": 0.0}
    whole = row.moe is None or not parts or bool(parts & {"attn", "full"})
    return {"host_share": PARTLY_CAPTURED if whole else ROUTER_CAPTURED}
