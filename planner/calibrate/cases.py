"""What is measured: small pieces of training, as data, and the grids of them for a machine.

A case says what runs and nothing about how; :mod:`meshwright.planner.calibrate.bench` runs it with PyTorch,
:mod:`meshwright.planner.calibrate.fits` explains its time by the cost models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal, get_args

from meshwright.hardware.units import GIB, KIB, MIB

ExchangeName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
EXCHANGES: Final[tuple[ExchangeName, ...]] = get_args(ExchangeName)
Direction = Literal["gather", "scatter"]
UnitWork = Literal["gather", "scatter", "reduce"]
Part = Literal["product", "collective", "both"]
StreamName = Literal["sum", "norm", "gate", "rotary"]
HostName = Literal["operator", "launch", "forward", "backward", "step", "tensor_forward", "tensor_backward"]
TENSOR_PASSES: Final[tuple[HostName, ...]] = ("tensor_forward", "tensor_backward")
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16")
"""What is measured on any machine; each has its bytes and its rate in the cost models."""


@dataclass(frozen=True, slots=True)
class Product:
    """One (m x k)(k x n) product; of a weight's gradient ``k`` are the tokens."""

    dtype: str
    m: int
    n: int
    k: int
    weight_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Core:
    """One causal attention core, forward or backward."""

    dtype: str
    sequences: int
    length: int
    heads: int
    head_dim: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound operator, run eagerly: a sum of two tensors, or one of a transformer layer's."""

    dtype: str
    elements: int
    what: StreamName = "sum"


@dataclass(frozen=True, slots=True)
class Update:
    """One AdamW step over fp32 parameters."""

    elements: int


@dataclass(frozen=True, slots=True)
class Host:
    """What the host needs, with tensors too small to matter.

    ``operator`` one call, ``launch`` one kernel replayed from a graph, ``forward`` and ``backward`` a pass of
    one transformer layer, the same with ``tensor_`` before where the ranks of a host split it, ``step`` an
    optimizer step without parameters to speak of.
    """

    what: HostName


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective over ``inside`` ranks of each of ``across`` hosts; bytes as cost models count them."""

    collective: ExchangeName
    tensor_bytes: int
    inside: int
    across: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A group of fp32 weights, in a data-parallel group of all ranks.

    Gathered or its gradients scattered by FSDP2, or the gradients of whole copies reduced one by one.
    """

    work: UnitWork
    tensor_bytes: int
    inside: int
    across: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Activations of fp32 that the tensor ranks of a host gather, or sum and scatter, as DTensors."""

    direction: Direction
    tensor_bytes: int
    inside: int


@dataclass(frozen=True, slots=True)
class Beside:
    """A product that runs while an all-reduce of ``tensor_bytes`` is under way.

    ``part`` says which of the three times it is: the product's, the collective's, or both at once.
    """

    part: Part
    dtype: str
    size: int
    tensor_bytes: int
    inside: int
    across: int


Case = Product | Core | Stream | Update | Host | Exchange | Unit | Tokens | Beside
KINDS: Final[dict[str, type[Case]]] = {kind.__name__.lower(): kind for kind in get_args(Case)}


@dataclass(frozen=True, slots=True)
class Sample:
    """A case and the seconds that it took."""

    case: Case
    seconds: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of a grid: the unit of a product's sides, and what tensors and messages hold."""

    side: int
    lengths: tuple[tuple[int, int], ...]
    heads: int
    stream_elements: tuple[int, ...]
    update_elements: tuple[int, ...]
    message_bytes: tuple[int, ...]
    unit_bytes: tuple[int, ...]


CPU: Final = Scale(
    side=256,
    lengths=((4, 128), (2, 256), (2, 512), (1, 1024)),
    heads=4,
    stream_elements=(2**17, 2**18, 2**19, 2**21),
    update_elements=(2**18, 2**21, 2**22),
    message_bytes=(4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
    unit_bytes=(MIB, 4 * MIB, 16 * MIB),
)
GPU: Final = Scale(
    side=1024,
    lengths=((8, 512), (4, 1024), (2, 2048), (1, 4096), (1, 8192)),
    heads=16,
    stream_elements=(2**22, 2**24, 2**26, 2**27),
    update_elements=(2**24, 2**26),
    message_bytes=(4 * KIB, 256 * KIB, MIB, 16 * MIB, 128 * MIB, GIB),
    unit_bytes=(16 * MIB, 128 * MIB, 512 * MIB),
)
SIDES: Final = ((2, 2, 2), (8, 2, 2), (4, 4, 1), (8, 1, 4), (2, 4, 4), (8, 4, 2), (4, 1, 1), (1, 2, 2))
"""Rows, columns and inner length of the products, in units of :attr:`Scale.side`."""
NARROW: Final = 64


def grid(scale: Scale, dtypes: Sequence[str], inside: int, across: int, graphs: bool) -> tuple[Case, ...]:
    """Return the cases for a machine, kinds in turn, so that an early end leaves some of each.

    Parameters
    ----------
    dtypes
        That the machine multiplies in; attention and streams run in the first.
    inside, across
        Ranks on each host, and hosts.
    graphs
        Whether kernels can be replayed without the host.
    """
    left_out = ("launch",) * (not graphs) + TENSOR_PASSES * (inside == 1)
    hosts: list[Case] = [Host(what) for what in get_args(HostName) if what not in left_out]
    products: list[Case] = [p for sides in SIDES for d in dtypes for p in _products(scale, d, sides)]
    cores = _cores(scale, dtypes[0])
    operators: tuple[StreamName, ...] = get_args(StreamName)
    streams: list[Case] = [Stream(dtypes[0], n, what) for n in scale.stream_elements for what in operators]
    updates: list[Case] = [Update(n) for n in scale.update_elements]
    kinds = (hosts, products, cores, streams, updates, *_groups(scale, dtypes[0], inside, across))
    return tuple(case for turn in zip_longest(*kinds) for case in turn if case is not None)


def _products(scale: Scale, dtype: str, sides: tuple[int, int, int]) -> tuple[Case, ...]:
    m, n, k = (scale.side * side for side in sides)
    return Product(dtype, m, n, k), Product(dtype, n, k, m, weight_gradient=True)


def _cores(scale: Scale, dtype: str) -> list[Case]:
    shapes = [(s, n, NARROW) for s, n in scale.lengths] + [(*scale.lengths[-2], 2 * NARROW)]
    return [Core(dtype, s, n, scale.heads, d, backward) for s, n, d in shapes for backward in (False, True)]


def _groups(scale: Scale, dtype: str, inside: int, across: int) -> tuple[list[Case], ...]:
    """Return the cases of groups: those within a host, and those of all hosts."""
    where = [(inside, 1)] * (inside > 1) + [(inside, across)] * (across > 1)
    if not where:
        return ()
    exchanges: list[Case] = [
        Exchange(c, b, i, a) for i, a in where for b in scale.message_bytes for c in EXCHANGES
    ]
    works: tuple[UnitWork, ...] = get_args(UnitWork)
    units: list[Case] = [Unit(work, b, inside, across) for b in scale.unit_bytes for work in works]
    ways: tuple[Direction, ...] = get_args(Direction)
    tokens: list[Case] = [Tokens(w, b, inside) for b in scale.unit_bytes for w in ways if inside > 1]
    largest = scale.unit_bytes[1]
    parts: tuple[Part, ...] = get_args(Part)
    besides: list[Case] = [Beside(p, dtype, 4 * scale.side, largest, inside, across) for p in parts]
    return exchanges, units, tokens, besides
