"""Names to machines: the built-in data files, and the user's own.

``load_cluster("dgx-h100:16")`` gives sixteen nodes, ``load_cluster("tpu-v5e-pod:4x8")`` a slice of a pod,
``load_cluster("dgx-a100:4@100GbE")`` nodes behind another network (:mod:`meshwright.hardware.network`),
``load_cluster("a10g:1")`` one bare device on a host, ``load_cluster("mine.yaml")`` a file of one's own
(``data/examples/`` has one). Listing reads no file; loading reads and validates only what is asked for.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from meshwright.hardware.errors import CatalogueError, UnknownNameError
from meshwright.hardware.files import parse_yaml, read_text, read_yaml
from meshwright.hardware.network import Network, read_network, split_network, with_network
from meshwright.hardware.spec import Accelerator, Cluster

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

DATA_DIR: Final = Path(__file__).resolve().parent / "data"
MAX_COUNT: Final = 1_000_000
YAML_SUFFIXES: Final = (".yaml", ".yml", ".json")

ModelT = TypeVar("ModelT", bound="BaseModel")


def accelerator_names() -> tuple[str, ...]:
    """Return the names of the built-in accelerators, sorted."""
    return tuple(sorted(_files("accelerators")))


def cluster_names() -> tuple[str, ...]:
    """Return the names of the built-in nodes, racks and pods, sorted."""
    return tuple(sorted(_files("nodes")))


@lru_cache(maxsize=2)
def aliases(kind: str) -> dict[str, str]:
    """Return alias to name for ``kind`` ``accelerators`` or ``nodes``.

    Only the one line ``aliases: [...]`` of each file is read.
    """
    table: dict[str, str] = {}
    for name, path in _files(kind).items():
        for line in read_text(path).splitlines():
            if line.startswith("aliases:"):
                table.update(dict.fromkeys(parse_yaml(line, str(path))["aliases"], name))
    return table


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """Return an accelerator by name, alias or path of a YAML file.

    Raises
    ------
    UnknownNameError
        If no built-in accelerator has this name.
    CatalogueError
        If the file cannot be read or a field in it is wrong.
    """
    if _is_path(name_or_path):
        return _accelerator_file(Path(name_or_path))
    return _builtin_accelerator(_resolve("accelerator", "accelerators", str(name_or_path)))


def load_cluster(text_or_path: str | Path) -> Cluster:
    """Return a cluster from ``NAME``, ``NAME:COUNT``, ``NAME:AxBxC``, or a YAML file, ``@NETWORK`` or not.

    ``NAME`` is a node, rack or pod of :func:`cluster_names` (``COUNT`` of them, joined by its scale-out
    network), or an accelerator (``COUNT`` bare devices on one host). ``AxBxC`` is a slice of a torus
    pod. A file says its count itself; ``mine.yaml:4`` overrides it. ``NAME:COUNT@100GbE`` has another network
    between its hosts (:func:`~meshwright.hardware.network.read_network`).

    Raises
    ------
    UnknownNameError
        If nothing has this name.
    CatalogueError
        If the count, the slice or the file is wrong.
    """
    if isinstance(text_or_path, Path):
        return _cluster_file(text_or_path)
    text, word = split_network(text_or_path, YAML_SUFFIXES)
    network = None if word is None else read_network(word)
    path, _, count = text.rpartition(":")
    if path.endswith(YAML_SUFFIXES):
        return _cluster_file(Path(path), _count(text, count), network)
    if _is_path(text):
        return _cluster_file(Path(text), network=network)
    return _named_cluster(text.strip().lower(), network)


@lru_cache(maxsize=256)
def _named_cluster(text: str, network: Network | None) -> Cluster:
    from meshwright.hardware.build import box_of

    name, _, tail = text.partition(":")
    shape = _shape(text, tail)
    count = 1 if shape else _count(text, tail) if ":" in text else 1
    known = _files("nodes") | _files("accelerators") | aliases("nodes") | aliases("accelerators")
    if name not in known:
        raise UnknownNameError("cluster (a catalogue's name, or a YAML file)", name, list(known))
    if name in _files("nodes") or name in aliases("nodes"):
        data = _builtin_cluster_data(aliases("nodes").get(name, name))
        return _assemble(data, count, shape, network=network)
    if network is not None:
        hint = "a node of the catalogue, or a YAML file"
        raise CatalogueError(name, "network", network.word, "none between bare devices on one host", hint)
    if shape:
        raise CatalogueError(text, "slice", tail, "a count of devices", f"{name}:8")
    return box_of(load_accelerator(name), count)


def _assemble(
    data: Any,
    count: int,
    shape: tuple[int, ...] | None = None,
    folder: Path | None = None,
    network: Network | None = None,
) -> Cluster:
    from meshwright.hardware.build import cluster_from_data

    own = data if network is None else with_network(data, network)
    found = cluster_from_data(own, _accelerator_of(data.accelerator, data.name, folder), count, shape)
    return found if network is None else replace(found, name=f"{found.name}@{network.word}")


def _accelerator_of(given: str | dict[str, Any], where: str, folder: Path | None) -> Accelerator:
    """Return the accelerator of a cluster file: a name, a path beside the file, or written in place."""
    if isinstance(given, dict):
        from meshwright.hardware.build import accelerator_from_data
        from meshwright.hardware.schema import AcceleratorData

        return accelerator_from_data(_validate(AcceleratorData, given, f"{where}: accelerator"))
    if folder is not None and given.endswith(YAML_SUFFIXES):
        return load_accelerator(folder / given)
    return load_accelerator(given)


def _cluster_file(path: Path, count: int | None = None, network: Network | None = None) -> Cluster:
    from meshwright.hardware.schema import ClusterData

    data = _validate(ClusterData, read_yaml(path), str(path))
    return _assemble(data, count or data.count, folder=path.parent, network=network)


def _accelerator_file(path: Path) -> Accelerator:
    from meshwright.hardware.build import accelerator_from_data
    from meshwright.hardware.schema import AcceleratorData

    return accelerator_from_data(_validate(AcceleratorData, read_yaml(path), str(path)))


@lru_cache(maxsize=256)
def _builtin_accelerator(name: str) -> Accelerator:
    return _accelerator_file(_files("accelerators")[name])


@lru_cache(maxsize=256)
def _builtin_cluster_data(name: str) -> Any:
    from meshwright.hardware.schema import ClusterData

    path = _files("nodes")[name]
    return _validate(ClusterData, read_yaml(path), str(path))


@lru_cache(maxsize=2)
def _files(kind: str) -> dict[str, Path]:
    return {path.stem: path for path in (DATA_DIR / kind).glob("*.yaml")}


def _resolve(what: str, kind: str, text: str) -> str:
    name = text.strip().lower()
    name = aliases(kind).get(name, name)
    if name not in _files(kind):
        raise UnknownNameError(what, text, [*_files(kind), *aliases(kind)])
    return name


def _is_path(given: str | Path) -> bool:
    if isinstance(given, Path):
        return True
    return given.endswith(YAML_SUFFIXES) or os.sep in given or "/" in given


def _count(text: str, tail: str) -> int:
    if not (tail.isascii() and tail.isdigit()) or not 1 <= len(tail) <= 9 or not 1 <= int(tail) <= MAX_COUNT:
        raise CatalogueError(text, "count", tail, f"a whole number from 1 to {MAX_COUNT}", "dgx-h100:16")
    return int(tail)


def _shape(text: str, tail: str) -> tuple[int, ...] | None:
    """Return the axes of ``4x4x8``; ``None`` if the text after the colon is no such product."""
    parts = tail.split("x")
    if len(parts) < 2:
        return None
    return tuple(_count(text, part) for part in parts)


def _validate(model: type[ModelT], data: dict[str, Any], where: str) -> ModelT:
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _readable(error, model, where) from None


_KINDS: Final = ("constrained-", "function-", "dict[", "list[", "tuple[")
"""How pydantic's names of kinds begin, which stand in a place among the names of fields."""


