"""What a module's forward pass did, as plain data: values, operations and calls; nothing of torch in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.hardware.errors import MeshwrightError


class TraceError(MeshwrightError):
    """A module cannot be read: names where, what happened there and what to try."""

    def __init__(self, where: str, what: str, hint: str) -> None:
        super().__init__(f"module: {where}: {what}; try {hint}")
        self.where = where


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the module: its first name, shape and whether it is trained."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        """Its number of elements."""
        return numel(self.shape)


@dataclass(slots=True)
class Value:
    """A tensor of the trace.

    Attributes
    ----------
    shape
        As the operation returned it.
    producer
        Index of the operation that made it; None for weights, inputs and constants.
    weight
        The parameter that it is.
    active
        Whether it depends on a weight or on a floating input: what training moves and keeps. Positions,
        masks and rotary tables are not.
    from_input
        Whether it depends on an input.
    floating
        Whether its elements are floating-point numbers.
    random
        Whether it is a draw or follows from one (a dropout mask), weights and inputs aside.
    known
        The tensor itself where it follows from constants alone (masks, positions).
    """

    shape: tuple[int, ...]
    producer: int | None = None
    weight: str | None = None
    active: bool = False
    from_input: bool = False
    floating: bool = True
    random: bool = False
    known: Any = None

    @property
    def size(self) -> int:
        """Its number of elements."""
        return numel(self.shape)


@dataclass(frozen=True, slots=True)
class Ref:
    """A value among an operation's arguments."""

    value: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its overload-free name (``mm``), arguments with values as :class:`Ref`, outputs.

    ``scope`` is the path of the innermost module whose forward pass ran it, ``kind`` that module's class.
    """

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scope: str
    kind: str


@dataclass(slots=True)
class Call:
    """One pass through a submodule: operations ``start`` to ``stop`` and the values that it took and gave."""

    path: str
    kind: str
    start: int
    stop: int = -1
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass
class Trace:
    """All that the importer knows of a module.

    Attributes
    ----------
    weights
        Parameters by their first name; each once, however many modules share it.
    values, ops, calls
        In the order in which they came to be.
    lists
        Containers whose entries are numbered: path to the entries' paths and classes.
    plan
        The module's own tensor-parallel plan: patterns of paths to styles (``colwise``, ``rowwise``).
    attributes
        Numbers, truth values and strings that modules carry (``is_causal``, ``sliding_window``), by path.
    outputs
        Values that the whole module returned.
    """

    weights: dict[str, Weight]
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    lists: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    plan: dict[str, str] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()

    def attribute(self, path: str, *names: str) -> Any:
        """Return the first attribute of these names on a module or the modules around it, else None."""
        while True:
            own = self.attributes.get(path, {})
            for name in names:
                if own.get(name) is not None:
                    return own[name]
            if not path:
                return None
            path = path.rpartition(".")[0]


def numel(shape: tuple[int, ...]) -> int:
    """Return the elements of a shape."""
    size = 1
    for n in shape:
        size *= n
    return size
