"""Fields of torchtitan 0.3.0's ``TrainingConfig``, ``ParallelismConfig`` and ``Trainer.Config``."""

TRAINING = frozenset(
    """
    local_batch_size global_batch_size seq_len max_norm steps enable_cpu_offload disable_cuda_graphs dtype
    mixed_precision_param mixed_precision_reduce gc_freq gc_debug
    """.split()  # noqa: SIM905
)
PARALLELISM = frozenset(
    """
    data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward
    enable_fsdp_symm_mem tensor_parallel_degree enable_sequence_parallel spmd_backend
    pipeline_parallel_degree module_fqns_per_model_part pipeline_parallel_first_stage_less_layers
    pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage pipeline_parallel_schedule
    pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size context_parallel_degree
    context_parallel_load_balancer context_parallel_ptrr_mask_key expert_parallel_degree
    """.split()  # noqa: SIM905
)
TRAINER = frozenset(
    """
    model_spec hf_assets_path dump_folder profiler metrics tokenizer dataloader optimizer lr_scheduler
    training parallelism checkpoint activation_checkpoint compile comm validator debug override loss
    """.split()  # noqa: SIM905
)
