"""A software profile: what a training stack achieves and how it behaves.

*Hardware* says what the machine can do, a profile what the stack makes of it;
:mod:`meshwright.costmodels.profiles` has them by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention_kernels import find_attention_kernel
from meshwright.costmodels.fusion import GROUPS
from meshwright.costmodels.work import Collective

TRANSFERS_BESIDE: Final = ("all", "interleaved", "none")
"""Schedules in which a pipeline's transfers may travel beside passes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One training stack. Numeric fields may hold arrays.

    Attributes
    ----------
    attention
        Name of the attention kernel (:mod:`meshwright.costmodels.attention_kernels`).
    attention_fraction
        Factor on that kernel's measured rates.
    norm, activation, clamp, rotary, scaled_rotary, residual
        How these memory-bound operators run: ``fused`` or ``eager`` (:mod:`meshwright.costmodels.fusion`).
    gemm_fraction
        Factor on the accelerator's sustained GEMM rate (libraries of an architecture's first year).
    weight_gradient_fraction
        The same for products that make a weight's gradient (accumulation in fp32).
    grouped_fill
        Rows that starting each product of a group costs, in the time of that product (grouped products of
        experts run group by group: a group of ``m`` rows takes the time of ``m + grouped_fill``).
    expert_by_expert
        Whether the products of a group, and the casts of their operands, are issued one by one (on several
        streams) or as one kernel.
    expert_bias
        How biases of the experts' second product are added: in its ``epilogue``, as the first one's are, or
        ``weighted`` by each token's probability behind it (:mod:`meshwright.costmodels.fusion`).
    expert_padding
        Whether experts' rows are copied to whole tiles before products of 8 and 4 bits, and back.
    low_gemm_fraction
        The same for 8- and 4-bit products (scaling by rows or blocks in the epilogue).
    permute_fraction
        Share of the streaming memory rate at which rows are permuted for experts and back.
    expand_fraction
        Share of the streaming memory rate at which quantised frozen weights are expanded for a product.
    accumulation_bytes
        Bytes moved to add one parameter's gradient of a micro-batch to the accumulated one; zero where the
        product's epilogue does it.
    gradient_bytes
        Bytes of an accumulated gradient under a 16-bit recipe.
    working_copy
        Whether a 16-bit copy of the weights lives beside the fp32 master (Megatron, DeepSpeed); FSDP2
        keeps fp32 shards alone and gathers in 16 bits.
    overlap_gradients, overlap_parameters
        Share of the last backward (first forward) pass that hides gradient reduction (parameter gather).
    overlap_cost
        Seconds of compute lost per second of communication that runs beside it (shared cores and memory
        bandwidth): ``1 - 1 / slowdown``.
    overlap_tensor
        Share of tensor-parallel traffic that hides behind the products next to it.
    overlap_narrow
        Whether it also hides where the recipe's products have 4 bits.
    overlap_backward
        Whether a tensor-parallel group sends beside what need not wait for it in the backward pass of a
        column-parallel product: it gathers the input again beside its gradient, and reduces that beside the
        weight's.
    overlap_transfers
        In which schedules a stage computes while its output travels: ``all``, those with virtual stages or
        weight passes (``interleaved``), or ``none`` (:mod:`meshwright.costmodels.transfers`).
    transfers_split
        Whether ranks of a tensor group that hold the same tokens each send a part of them to the next stage,
        which gathers them.
    overlap_experts
        Share of the experts' exchange that hides behind other compute.
    expert_dispatch
        ``alltoall`` sends every copy of a token by itself, ``deduplicated`` (DeepEP) once into each node.
    low_dispatch
        Whether tokens are quantised before they are sent to their experts.
    dispatch_sync_s
        Time that the device waits at each dispatch until the host knows the rows of each expert; zero where
        they stay on the device or are known before.
    exchange_fixed_s, exchange_token_s
        Time of a deduplicated exchange's kernels, at once and for each of a rank's tokens.
    data_rate
        Share of the network's sustained rate that collectives over data-parallel ranks reach (buckets,
        protocols, tensors sent one by one).
    layer_rate
        The same for collectives of tensor, context and expert groups.
    scatter_rate
        Share of the rate of gathers that reduce-scatters reach.
    reduce_rate
        The same of all-reduces, which are two passes.
    reduce_whole_stage
        The last ZeRO stage that all-reduces whole gradients instead of scattering them: 0, 1 or 2.
    prefetch_units
        Layers gathered ahead under ZeRO-3, beside the one in use.
    root_unit
        Whether embedding and head are gathered together and stay so from the first to the last pass (ZeRO-3);
        and their gradients leave together, at the end.
    reduce_last
        Whether sharded gradients stay whole under a pipeline until the last micro-batch, and weights too.
    accumulates_whole
        Whether sharded gradients stay whole over micro-batches without a pipeline too, while weights are
        gathered anew for each (FSDP's ``no_sync``).
    gradient_buckets
        Whether replicas keep a second copy of their gradients, in buckets (``DistributedDataParallel``
        without ``gradient_as_bucket_view``).
    flat_gradients
        Whether ZeRO-1 flattens a copy of all gradients, cut by owner, before it scatters them (DeepSpeed's
        first, ``legacy_stage1`` in later releases).
    kept_keys
        How many steps' keys and values of every block live on as outputs, beside what the backward pass keeps
        of a layer's insides: those that transformers' models hand on for generation (``use_cache``, true
        unless their own checkpointing is switched on), of this step, and of the one before where a loop's
        variable holds its outputs until new ones come.
    placeholders
        Whether products that add to the accumulated gradient still hand autograd a gradient of the weight's
        type, of which one stays for every shape in a block.
    bucket_bytes
        Gradient bucket beside the gradients themselves; two are alive while one is reduced beside compute.
        Zero where buckets are views of the gradient buffer.
    loss
        Cross-entropy implementation (see :mod:`meshwright.costmodels.loss`).
    pipeline_loss
        The one at the end of a pipeline; empty where it is no other. It computes no head again.
    loss_parallel
        Whether a tensor-parallel group keeps the logits split over the vocabulary, or each rank gathers them.
    keeps_gathered
        Whether what a tensor-parallel group gathers for a product is kept for its weight's gradient; else the
        backward pass gathers it again.
    projections_apart
        Whether queries, keys, values, gate and up are modules of their own, each of which reduces its input's
        gradient over the tensor group; else one product makes them all.
    quantised_gathers
        Whether a tensor-parallel group gathers the operands of 8- and 4-bit products as they read them.
    layer_host_s
        Host time that a block's pass costs whatever its operators (modules, hooks, random states of
        checkpoints).
    tensor_host_s
        What it costs more where a tensor-parallel group splits the block (distributed tensors find each
        operator's layout in Python).
    forward_host_s, backward_host_s
        Host time to issue one kernel or collective; the device idles where the host is slower. Recomputation
        issues its kernels as the forward pass does.
    gradient_hook_s
        Host time of a backward pass for each trained weight, whose hook sorts the gradient into a bucket.
    host_spread
        Share by which host time grows for each doubling of a tensor group, whose ranks wait for the slowest
        of their hosts: half of the deviation from host to host.
    host_share
        Share of that host time left by CUDA graphs (1: none captured, 0: whole passes replayed).
    expert_host_share
        The same for the experts' own kernels and exchanges, whose sizes change from step to step.
    host_sync
        Share of the shorter of host and device time that does not overlap with the longer (calls that wait
        for the device, queues that start empty).
    jitter
        Share by which every pass slows down for each doubling of the devices beyond one (stragglers).
    step_fixed_s
        Time of a step that nothing else explains (data, logging, synchronisation).
    communicator_bytes
        Memory of the communicators of one rank.
    fragmentation
        Reserved over allocated memory, minus one.
    records_streams
        Whether tensors of a tensor group's collectives wait for the device before their memory is given out
        again (:mod:`meshwright.costmodels.waiting`).
    cached
        Share of what comes and goes that an allocator keeps in empty blocks besides, as long as the device
        has room: before it fails it gives them back (CUDA caching allocator, ``release_cached_blocks``).
    optimizer_fraction
        Share of the memory bandwidth that the optimizer kernel reaches.
    owner_send_s
        Seconds of a step for each rank that owns a part of the states, where every owner sends its updated
        parameters by a broadcast of its own (ZeRO-1 and 2).
    gradient_passes
        Passes over the gradients beside the optimizer's own: norm, scaling, and setting them to zero.
    recompute_exit
        Whether full recompute also repeats the last product of a layer and its collective.
    """

    name: str
    title: str
    attention: str
    attention_fraction: Num
    norm: str
    activation: str
    clamp: str
    rotary: str
    scaled_rotary: str
    residual: str
    gemm_fraction: Num
    weight_gradient_fraction: Num
    grouped_fill: Num
    expert_by_expert: bool
    expert_bias: str
    expert_padding: bool
    low_gemm_fraction: Num
    permute_fraction: Num
    expand_fraction: Num
    accumulation_bytes: Num
    gradient_bytes: Num
    working_copy: bool
    overlap_gradients: Num
    overlap_parameters: Num
    overlap_cost: Num
    overlap_tensor: Num
    overlap_narrow: bool
    overlap_backward: bool
    overlap_transfers: str
    transfers_split: bool
    overlap_experts: Num
    expert_dispatch: str
    low_dispatch: bool
    dispatch_sync_s: Num
    exchange_fixed_s: Num
    exchange_token_s: Num
    data_rate: Num
    layer_rate: Num
    scatter_rate: Num
    reduce_rate: Num
    reduce_whole_stage: Num
    prefetch_units: Num
    root_unit: bool
    reduce_last: bool
    accumulates_whole: bool
    gradient_buckets: bool
    flat_gradients: bool
    kept_keys: Num
    placeholders: bool
    bucket_bytes: Num
    loss: str
    pipeline_loss: str
    loss_parallel: bool
    keeps_gathered: bool
    projections_apart: bool
    quantised_gathers: bool
    layer_host_s: Num
    tensor_host_s: Num
    forward_host_s: Num
    backward_host_s: Num
    gradient_hook_s: Num
    host_spread: Num
    host_share: Num
    expert_host_share: Num
    host_sync: Num
    jitter: Num
    step_fixed_s: Num
    communicator_bytes: Num
    fragmentation: Num
    records_streams: bool
    cached: Num
    optimizer_fraction: Num
    owner_send_s: Num
    gradient_passes: Num
    recompute_exit: bool
    sources: tuple[str, ...] = ()

    @property
    def flash_attention(self) -> bool:
        """Whether attention scores stay on chip."""
        return find_attention_kernel(self.attention).flash

    @property
    def fusions(self) -> Mapping[str, str]:
        """How each group of memory-bound operators runs."""
        return {group: getattr(self, group) for group in GROUPS}

    def backend_rate(self, collective: Collective) -> Num:
        """Return what the library of collectives reaches of the network's rate in one of them."""
        rates: dict[Collective, Num] = {"reduce_scatter": self.scatter_rate, "all_reduce": self.reduce_rate}
        return rates.get(collective, 1.0)
