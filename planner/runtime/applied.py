"""A plan that is applied: what a training loop needs of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan
from meshwright.planner.runtime.context import Context
from meshwright.planner.runtime.gradients import average_copies, clip, gradient_norm, settle
from meshwright.planner.runtime.layout import CONTEXT, PIPELINE, REPLICATE, SHARD
from meshwright.planner.runtime.shard import managed

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

BATCH: Final = ("input_ids", "labels")
"""What a step reads of a batch."""


@dataclass(frozen=True)
class Applied:
    """A model laid out over the ranks by a plan, with its optimizer.

    Attributes
    ----------
    plan
        What was applied.
    mesh
        The device mesh ``pp``, ``dp_replicate``, ``dp_shard``, ``cp``, ``tp``, in the order of the plan's
        placement.
    device
        Of this rank.
    parts
        The model's parts on this rank, one for each chunk, under the names of the whole model.
    optimizer
        What ``optimizer_fn`` made of this rank's parameters.
    data_rank, data_ranks
        This rank's place among those that read different data: rank and replicas of a sampler. All ranks
        with the same place must read the same sequences.
    context
        This rank's place among those that share sequences.
    loss_fn
        From logits and labels to the mean loss of a micro-batch.
    schedule
        torch's pipeline schedule, None without a pipeline.
    max_grad_norm
        What the gradient is clipped to, None: not at all.
    """

    plan: Plan
    mesh: "DeviceMesh"
    device: "torch.device"
    parts: "tuple[nn.Module, ...]"
    optimizer: "torch.optim.Optimizer"
    data_rank: int
    data_ranks: int
    loss_fn: Callable[..., Any]
    context: Context
    schedule: Any = None
    max_grad_norm: float | None = None

    @property
    def local_batch_size(self) -> int:
        """Sequences that this rank reads for each step."""
        return self.plan.micro_batch_size * self.plan.num_microbatches

    def step(self, batch: Mapping[str, Any]) -> float:
        """Train one step and return the loss, the mean over the global batch, the same on every rank.

        Parameters
        ----------
        batch
            ``input_ids`` and, unless they are the same, ``labels``: (:attr:`local_batch_size`,
            ``plan.sequence_length``) whole numbers, which the loss function pairs with the logits.

        Raises
        ------
        MeshwrightError
            If the batch has another shape, numbers that are not whole, or more than is read: what is left
            unread, such as a mask of padding, would change the loss.
        """
        loss = self.forward_backward(batch)
        if self.max_grad_norm is not None:
            self.clip_gradients(self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def forward_backward(self, batch: Mapping[str, Any]) -> float:
        """Add a batch's gradient to what the parameters hold; parameters and result as :meth:`step`'s."""
        _check_names(batch)
        ids = self._taken(batch, "input_ids")
        labels = self._taken(batch, "labels") if "labels" in batch else ids
        if self.context.size > 1:
            ids, labels = self.context.own(ids), self.context.targets(labels)
        losses = self._passes(ids, labels) if self.schedule is None else self._pipeline(ids, labels)
        settle(self.parameters())
        if not managed(self.plan):
            average_copies(self.parameters(), self.mesh)
        return self._mean(losses)

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradient so that its norm over all ranks is at most ``max_norm``; return what it was."""
        norm = gradient_norm(self.parameters(), self.mesh)
        clip(self.parameters(), norm, max_norm)
        return float(norm)

    def parameters(self) -> "list[nn.Parameter]":
        """Return this rank's parameters."""
        return [p for part in self.parts for p in part.parameters()]

    def _taken(self, batch: Mapping[str, Any], name: str) -> "torch.Tensor":
        """Return one tensor of a batch on this rank's device."""
        wanted = self.local_batch_size, self.plan.sequence_length
        tensor = batch.get(name)
        shape = tuple(getattr(tensor, "shape", ()))
        if tensor is None or shape != wanted:
            raise MeshwrightError(
                f"batch: {name} has shape {shape}, the plan needs {wanted}: micro_batch_size "
                f"{self.plan.micro_batch_size} x num_microbatches {self.plan.num_microbatches} sequences "
                "on each data-parallel rank"
            )
        if tensor.is_floating_point() or tensor.is_complex():
            raise MeshwrightError(
                f"batch: {name} holds {tensor.dtype}; whole numbers are expected, such as {name}.long()"
            )
        return tensor.to(self.device)

    def _passes(self, ids: "torch.Tensor", labels: "torch.Tensor") -> "list[torch.Tensor]":
        """Run the micro-batches one after the other; shards are reduced in every pass, copies in the last."""
        model: Any = self.parts[0]
        count, losses = self.plan.num_microbatches, []
        for i, (inputs, targets) in enumerate(zip(ids.chunk(count), labels.chunk(count), strict=True)):
            if managed(self.plan):
                model.set_requires_gradient_sync(self.plan.zero_stage > 0 or i == count - 1)
            loss = self.loss_fn(model(inputs), targets)
            (loss / count).backward()
            losses.append(loss.detach())
        return losses

    def _pipeline(self, ids: "torch.Tensor", labels: "torch.Tensor") -> "list[torch.Tensor]":
        """Run the schedule; only the rank of the last chunk learns the losses."""
        ranks = [chunk.rank for chunk in self.plan.chunks]
        own = self.mesh.get_local_rank(PIPELINE)
        losses: list[torch.Tensor] = []
        inputs = (ids,) if own == ranks[0] else ()
        targets = {"target": labels, "losses": losses} if own == ranks[-1] else {}
        self.schedule.step(*inputs, **targets)
        return losses

    def _mean(self, losses: "list[torch.Tensor]") -> float:
        """Return the mean loss over micro-batches, data-parallel and context ranks, on every rank."""
        import torch
        from torch import distributed

        mean = torch.zeros((), dtype=torch.float32, device=self.device)
        if losses:
            mean += torch.stack([loss.detach().float() for loss in losses]).mean()
            mean /= self.data_ranks * self.context.size
        for dim in (PIPELINE, REPLICATE, SHARD, CONTEXT):
            distributed.all_reduce(mean, group=self.mesh.get_group(dim))
        return float(mean)


def _check_names(batch: object) -> None:
    """Refuse a batch that is no mapping, or that holds what no step reads."""
    if not isinstance(batch, Mapping):
        raise MeshwrightError(f"batch: a mapping with input_ids is expected, not {type(batch).__name__}")
    unread = [name for name in batch if name not in BATCH]
    if unread:
        raise MeshwrightError(f"batch: {unread[0]!r} is not read; allowed: {', '.join(BATCH)}; leave it out")
