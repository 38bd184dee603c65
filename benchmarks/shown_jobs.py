"""The jobs that :mod:`benchmarks.shown` plans, with the configurations published for them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Published:
    """A configuration that was published for a job: a strategy, and where it stands."""

    strategy: dict[str, Any]
    source: str


@dataclass(frozen=True)
class Shown:
    """A job, with the configurations published for it."""

    model: str
    cluster: str
    sequence_length: int
    global_batch_size: int
    published: tuple[Published, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> dict[str, Any]:
        """The job's fields."""
        sizes = {"global_batch_size": self.global_batch_size, "sequence_length": self.sequence_length}
        return {**sizes, **self.more}


DEEPSEEK = "DeepSeek-V3 report, arXiv 2412.19437, section 3"
FOLDING = "MoE Parallel Folding, arXiv 2504.14960"
LLAMA_3 = "Llama 3 report, arXiv 2407.21783, table 4"
MEGATRON = "Megatron-LM, arXiv 2104.04473, tables 1 and 2; arXiv 2205.05198, table 3"
SHOWN = {
    "llama-3.1-8b": Shown(
        "llama-3.1-8b",
        "dgx-h100:1",
        8192,
        128,
        (
            Published(
                {"zero_stage": 3, "micro_batch_size": 1, "recompute": "selective"},
                "torchtitan, Llama-3-8B on 8 H100: FSDP, local batch 1, selective recompute",
            ),
        ),
    ),
    "llama-3.1-70b": Shown(
        "llama-3.1-70b",
        "dgx-h100:8",
        8192,
        512,
        (
            Published(
                {"tp": 4, "pp": 4, "vpp": 5, "micro_batch_size": 1, "zero_stage": 1},
                "NeMo, Llama-3-70B on 64 H100: tp 4, pp 4, vpp 5 (context parallelism 2 left out)",
            ),
            Published(
                {
                    "tp": 4,
                    "pp": 4,
                    "vpp": 5,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "recompute": "selective",
                },
                "the same with selective recompute",
            ),
        ),
    ),
    "gpt3-175b": Shown(
        "gpt3-175b",
        "dgx-a100:128",
        2048,
        1536,
        (
            Published(
                {
                    "tp": 8,
                    "pp": 8,
                    "vpp": 3,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "recompute": "selective",
                },
                f"{MEGATRON}: tp 8, pp 8, interleaved 3",
            ),
            Published(
                {"tp": 8, "pp": 16, "vpp": 3, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
                f"{MEGATRON}: tp 8, pp 16, interleaved, full recompute",
            ),
        ),
    ),
    "llama-3.1-405b": Shown(
        "llama-3.1-405b",
        "dgx-h100:2048",
        8192,
        2048,
        (
            Published(
                {"tp": 8, "pp": 16, "vpp": 8, "micro_batch_size": 1, "zero_stage": 1},
                f"{LLAMA_3}: tp 8, pp 16, dp 128, one layer a chunk",
            ),
            Published(
                {"tp": 8, "pp": 16, "micro_batch_size": 1, "zero_stage": 1, "recompute": "selective"},
                "the same without interleaving, selective recompute",
            ),
        ),
    ),
    "deepseek-v3": Shown(
        "deepseek-v3",
        "hgx-h800:256",
        4096,
        15360,
        (
            Published(
                {"pp": 16, "ep": 64, "micro_batch_size": 1, "zero_stage": 1, "recompute": "selective"},
                f"{DEEPSEEK}: pp 16, ep 64, ZeRO-1; 1F1B in place of DualPipe",
            ),
            Published(
                {
                    "pp": 16,
                    "ep": 64,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "recompute": "selective",
                    "vpp": 2,
                    "schedule": "dualpipev",
                },
                "the same as DualPipe-V, which needs one copy of the parameters",
            ),
        ),
        {
            "precision": "fp8-block",
            "optimizer": "adamw-bf16",
            "profile": "megatron-core-deepep",
            # section 3.2.3: norms and latent attention's up-projections; 3.3.3: the experts' SwiGLU
            "recompute_modules": "layernorm,mla_up_proj,moe_act",
        },
    ),
    "mixtral-8x22b": Shown(
        "mixtral-8x22b",
        "dgx-h100:16",
        4096,
        256,
        (
            Published(
                {"tp": 2, "pp": 8, "ep": 4, "micro_batch_size": 1, "zero_stage": 1},
                f"{FOLDING}, table 4: tp 2, pp 8, ep 4",
            ),
        ),
    ),
    "qwen3-235b-a22b": Shown(
        "qwen3-235b-a22b",
        "dgx-h100:32",
        4096,
        1024,
        (
            Published(
                {"tp": 2, "pp": 8, "vpp": 4, "ep": 32, "micro_batch_size": 1, "zero_stage": 1},
                "Megatron-Bridge performance summary, 256 H100: tp 2, pp 8, vpp 4, ep 32",
            ),
        ),
    ),
    "llama-3.1-405b-long": Shown(
        "llama-3.1-405b",
        "dgx-h100:2048",
        131072,
        128,
        (
            Published(
                {
                    "tp": 8,
                    "cp": 16,
                    "pp": 16,
                    "micro_batch_size": 1,
                    "zero_stage": 1,
                    "kv_exchange": "all_gather",
                    "recompute": "none",
                },
                f"{LLAMA_3}: tp 8, cp 16, pp 16, dp 8",
            ),
        ),
    ),
    "jamba": Shown("jamba-v0.1", "dgx-a100:8", 4096, 512),
    "t5-v1.1-xxl": Shown("t5-v1.1-xxl", "dgx-a100-40gb:8", 512, 2048, more={"target_length": 114}),
    "qwen2-vl-7b": Shown("qwen2-vl-7b", "dgx-h100:2", 4096, 256, more={"image_tokens": 1024}),
    "llama-3.1-70b-qlora": Shown(
        "llama-3.1-70b",
        "rtx-4090:2",
        2048,
        16,
        (
            Published(
                {
                    "zero_stage": 3,
                    "micro_batch_size": 2,
                    "recompute": "full",
                    "offload": "parameters",
                },
                "AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md, Llama-2-70B on 2 RTX 4090: FSDP with CPU "
                "offload, batch 2 a device; printed 14.92 GiB reserved and 4399 s for 1024 samples, 69 s a "
                "step of 16",
            ),
        ),
        {"tuning": "qlora:r=16"},
    ),
    "llama-3.1-8b-lora-a10g": Shown("llama-3.1-8b", "a10g:1", 4096, 64, more={"tuning": "lora:r=16"}),
    "llama-3.1-8b-lora-l40s": Shown("llama-3.1-8b", "l40s-pcie-8:1", 4096, 64, more={"tuning": "lora:r=16"}),
}
