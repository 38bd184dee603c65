"""The plan in plan.json as a configuration of Megatron-Bridge 0.6; written by meshwright."""

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    GPTDatasetConfig,
    LoggerConfig,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.mixed_precision import get_mixed_precision_config

LAYERS, HIDDEN, VOCABULARY = 32, 4096, 128256
MODEL = {
    "tensor_model_parallel_size": 4,
    "sequence_parallel": True,
    "pipeline_model_parallel_size": 2,
    "pipeline_model_parallel_layout": 'Et*16|t*16L',
    "context_parallel_size": 1,
    "recompute_granularity": 'full',
    "recompute_method": 'uniform',
    "recompute_num_layers": 1,
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": 'te',
    "seq_length": 8192,
}


def model(folder):
    """Return the model of a folder, laid out as planned; it must be the one that was planned for."""
    found = AutoBridge.from_hf_pretrained(folder).to_megatron_provider(load_weights=False)
    if (found.num_layers, found.hidden_size) != (LAYERS, HIDDEN):
        shape = f"{found.num_layers} layers of {found.hidden_size}"
        raise ValueError(f"{folder} has {shape}, the plan {LAYERS} of {HIDDEN}")
    for name, value in MODEL.items():
        if not hasattr(found, name):
            raise AttributeError(f"{type(found).__name__} has no {name}: is Megatron-Core another one?")
        setattr(found, name, value)
    return found


def planned(folder, steps, data=None) -> ConfigContainer:
    """Return the configuration; rates, betas and decay are common values: set yours."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=0, lr_decay_iters=steps, max_lr=0.0001, min_lr=0.0001, clip_grad=1.0
    )
    optimizer.use_distributed_optimizer = True
    precision = get_mixed_precision_config("bf16_mixed")
    precision.grad_reduce_in_fp32 = False  # as priced
    return ConfigContainer(
        model=model(folder),
        train=TrainingConfig(train_iters=steps, global_batch_size=128, micro_batch_size=1),
        validation=ValidationConfig(eval_interval=steps, eval_iters=0),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True, grad_reduce_in_fp32=False),
        dataset=GPTDatasetConfig(
            random_seed=1234,
            seq_length=8192,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            blend=(data, None) if data else None,
            split="1,0,0",
            dataloader_type="single",
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=VOCABULARY - 1),
        checkpoint=CheckpointConfig(),
        rng=RNGConfig(seed=1234),
        dist=DistributedInitConfig(use_tp_pp_dp_mapping=False),
        comm_overlap=CommOverlapConfig(tp_comm_overlap=True),
        mixed_precision=precision,
    )
