"""Cases run and timed with PyTorch, on the ranks that it was launched on.

A timing repeats a call until :data:`LONG_S` have passed, waits for the device, and counts as long as the
slowest rank's. All ranks run the same case at the same time, so that what they share is shared here as it is
in training.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from meshwright.planner.calibrate import bench_groups, bench_layer
from meshwright.planner.calibrate.bench_groups import Groups
from meshwright.planner.calibrate.cases import (
    TENSOR_PASSES,
    Beside,
    Case,
    Core,
    Exchange,
    Host,
    Product,
    Stream,
    Tokens,
    Unit,
    Update,
)

if TYPE_CHECKING:
    import torch

LONG_S: Final = 0.01
"""A timing's length at least, where a call is shorter: a thousand times the clock's and a barrier's error."""
MOST_CALLS: Final = 2000
DTYPES: Final = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""PyTorch's names."""
GRAPH_CALLS: Final = 200
OPERANDS: Final = 4
"""Pairs of operands that the calls of a product take in turn."""
Call = Callable[[], Any]


def weight_gradient(tokens: "torch.Tensor", gradient: "torch.Tensor") -> "torch.Tensor":
    """Return the gradient of a linear layer's weight."""
    return gradient.t() @ tokens


@dataclass(frozen=True)
class Bench:
    """Times cases on a device; ``groups`` are None for a single rank."""

    device: str
    groups: Groups | None

    def __call__(self, case: Case) -> float | None:
        """Return the seconds of one timing, the same on all ranks; None where the device cannot run it."""
        import torch

        try:
            own = self._timed(case)
        except (NotImplementedError, torch.OutOfMemoryError):
            own = -1.0
        if self.device != "cpu":
            torch.cuda.empty_cache()
        worst, least = self._over_ranks(own)
        return worst if least > 0 else None

    def clock(self) -> float:
        """Return seconds, the same on all ranks."""
        return self._over_ranks(time.perf_counter())[0] if self.groups else time.perf_counter()

    def _over_ranks(self, value: float) -> tuple[float, float]:
        """Return the largest and the smallest of the ranks' values."""
        if self.groups is None:
            return value, value
        import torch
        import torch.distributed as dist

        both = torch.tensor([value, -value], dtype=torch.float64, device=self.device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        return float(both[0]), -float(both[1])

    def _timed(self, case: Case) -> float:
        if isinstance(case, Unit):
            return self._unit(case)
        if isinstance(case, Host) and case.what == "launch":
            return self._launch()
        return self.seconds(self._call_of(case))

    def seconds(self, call: Call) -> float:
        """Return the seconds of a call, the mean over as many as fill a timing."""
        call()
        first = self._span(call, 1)
        calls = ceil(self._over_ranks(min(LONG_S / max(first, 1e-9), MOST_CALLS))[0])
        return first if calls <= 1 else self._span(call, calls)

    def _span(self, call: Call, calls: int) -> float:
        if self.groups is not None:
            import torch.distributed as dist

            dist.barrier()
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter() - start) / calls

    def _wait(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _call_of(self, case: Case) -> Call:
        """Return what runs a case once, its tensors made before."""
        if isinstance(case, Product):
            return self._product(case)
        if isinstance(case, Core):
            return self._core(case)
        if isinstance(case, Stream):
            width = bench_layer.STREAM_WIDTH
            a, b = (self._random(case.dtype, 1, case.elements // width, width) for _ in range(2))
            return bench_layer.stream(case.what, a, b)
        if isinstance(case, Update):
            return self._update(case.elements, 1)
        if isinstance(case, Host):
            return self._host(case)
        assert self.groups is not None and isinstance(case, Exchange | Tokens | Beside)
        if isinstance(case, Exchange):
            return bench_groups.exchange(case, self.groups, self.device)
        if isinstance(case, Tokens):
            return bench_groups.tokens(case, self.groups, self.device)
        return bench_groups.beside(case, self.groups, self._random, self.device)

    def _random(self, dtype: str, *shape: int) -> "torch.Tensor":
        import torch

        if self.device != "cpu":
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        return torch.randn(*shape, device=self.device).to(getattr(torch, DTYPES[dtype]))

    def _product(self, case: Product) -> Call:
        """Return the product as a linear layer runs it; the tokens are a weight gradient's inner side.

        Each call takes other operands, as layers do: a repeated one would be found in the cache.
        """
        import torch

        tokens, other = (case.k, case.n), (case.k, case.m)
        if not case.weight_gradient:
            tokens, other = (case.m, case.k), (case.n, case.k)
        pairs = [
            (self._random(case.dtype, *tokens), self._random(case.dtype, *other)) for _ in range(OPERANDS)
        ]
        turn = cycle(pairs)
        if case.weight_gradient:
            return lambda: weight_gradient(*next(turn))
        return lambda: torch.nn.functional.linear(*next(turn))

    def _core(self, case: Core) -> Call:
        import torch

        shape = (case.sequences, case.heads, case.length, case.head_dim)
        q, k, v = (self._random(case.dtype, *shape).requires_grad_(case.backward) for _ in range(3))
        attend = torch.nn.functional.scaled_dot_product_attention
        if not case.backward:
            return lambda: attend(q, k, v, is_causal=True)
        out = attend(q, k, v, is_causal=True)
        seed = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), seed, retain_graph=True)

    def _update(self, elements: int, tensors: int) -> Call:
        import torch

        params = [
            torch.nn.Parameter(torch.zeros(elements // tensors, device=self.device)) for _ in range(tensors)
        ]
        for p in params:
            p.grad = torch.ones_like(p)
        step: Call = torch.optim.AdamW(params, fused=True).step
        return step

    def _host(self, case: Host) -> Call:
        import torch

        if case.what == "operator":
            x = torch.ones(8, device=self.device)
            return lambda: x + x
        if case.what == "step":
            return self._update(64 * 8, 8)
        if case.what in TENSOR_PASSES:
            assert self.groups is not None
            forward, backward = bench_layer.tensor_passes(self.device, self.groups.host)
        else:
            forward, backward = bench_layer.passes(self.device)
        return forward if case.what.endswith("forward") else backward

    def _launch(self) -> float:
        """Return the seconds of one kernel among many that a graph replays."""
        import torch

        x = torch.ones(8, device=self.device)
        x.add_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_CALLS):
                x.add_(1)
        return self.seconds(graph.replay) / GRAPH_CALLS

    def _unit(self, case: Unit) -> float:
        """Return the seconds that a unit is gathered in, or its gradients scattered or reduced.

        A scatter is what a pass over almost no tokens takes beyond the gather and the pass itself.
        """
        unit = bench_groups.unit(case, self.device)
        if case.work == "reduce":
            return self.seconds(unit.reduce)
        gather = self.seconds(unit.gather)
        if case.work == "gather":
            return gather
        return max(self.seconds(unit.whole) - gather - self.seconds(unit.plain), gather / 100)
