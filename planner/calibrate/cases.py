"""What is measured: small pieces of training, as data, and the grids of them for a machine.

A case says what runs and nothing about how; :mod:`meshwright.planner.calibrate.bench` runs it with PyTorch,
:mod:`meshwright.planner.calibrate.fits` explains its time by the cost models. Samples (a case and its
seconds) are written one a line as JSON, so that later runs can be merged with them.
"""

import json
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Final, Literal, get_args

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import unique_keys
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
MAX_SAMPLES: Final = 100_000
SHORTEST_S: Final = 1e-9
"""Of a case: a cycle or two of any processor's clock."""
LONGEST_S: Final = 1e4
"""Of a case: hours, where the largest take seconds."""


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


def to_lines(samples: Iterable[Sample]) -> str:
    """Return samples as text, one JSON object a line."""
    rows = ({"kind": type(s.case).__name__.lower(), **asdict(s.case), "seconds": s.seconds} for s in samples)
    return "".join(json.dumps(row) + "\n" for row in rows)


def from_lines(text: str, where: str) -> list[Sample]:
    """Return the samples in a text.

    Raises
    ------
    MeshwrightError
        Naming the line, the field and what is allowed.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_SAMPLES:
        raise MeshwrightError(f"{where}: {len(lines)} lines; at most {MAX_SAMPLES} samples are read")
    return [_sample(line, f"{where}: line {number}") for number, line in enumerate(lines, start=1)]


def _sample(line: str, where: str) -> Sample:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys(f"{where}: field"))
    except MeshwrightError:
        raise
    except (ValueError, RecursionError):
        raise MeshwrightError(f"{where}: no JSON object") from None
    if not isinstance(row, dict) or row.get("kind") not in tuple(KINDS):
        raise MeshwrightError(f"{where}: a JSON object with kind is expected, one of {', '.join(KINDS)}")
    kind, seconds = KINDS[row.pop("kind")], row.pop("seconds", None)
    if not _number(seconds) or not SHORTEST_S <= seconds <= LONGEST_S:
        raise MeshwrightError(
            f"{where}: seconds is {reprlib.repr(seconds)}; a number from {SHORTEST_S:g} to {LONGEST_S:g} is "
            "expected"
        )
    own = {f.name: f for f in fields(kind)}
    unknown = sorted(set(row) - set(own))
    missing = [name for name, f in own.items() if name not in row and f.default is MISSING]
    if unknown or missing:
        raise MeshwrightError(
            f"{where}: {(unknown or missing)[0]!r}; the fields are {', '.join(own)}, seconds"
        )
    for name, value in row.items():
        words = DTYPES if name == "dtype" else get_args(own[name].type)
        _check(own[name].type, words, value, f"{where}: {name}")
    return Sample(kind(**row), float(seconds))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(wanted: Any, words: Sequence[str], value: Any, where: str) -> None:
    """Raise MeshwrightError unless a field's value is of its type: a count, a switch, one of some words."""
    if wanted is int:
        fits, what = _number(value) and 1 <= value <= 10**12 and int(value) == value, "a count"
    elif wanted is bool:
        fits, what = isinstance(value, bool), "true or false"
    else:
        fits, what = isinstance(value, str) and value in words, f"one of {', '.join(words)}"
    if not fits:
        raise MeshwrightError(f"{where} is {reprlib.repr(value)}; {what} is expected")
