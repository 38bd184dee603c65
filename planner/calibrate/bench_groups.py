"""Collectives as PyTorch runs them: over a host's ranks or all of them, plain or under FSDP2."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from meshwright.planner.calibrate.cases import Beside, Exchange, Tokens, Unit

WIDTH: Final = 4
"""Bytes of an fp32 element."""
UNIT_SIDE: Final = 512
"""Side of the square weights that make up a unit."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Groups:
    """Process groups: ``host`` joins the ranks of this host, ``world`` all ranks."""

    host: Any
    world: Any

    def of(self, across: int) -> Any:
        """Return the group of a case."""
        return self.world if across > 1 else self.host


def make_groups(inside: int) -> Groups:
    """Return the groups of a world whose hosts have ``inside`` consecutive ranks each."""
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    made = [dist.new_group(list(range(at, at + inside))) for at in range(0, world, inside)]
    return Groups(made[rank // inside], dist.group.WORLD)


def exchange(case: Exchange, groups: Groups, device: str) -> Call:
    """Return what runs a collective once."""
    import torch
    import torch.distributed as dist

    group = groups.of(case.across)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    count = max(case.tensor_bytes // WIDTH // size, 1)
    whole = torch.ones(count * size, device=device)
    if case.collective == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    part = torch.ones(count, device=device)
    if case.collective == "all_gather":
        return lambda: _gather()(whole, part, group=group)
    if case.collective == "reduce_scatter":
        return lambda: _scatter()(part, whole, group=group)
    other = torch.empty_like(whole)
    if case.collective == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=group)
    return _send_receive(whole, other, size, rank, group)


def _gather() -> Any:
    """Return the all-gather of one tensor under its newer name where there is one."""
    import torch.distributed as dist

    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _scatter() -> Any:
    import torch.distributed as dist

    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _send_receive(sent: Any, received: Any, size: int, rank: int, group: Any) -> Call:
    """Return one way from each rank of the lower half to its twin in the upper half."""
    import torch.distributed as dist

    half = size // 2
    if rank >= 2 * half:
        return lambda: None

    def run() -> None:
        """Send to, or receive from, the rank half the group away."""
        way, tensor = (dist.isend, sent) if rank < half else (dist.irecv, received)
        twin = dist.get_global_rank(group, (rank + half) % (2 * half))
        for work in dist.batch_isend_irecv([dist.P2POp(way, tensor, twin, group)]):
            work.wait()

    return run


def beside(case: Beside, groups: Groups, random: Callable[..., Any], device: str) -> Call:
    """Return a product, an all-reduce of about the same time, or both at once."""
    import torch
    import torch.distributed as dist

    a, b = (random(case.dtype, case.size, case.size) for _ in range(2))
    tensor = torch.ones(case.tensor_bytes // WIDTH, device=device)

    def both() -> None:
        """Run a product while a collective runs."""
        work = dist.all_reduce(tensor, group=groups.world, async_op=True)
        torch.mm(a, b)
        work.wait()

    alone: dict[str, Call] = {
        "product": lambda: torch.mm(a, b),
        "collective": lambda: dist.all_reduce(tensor, group=groups.world),
        "both": both,
    }
    return alone[case.part]


@dataclass(frozen=True)
class UnitCalls:
    """A unit gathered, its pass over one token, the same without sharding; gradients of copies reduced."""

    gather: Call
    whole: Call
    plain: Call
    reduce: Call


def unit(case: Unit, device: str) -> UnitCalls:
    """Return the calls of one FSDP2 unit of square weights."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    layers = max(case.tensor_bytes // (WIDTH * UNIT_SIDE**2), 1)
    # a chain of square maps; few enough tokens that the products are next to nothing
    sharded, plain = (_chain(layers, device) for _ in range(2))
    fully_shard(sharded, reshard_after_forward=False)
    token = torch.ones(1, UNIT_SIDE, device=device)

    def gather() -> None:
        """Gather the unit and free it."""
        sharded.unshard()
        sharded.reshard()

    def passes(model: Any) -> None:
        """Run one pass forward and back."""
        model(token).sum().backward()

    def reduce() -> None:
        """Reduce each parameter by itself, all in flight at once."""
        for work in [dist.all_reduce(p.data, async_op=True) for p in plain.parameters()]:
            work.wait()

    return UnitCalls(gather, lambda: passes(sharded), lambda: passes(plain), reduce)


def tokens(case: Tokens, groups: Groups, device: str) -> Call:
    """Return what gathers activations along the sequence, or sums and scatters them, between DTensors."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = DeviceMesh.from_group(groups.host, "cpu" if device == "cpu" else "cuda")
    length = max(case.tensor_bytes // (WIDTH * UNIT_SIDE * case.inside), 1)
    gathers = case.direction == "gather"
    held = torch.ones(1, length * (1 if gathers else case.inside), UNIT_SIDE, device=device)
    before, after = (Shard(1), Replicate()) if gathers else (Partial(), Shard(1))
    spread = DTensor.from_local(held, mesh, [before], run_check=False)
    return lambda: spread.redistribute(placements=[after]).to_local() + 0


def _chain(layers: int, device: str) -> Any:
    import torch

    linear = torch.nn.Linear
    return torch.nn.Sequential(
        *(linear(UNIT_SIDE, UNIT_SIDE, bias=False, device=device) for _ in range(layers))
    )
