"""Tensor parallelism of a decoder: linear layers split, norms replicated, tokens split between them.

As in Megatron-LM (arXiv 1909.08053; with sequence parallelism arXiv 2205.05198, section 4.2.2). The embedding
is split along its vocabulary, and so is the head, whose logits are gathered. Every parameter becomes a
DTensor of the tensor mesh, so that optimizers see one kind of tensor.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meshwright.planner.runtime.architecture import COLUMNS, HEAD_NORM, NORM, ROWS, Architecture

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def split_over_tensor_ranks(
    part: "nn.Module",
    blocks: Iterable["nn.Module"],
    architecture: Architecture,
    mesh: "DeviceMesh",
    sequence_parallel: bool,
    ends: tuple[bool, bool],
) -> None:
    """Split a part in place.

    Parameters
    ----------
    blocks
        The blocks that the part holds.
    mesh
        The one-dimensional mesh of the tensor ranks.
    sequence_parallel
        Whether activations between the split layers are sharded along the sequence.
    ends
        Whether the part holds the embedding, and norm and head.
    """
    from torch.distributed.tensor import Replicate, Shard

    between = Shard(1) if sequence_parallel else Replicate()
    for block in blocks:
        split_block(block, architecture.tensor, mesh, between)
    first, last = ends
    embedding, head = architecture.part(part, "embedding"), architecture.part(part, "head")
    tied = first and last and head.weight is embedding.weight
    if first:
        _split_embedding(embedding, mesh, between)
    elif sequence_parallel:
        part.register_forward_pre_hook(lambda module, args: (_as_dtensor(args[0], mesh, between), *args[1:]))
    if last:
        _norm(architecture.part(part, "norm"), mesh, between)
        _split_head(head, mesh)
    if tied:  # each style made a parameter of its own, both split along the vocabulary
        head.weight = embedding.weight


def split_block(block: "nn.Module", words: Mapping[str, Any], mesh: "DeviceMesh", between: Any) -> None:
    """Split a block's submodules in place, by :attr:`Architecture.tensor`'s words.

    Parameters
    ----------
    between
        How activations are placed between the split layers.
    """
    for path, word in words.items():
        _apply_style(block.get_submodule(path), mesh, word, between)


def _split_embedding(embedding: "nn.Module", mesh: "DeviceMesh", between: Any) -> None:
    """Split the embedding along its vocabulary; what the ranks find is summed."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    local = not between.is_shard()
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=between, use_local_output=local)
    parallelize_module(embedding, mesh, style)


def _split_head(head: "nn.Module", mesh: "DeviceMesh") -> None:
    """Split the head along its vocabulary and gather the logits.

    They stay a DTensor until the part returns: FSDP warns of a rank's own tensor, which is a view.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate(), use_local_output=False))


def _apply_style(module: "nn.Module", mesh: "DeviceMesh", word: Any, between: Any) -> None:
    """Split one submodule of a block, by a word of :class:`Architecture` or a style of torch's."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    if word == NORM:
        _norm(module, mesh, between)
        return
    local = not between.is_shard()
    styles = {
        COLUMNS: ColwiseParallel(),
        ROWS: RowwiseParallel(output_layouts=between, use_local_output=local),
        HEAD_NORM: SequenceParallel(sequence_dim=2, use_local_output=True),
    }
    parallelize_module(module, mesh, styles[word] if isinstance(word, str) else word)


def _norm(module: "nn.Module", mesh: "DeviceMesh", between: Any) -> None:
    """Replicate a norm, which works on its rank's tokens; its output is gathered once for all who read it."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_module

    def enter(module: Any, args: Any, mesh: Any) -> Any:
        """Make the input a distributed tensor."""
        return (_as_dtensor(args[0], mesh, between), *args[1:])

    def leave(module: Any, output: Any, mesh: Any) -> Any:
        """Return the output as those who read it need it."""
        if between.is_shard():
            return output.redistribute(placements=[Replicate()])
        # Gradients of the layers that read it are summed over the ranks here, once.
        return DTensor.from_local(output.to_local(), mesh, [Replicate()], run_check=False)

    distribute_module(module, mesh, None, enter, leave)


def _as_dtensor(tensor: Any, mesh: "DeviceMesh", placement: Any) -> Any:
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [placement], run_check=False)
