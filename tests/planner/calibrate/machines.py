"""Made-up machines whose constants are known, and what each case takes on them by the cost models."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from meshwright.planner.calibrate.bench_layer import token_bytes
from meshwright.planner.calibrate.cases import (
    CPU,
    Beside,
    Case,
    Core,
    Direction,
    Exchange,
    Host,
    Product,
    Sample,
    Stream,
    Tokens,
    Unit,
    Update,
    grid,
)
from meshwright.planner.calibrate.machine import Machine

MACHINE = Machine(
    name="made-up",
    title="Made-up CPU",
    vendor="any",
    kind="cpu",
    architecture="",
    memory_bytes=16e9,
    host_memory_bytes=32e9,
    context_bytes=0.0,
    communicator_bytes=0.0,
    num_cores=1,
    dtypes=("fp32",),
    inside=2,
    across=1,
    backend="gloo",
    software="tests",
)
GPU_MACHINE = replace(
    MACHINE, kind="gpu", vendor="nvidia", architecture="hopper", dtypes=("bf16", "tf32"), num_cores=132
)
CALL_S = 4e-6
MEMORY = 12e9
PEAK = 8e10
RATE = 2e9
LATENCY = 1e-4
SPLIT_S = 5e-3
"""What a layer's pass costs the host more where tensor ranks split it."""
SLOW = {"gather": 2.0, "scatter": 8.0, "reduce": 2.0}
"""Times of a unit over that of a plain gather: FSDP2 copies, the backend scatters slowly, reduces quickly."""


def seconds(case: Case) -> float:
    """Return the time of a case, counted by hand: no tile to fill, nothing that overlaps."""
    by_kind: Mapping[type, Callable[[], float]] = {
        Product: lambda: CALL_S + 2.0 * case.m * case.n * case.k / PEAK,
        Stream: lambda: _stream(case),
        Core: lambda: CALL_S + _core_flops(case) / (0.5 * PEAK),
        Update: lambda: 1e-3 + 24.0 * case.elements / (0.5 * MEMORY),
        Host: lambda: _host(case),
        Exchange: lambda: _exchange(case),
        Unit: lambda: _exchange(Exchange("all_gather", case.tensor_bytes, 2, 1)) * SLOW[case.work],
        Tokens: lambda: _exchange(Exchange("all_gather", case.tensor_bytes, 2, 1)) * SLOW[case.direction] / 2,
        Beside: lambda: {"product": 3.0, "collective": 2.0, "both": 4.0}[case.part],
    }
    return by_kind[type(case)]()


def _host(case: Host) -> float:
    """Return a host's time; a layer split in two gathers and scatters its tokens twice a pass."""
    ways: tuple[Direction, ...] = ("gather", "scatter")
    split = SPLIT_S + sum(2 * seconds(Tokens(way, token_bytes(2), 2)) for way in ways)
    own = {"operator": CALL_S, "forward": 1e-3, "backward": 2e-3, "step": 1e-3}
    return own[case.what.removeprefix("tensor_")] + split * case.what.startswith("tensor_")


def _stream(case: Stream) -> float:
    """Return calls and bytes: fp32 elements read and written, counted by hand."""
    calls, moved = {"sum": (1, 12), "norm": (4, 28), "gate": (2, 20), "rotary": (5, 40)}[case.what]
    return calls * CALL_S + moved * case.elements / MEMORY


def _core_flops(case: Core) -> float:
    pairs = case.length * (case.length + 1) / 2
    return (2.5 if case.backward else 1.0) * 4.0 * case.sequences * case.heads * case.head_dim * pairs


def _exchange(case: Exchange) -> float:
    """Return bytes over the rate, half of them for two ranks but for what is sent whole."""
    passes = {"all_reduce": 2.0, "send_recv": 1.0, "reduce_scatter": 3.0}.get(case.collective, 1.0)
    share = 1.0 if case.collective == "send_recv" else 0.5
    return passes * (LATENCY + share * case.tensor_bytes / RATE)


def samples(machine: Machine = MACHINE, alter: Callable[[Sample], Sample] = lambda s: s) -> list[Sample]:
    """Return what measuring the made-up machine would give."""
    cases = grid(CPU, machine.dtypes, machine.inside, machine.across, graphs=False)
    return [alter(Sample(case, seconds(case))) for case in cases]