def _readable(error: "ValidationError", model: type["BaseModel"], where: str) -> CatalogueError:
    """Return the first problem as file, field, value, what is allowed."""
    first = error.errors()[0]
    # Where a field is of several kinds pydantic adds its own name of the kind, such as constrained-str.
    parts = [str(part) for part in first["loc"]]
    # Where a field is of several kinds pydantic adds its own name of the kind, such as constrained-str.
    place = ".".join(part for part in parts if not part.startswith(_KINDS)) or "file"
    message = first["msg"].removeprefix("Value error, ")
    messages: dict[str, Callable[[], str]] = {
        "extra_forbidden": lambda: "a known field: " + ", ".join(_siblings(model, first["loc"])),
        "missing": lambda: "this field must be given",
    }
    allowed = messages.get(first["type"], lambda: message)()
    value = "missing" if first["type"] == "missing" else first["input"]
    return CatalogueError(where, place, value, allowed)


def _siblings(model: type["BaseModel"], location: tuple[int | str, ...]) -> list[str]:
    """Return the field names allowed beside the last part of a location inside a model."""
    from typing import get_args

    from pydantic import BaseModel

    def models(annotation: Any) -> list[type[BaseModel]]:
        """Return the models that an annotation names, at any depth."""
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for arg in get_args(annotation) for found in models(arg)]

    for part in location[:-1]:
        inner = models(model.model_fields[part].annotation) if part in model.model_fields else []
        model = inner[0] if inner else model
    return sorted(model.model_fields)
