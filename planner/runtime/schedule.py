"""The plan's pipeline schedule over the parts of a rank, as ``torch.distributed.pipelining`` runs it.

Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html. Activations have the shapes that the
plan tells, so that no rank has to try its part first.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.runtime.layout import PIPELINE

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

SCHEDULES: Final = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb1p": "ScheduleInterleavedZeroBubble",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def pipeline_schedule(
    parts: Sequence["nn.Module"],
    chunks: Sequence[Chunk],
    plan: Plan,
    mesh: "DeviceMesh",
    loss_fn: Callable[..., Any],
    widths: tuple[int, int],
) -> Any:
    """Return torch's schedule over a rank's parts; ``widths`` are those of activations and logits."""
    from torch.distributed import pipelining

    stages = [_stage(part, chunk, plan, mesh, widths) for part, chunk in zip(parts, chunks, strict=True)]
    kind = getattr(pipelining, SCHEDULES[plan.schedule])
    single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
    return kind(stages[0] if single else stages, plan.num_microbatches, loss_fn=loss_fn)


def _stage(part: "nn.Module", chunk: Chunk, plan: Plan, mesh: "DeviceMesh", widths: tuple[int, int]) -> Any:
    """Return the pipeline stage of one chunk."""
    import torch
    from torch.distributed.pipelining import PipelineStage

    hidden, logits = widths
    tokens = plan.sequence_length // plan.cp
    ids = torch.empty((plan.micro_batch_size, tokens), dtype=torch.int64, device="meta")
    between = _activations(plan, tokens // (plan.tp if plan.sequence_parallel else 1), hidden)
    last = chunk.stop == plan.num_layers
    return PipelineStage(
        part,
        plan.chunks.index(chunk),
        len(plan.chunks),
        torch.device(mesh.device_type),
        input_args=ids if chunk.start == 0 else between,
        output_args=_activations(plan, tokens, logits) if last else between,
        group=mesh.get_group(PIPELINE),
    )


def _activations(plan: Plan, tokens: int, width: int) -> "torch.Tensor":
    """Return a tensor without data that has the shape of what a part hands on."""
    import torch

    dtype = torch.bfloat16 if "bf16" in plan.precision else torch.float32
    shape = plan.micro_batch_size, tokens, width
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
