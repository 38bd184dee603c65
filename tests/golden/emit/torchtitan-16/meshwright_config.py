"""The plan in plan.json as a configuration of torchtitan 0.3; written by meshwright."""

import os
from dataclasses import dataclass

from torchtitan.distributed.activation_checkpoint import FullAC

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

FLAVOR = os.environ.get("TITAN_FLAVOR", "8B")
LAYERS, HIDDEN, VOCABULARY = 32, 4096, 128256


RECOMPUTED = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]


class PlannedAC(FullAC):
    """Recomputes the layers that the plan names."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        pass

    def _wrap_block(self, module, *, base_fqn=None):
        if int(base_fqn.rpartition(".")[2]) not in RECOMPUTED:
            return module
        return super()._wrap_block(module, base_fqn=base_fqn)


def model():
    """Return torchtitan's model, which must be the one that was planned for."""
    spec = model_registry(FLAVOR)
    found = len(spec.model.layers), spec.model.dim, decoder_vocab_size(spec)
    if found != (LAYERS, HIDDEN, VOCABULARY):
        raise ValueError(
            f"TITAN_FLAVOR={FLAVOR}: layers, width and vocabulary are {found}, "
            f"planned for {(LAYERS, HIDDEN, VOCABULARY)}"
        )
    return spec


def planned() -> Trainer.Config:
    """Return the trainer's configuration; rate and data are common values: set yours."""
    spec = model()
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        model_spec=spec,
        optimizer=default_adamw(lr=0.0001),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
            local_batch_size=32,
            global_batch_size=128,
            seq_len=8192,
            max_norm=1.0,
            dtype="float32",
            mixed_precision_param="bfloat16",
            enable_cpu_offload=False,
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=4,
            fsdp_reshard_after_forward="never",
            tensor_parallel_degree=2,
            enable_sequence_parallel=True,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            pipeline_parallel_degree=2,
            pipeline_parallel_schedule="Interleaved1F1B",
            pipeline_parallel_microbatch_size=1,
            module_fqns_per_model_part=[
                ["tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5", "layers.6", "layers.7"],
                ["layers.8", "layers.9", "layers.10", "layers.11", "layers.12", "layers.13", "layers.14", "layers.15"],
                ["layers.16", "layers.17", "layers.18", "layers.19", "layers.20", "layers.21", "layers.22", "layers.23"],
                ["layers.24", "layers.25", "layers.26", "layers.27", "layers.28", "layers.29", "layers.30", "layers.31", "norm", "lm_head"],
            ],
            spmd_backend="partial_dtensor",
        ),
        activation_checkpoint=PlannedAC.Config(),
    )
