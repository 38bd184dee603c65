"""A plan: every decision, explicit, as a frozen record that round-trips through JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from meshwright.hardware.errors import MeshwrightError

SCHEMA_VERSION = 1
RECOMPUTE_MODES = ("none", "selective", "full")
PLACEMENTS = (("tp", "dp", "pp"), ("tp", "pp", "dp"))
"""Orders in which the dimensions may lie on the topology, innermost first; tensor groups stay innermost."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of consecutive layers on one pipeline rank; ``stop`` is exclusive.

    Layer 0 is the embedding and the last layer the head (see :class:`~meshwright.planner.graph.ModelGraph`).
    """

    rank: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """How a model is trained on a cluster.

    Attributes
    ----------
    tp, pp, dp, vpp
        Tensor, pipeline and data degree, and chunks (virtual stages) per pipeline rank.
    placement
        Mesh dimensions, innermost first: ``("tp", "dp", "pp")`` keeps tensor groups on neighbours.
    schedule
        ``gpipe``, ``1f1b`` or ``interleaved``.
    zero_stage
        0 to 3 (arXiv 1910.02054); 2 with FSDP means parameters are not resharded after the forward pass.
    micro_batch_size, num_microbatches
        Sequences per forward pass of a replica, and passes per step.
    chunks
        ``pp * vpp`` chunks in model order.
    recompute
        ``none``, ``selective`` or ``full`` for each layer.
    """

    model: str
    cluster: str
    sequence_length: int
    global_batch_size: int
    precision: str
    optimizer: str
    loss: str
    target: str
    profile: str
    tp: int
    pp: int
    dp: int
    vpp: int
    placement: tuple[str, ...]
    schedule: str
    zero_stage: int
    micro_batch_size: int
    num_microbatches: int
    sequence_parallel: bool
    chunks: tuple[Chunk, ...]
    recompute: tuple[str, ...]

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return self.tp * self.pp * self.dp

    @property
    def num_layers(self) -> int:
        """Layers, the embedding and the head included."""
        return len(self.recompute)

    def stage_layers(self, rank: int) -> tuple[int, ...]:
        """Return the layers on pipeline rank ``rank``, chunk by chunk."""
        return tuple(i for c in self.chunks if c.rank == rank for i in range(c.start, c.stop))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the schema's version."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Build a plan from :meth:`to_dict`'s data.

        Raises
        ------
        MeshwrightError
            If the version is another one, or a field is missing, unknown or of the wrong kind.
        """
        if not isinstance(data, Mapping):
            raise MeshwrightError(f"plan: a mapping is expected, not {type(data).__name__}")
        version = data.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise MeshwrightError(f"plan: schema_version {version!r} is not {SCHEMA_VERSION}; plan again")
        wanted = {f.name for f in fields(cls)}
        given = set(data) - {"schema_version"}
        for name in sorted(wanted ^ given):
            raise MeshwrightError(f"plan: field {name!r} is {'missing' if name in wanted else 'unknown'}")
        _check_types(data)
        values = {k: data[k] for k in wanted}
        chunks = tuple(Chunk(**c) for c in data["chunks"])
        lists = {"placement": tuple(data["placement"]), "recompute": tuple(data["recompute"])}
        return cls(**{**values, **lists, "chunks": chunks})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Build a plan from JSON text; raises as :meth:`from_dict` does."""
        try:
            data = json.loads(text, object_pairs_hook=_once)
        except MeshwrightError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise MeshwrightError(f"plan: not JSON ({error})") from None
        return cls.from_dict(data)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's fields, refusing repeated ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MeshwrightError(f"plan: field {twice!r} is given twice")
    return found


def _check_types(data: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind, naming the field."""
    for f in fields(Plan):
        name, value = f.name, data[f.name]
        if f.type is int:
            least = 0 if name == "zero_stage" else 1
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 10**12:
                raise MeshwrightError(
                    f"plan: {name} is {value!r}; a whole number of at least {least} is expected"
                )
        elif f.type in (str, bool):
            if not isinstance(value, f.type):
                raise MeshwrightError(
                    f"plan: {name} is {value!r}; {'text' if f.type is str else 'true or false'} is expected"
                )
        elif not isinstance(value, list | tuple):
            raise MeshwrightError(f"plan: {name} is {value!r}; a list is expected")
    if tuple(map(str, data["placement"])) not in PLACEMENTS:
        orders = " or ".join(",".join(order) for order in PLACEMENTS)
        raise MeshwrightError(f"plan: placement is {data['placement']!r}; {orders} is expected")
    for c in data["chunks"]:
        if not isinstance(c, dict) or set(c) != {"rank", "start", "stop"}:
            raise MeshwrightError(f"plan: chunk {c!r} needs exactly rank, start and stop")
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in c.values()):
            raise MeshwrightError(f"plan: chunk {c!r} needs non-negative integers")
    for mode in data["recompute"]:
        if mode not in RECOMPUTE_MODES:
            raise MeshwrightError(f"plan: recompute {mode!r} is not one of {', '.join(RECOMPUTE_MODES)}")
