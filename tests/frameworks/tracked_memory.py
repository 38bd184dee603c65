"""The peak that torch's own tracker counts for one rank of a job of any size, on a CPU and without storage.

Fake tensors have shapes and no data, the ``fake`` process group has as many ranks as wanted; the rest is the
real thing: decoder layers of transformers, ``fully_shard``, ``parallelize_module``, ``checkpoint_wrapper``
and AdamW, watched by ``FSDPMemTracker``. The tracker sees every tensor and nothing else: no rounding by an
allocator, no driver context, no communication buffers. Nothing here is shared with the cost models.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

Shape = dict[str, int]
"""Sizes of a decoder, as its configuration names them."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one rank trains and how.

    Attributes
    ----------
    layers
        Decoder layers on the rank.
    first, last
        Whether it holds the embedding, and norm, head and loss.
    data, tensor
        Ranks that share the states, and that split the layers.
    reshard
        Whether gathered weights are let go after the forward pass (ZeRO-3).
    recomputed
        Which of the layers are checkpointed.
    in_flight
        Micro-batches whose activations are kept at the fullest moment (1F1B).
    micro_batches
        Of a step; with several the gradients of the earlier ones exist already.
    """

    layers: int
    sequences: int
    length: int
    data: int
    tensor: int = 1
    first: bool = True
    last: bool = True
    reshard: bool = True
    recomputed: frozenset[int] = frozenset()
    in_flight: int = 1
    micro_batches: int = 2


class Decoder(nn.Module):
    """A run of decoder layers of transformers, with embedding and head where the stage has them."""

    def __init__(self, config: Any, stage: Stage) -> None:
        from transformers.models.llama.modeling_llama import (
            LlamaDecoderLayer,
            LlamaRMSNorm,
            LlamaRotaryEmbedding,
        )

        super().__init__()
        d, vocabulary = config.hidden_size, config.vocab_size
        self.stage = stage
        self.embed = nn.Embedding(vocabulary, d) if stage.first else None
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, i) for i in range(stage.layers))
        self.norm = LlamaRMSNorm(d) if stage.last else None
        self.head = nn.Linear(d, vocabulary, bias=False) if stage.last else None
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, or what the next stage reads."""
        if self.embed is not None:
            x = self.embed(x)
        places = torch.arange(self.stage.length, device=x.device)[None]
        turns = self.rotary(torch.empty(0, dtype=torch.bfloat16, device=x.device), places)
        for layer in self.layers:
            x = layer(x, position_embeddings=turns)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def _split(model: Decoder, mesh: Any) -> None:
    """Split the layers by ``mesh``, norms and residuals over the sequence; each rank sees all logits."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    scattered = RowwiseParallel(output_layouts=Shard(1))
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "input_layernorm": SequenceParallel(),
                "post_attention_layernorm": SequenceParallel(),
                "self_attn": PrepareModuleInput(
                    input_kwarg_layouts={"hidden_states": Shard(1)},
                    desired_input_kwarg_layouts={"hidden_states": Replicate()},
                ),
                **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
                "self_attn.o_proj": scattered,
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp.gate_proj": ColwiseParallel(),
                "mlp.up_proj": ColwiseParallel(),
                "mlp.down_proj": scattered,
            },
        )
    if model.embed is not None:
        whole = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        parallelize_module(model, mesh, {"embed": whole})
    if model.head is not None:
        gathered = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        parallelize_module(model, mesh, {"norm": SequenceParallel(), "head": gathered})


def _shard(model: Decoder, mesh: Any, reshard: bool) -> None:
    """Shard layer by layer; embedding and head are units of their own, the head stays gathered."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if model.embed is not None:
        fully_shard(model.embed, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if model.head is not None and model.norm is not None:
        fully_shard([model.norm, model.head], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def _built(config: Any, stage: Stage, mesh: Any) -> Decoder:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        checkpoint_wrapper,
    )

    with torch.device("meta"):
        model = Decoder(config, stage)
        if stage.tensor > 1:
            _split(model, mesh["tensor"])
    for i in stage.recomputed:
        model.layers[i] = checkpoint_wrapper(model.layers[i], checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    _shard(model, mesh["data"], stage.reshard)
    return model


@contextmanager
def _ranks(number: int) -> Iterator[None]:
    """Have a process group of ``number`` ranks, this one the first, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def _step(model: Decoder, optimizer: Any, inputs: list[torch.Tensor], labels: torch.Tensor) -> None:
    """Run the micro-batches one forward, one backward, behind as many forward passes as may be in flight."""
    outputs: list[torch.Tensor] = []
    for x in inputs:
        out = model(x)
        if model.stage.last:
            out = nn.functional.cross_entropy(out.flatten(0, 1).float(), labels.flatten())
        outputs.append(out)
        del out
        if len(outputs) == model.stage.in_flight:
            _backward(outputs.pop(0))
    while outputs:
        _backward(outputs.pop(0))
    optimizer.step()
    optimizer.zero_grad()


def _backward(out: torch.Tensor) -> None:
    """Run the backward pass of a loss, or of what was handed to the next stage."""
    out.backward(None if out.dim() == 0 else torch.empty_like(out))


def tracked_peak_bytes(sizes: Shape, stage: Stage) -> int:
    """Return the peak of the second step: the first one also fills the optimizer's state and caches.

    Parameters
    ----------
    sizes
        Of the decoder, as ``LlamaConfig`` names them.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import LlamaConfig

    config = LlamaConfig(**sizes, attn_implementation="sdpa")
    with _ranks(stage.data * stage.tensor):
        mesh = init_device_mesh("cpu", (stage.data, stage.tensor), mesh_dim_names=("data", "tensor"))
        model = _built(config, stage, mesh)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            inputs, labels = _batch(config, stage)
            _step(model, optimizer, inputs, labels)
            tracker = FSDPMemTracker(model, optimizer)
            tracker.track_inputs((*inputs, labels))
            with tracker:
                _step(model, optimizer, inputs, labels)
            snapshots = tracker.get_tracker_snapshot("peak")
    return max(int(each["Total"]) for each in snapshots.values())


def _batch(config: Any, stage: Stage) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the inputs of the micro-batches, and labels."""
    shape = (stage.sequences, stage.length)
    labels = torch.randint(0, config.vocab_size, shape)
    make: Callable[[], torch.Tensor] = lambda: torch.randint(0, config.vocab_size, shape)  # noqa: E731
    if not stage.first:
        hidden = (stage.sequences, stage.length // stage.tensor, config.hidden_size)
        make = lambda: torch.empty(hidden, dtype=torch.bfloat16, requires_grad=True)  # noqa: E731
    return [make() for _ in range(stage.micro_batches)], labels
