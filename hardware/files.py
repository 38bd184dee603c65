"""Reading small YAML files that people wrote: safely, with one clear error for each way to be wrong."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import CatalogueError, MeshwrightError

if TYPE_CHECKING:
    import yaml

MAX_YAML_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32


def beside(folder: Path, name: str) -> str:
    """Return the path of what a file names: in its own folder if it lies there, else the name as it is."""
    own = folder / Path(name).expanduser()
    looks_like_path = "/" in name or own.suffix in (".json", ".yaml", ".yml", ".toml")
    return str(own) if looks_like_path and own.exists() else name


def read_text(path: Path, max_bytes: int = MAX_YAML_BYTES) -> str:
    """Return the UTF-8 text of a small regular file.

    Raises
    ------
    CatalogueError
        If the file is missing, a folder or device, too large, unreadable or not UTF-8 text.
    """
    where = str(path)
    if not path.is_file():
        kind = "no regular file" if path.exists() else "missing"
        found = "a folder" if path.is_dir() else kind
        raise CatalogueError(where, "file", found, "an existing file", "checking the path")
    try:
        with path.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        raise CatalogueError(where, "file", error.strerror, "a readable file") from error
    if len(raw) > max_bytes:
        raise CatalogueError(where, "size", f"over {max_bytes} bytes", f"at most {max_bytes} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogueError(where, "text", "binary data", "UTF-8 text") from error


def unique_keys(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return what ``json.loads`` needs as ``object_pairs_hook`` to refuse a key that is written twice."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object as a dictionary."""
        counts = Counter(name for name, _ in pairs)
        if len(counts) < len(pairs):
            raise MeshwrightError(f"{where} {counts.most_common(1)[0][0]!r} is given twice")
        return dict(pairs)

    return build


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping that a YAML (or JSON) text holds, read as :mod:`meshwright.hardware.yaml_core` says.

    Plain data only: tags, anchors and aliases (the means of YAML bombs) and repeated keys are refused.

    Raises
    ------
    CatalogueError
        If the text is no YAML, holds what is refused, or its top level is not a mapping with text keys.
    """
    import yaml

    from meshwright.hardware.yaml_core import loader_class

    loader = loader_class()
    try:
        _check_events(yaml.parse(text, Loader=loader), where)
        data = yaml.load(text, Loader=loader)  # a SafeLoader subclass
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise CatalogueError(where, "text", f"{problem}{place}", "valid YAML") from error
    except CatalogueError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise CatalogueError(where, "text", str(error), "valid YAML scalars") from error
    odd = [key for key in data if not isinstance(key, str)] if isinstance(data, dict) else []
    if odd:
        raise CatalogueError(where, "key", odd[0], "text keys", "quoting it")
    if not isinstance(data, dict):
        raise CatalogueError(where, "top level", type(data).__name__, "a mapping of field names to values")
    return data


def read_yaml(path: Path, max_bytes: int = MAX_YAML_BYTES) -> dict[str, Any]:
    """Return the mapping in a YAML file; see :func:`read_text` and :func:`parse_yaml` for errors."""
    return parse_yaml(read_text(path, max_bytes), str(path))


def _check_events(events: "Iterable[yaml.Event]", where: str) -> None:
    """Refuse anchors, aliases, tags and deep nesting before anything is built from them."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise CatalogueError(where, "text", "an anchor or alias", "plain YAML without & and *")
        if (tag := getattr(event, "tag", None)) is not None:
            raise CatalogueError(
                where, "text", f"the tag {tag}", "plain YAML; text that looks like a number in quotes"
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise CatalogueError(where, "text", "deep nesting", f"at most {MAX_DEPTH} levels")
