"""A plan: every decision, explicit, as a frozen record that round-trips through JSON."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import permutations
from pathlib import Path
from typing import Any

from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import read_text, unique_keys
from meshwright.hardware.units import MIB

SCHEMA_VERSION = 2
MAX_PLAN_BYTES = 16 * MIB
"""Of a plan's file, a thousand times what the largest model takes."""
RECOMPUTE_MODES = ("none", "selective", "moe", "offload", "full")
PLACEMENTS = tuple(("tp", *rest) for rest in permutations(("cp", "dp", "pp")))
"""Orders in which the dimensions may lie on the topology, innermost first; tensor groups stay innermost."""
KV_EXCHANGES = ("ring", "all_gather")
"""How context ranks see each other's keys and values: passed round a ring, or gathered first."""

JOB_FIELDS = (
    "global_batch_size",
    "sequence_length",
    "target_length",
    "image_tokens",
    "tuning",
    "expert_load",
    "recompute_modules",
    "precision",
    "optimizer",
    "target",
    "profile",
    "loss",
)
"""Fields of a plan that make the job that it was planned for."""

HEADROOM = 0.04
"""The headroom where nobody asks for another, and of plans that do not record it."""

_LATER = {"recompute_modules": (), "headroom": HEADROOM, "parameters": None, "hidden_size": None}
"""Fields that plans of this version did not always have, and what their absence means."""

_BOUNDS = {"zero_stage": (0, 3), "parameters": (1, 10**15)}
"""The least and the largest value of whole numbers that may be 0 or very large."""


def full_placement(names: Sequence[str]) -> tuple[str, ...]:
    """Return an order of all four dimensions: where ``cp`` is not named it lies next to ``tp``."""
    found = tuple(names)
    return found if "cp" in found or found[:1] != ("tp",) else ("tp", "cp", *found[1:])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of consecutive layers on one pipeline rank; ``stop`` is exclusive.

    Layer 0 is the embedding and the last layer the head (see :class:`~meshwright.planner.graph.ModelGraph`).
    """

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained on a cluster.

    Attributes
    ----------
    tuning
        What is trained: ``full``, or adapters and frozen parts (:mod:`meshwright.planner.tuning`).
    target_length, image_tokens
        Lengths of the job beside ``sequence_length``, None where the model has no such stream.
    expert_load
        Rows of the busiest expert rank over the mean that the plan was priced with.
    headroom
        Fraction of a device's usable memory that the plan was asked to leave free.
    parameters, hidden_size
        Of the model that was planned for, by which another model is told apart; None in older plans.
    tp, cp, pp, dp, vpp
        Tensor, context, pipeline and data degree, and chunks (virtual stages) per pipeline rank.
    dp_replicate
        Copies of the sharded states among the ``dp`` ranks (hybrid sharding).
    ep, etp
        Expert and expert-tensor degree, folded over the ``tp x cp x dp`` ranks of a stage.
    hpz
        Ranks that hold a secondary copy of the 16-bit weights together (ZeRO++; 1: none).
    ulysses
        Of the ``cp`` ranks those that exchange heads for tokens; the others exchange keys and values.
    kv_exchange
        One of :data:`KV_EXCHANGES`.
    placement
        Mesh dimensions, innermost first: ``("tp", "cp", "dp", "pp")`` keeps tensor groups on neighbours.
    schedule
        One of :func:`meshwright.costmodels.schedule.names`.
    zero_stage
        0 to 3 (arXiv 1910.02054); 2 with FSDP means parameters are not resharded after the forward pass.
    offload
        What lives in host memory: ``none``, ``optimizer`` or ``parameters``.
    micro_batch_size, num_microbatches
        Sequences per forward pass of a replica, and passes per step.
    chunks
        ``pp * vpp`` chunks in model order.
    recompute
        One of :data:`RECOMPUTE_MODES` for each layer.
    recompute_modules
        What ``selective`` runs again, by names of :data:`meshwright.costmodels.modules.MODULES`; empty: the
        mode's own choice.
    """

    model: str
    cluster: str
    sequence_length: int
    target_length: int | None = None
    image_tokens: int | None = None
    global_batch_size: int
    precision: str
    optimizer: str
    loss: str
    tuning: str = "full"
    expert_load: float = 1.0
    headroom: float = HEADROOM
    parameters: int | None = None
    hidden_size: int | None = None
    target: str
    profile: str
    tp: int
    cp: int = 1
    pp: int
    dp: int
    dp_replicate: int = 1
    ep: int = 1
    etp: int = 1
    hpz: int = 1
    vpp: int
    placement: tuple[str, ...]
    schedule: str
    zero_stage: int
    micro_batch_size: int
    num_microbatches: int
    sequence_parallel: bool
    kv_exchange: str = "ring"
    ulysses: int = 1
    offload: str = "none"
    chunks: tuple[Chunk, ...]
    recompute: tuple[str, ...]
    recompute_modules: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp

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

        A plan of version 1, which knew fewer decisions, is read as what it was: degrees of 1 for the rest.

        Raises
        ------
        MeshwrightError
            If the version is another one, or a field is missing, unknown or of the wrong kind.
        """
        if not isinstance(data, Mapping):
            raise MeshwrightError(f"plan: a mapping is expected, not {type(data).__name__}")
        version = data.get("schema_version")
        if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
            raise MeshwrightError(
                f"plan: schema_version {reprlib.repr(version)} is not 1 to {SCHEMA_VERSION}; plan again"
            )
        data = _upgraded(data) if version == 1 else {**_LATER, **data}
        wanted = {f.name for f in fields(cls)}
        given = set(data) - {"schema_version"}
        for name in sorted(wanted ^ given):
            raise MeshwrightError(
                f"plan: field {reprlib.repr(name)} is {'missing' if name in wanted else 'unknown'}"
            )
        _check_types(data)
        values = {k: data[k] for k in wanted} | {k: float(data[k]) for k in ("expert_load", "headroom")}
        chunks = tuple(Chunk(**c) for c in data["chunks"])
        lists = {name: tuple(data[name]) for name in ("placement", "recompute", "recompute_modules")}
        return cls(**{**values, **lists, "chunks": chunks})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Build a plan from JSON text; raises as :meth:`from_dict` does."""
        try:
            data = json.loads(text, object_pairs_hook=unique_keys("plan: field"))
        except MeshwrightError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise MeshwrightError(f"plan: not JSON ({error})") from None
        return cls.from_dict(data)


def read_plan(path: Path) -> Plan:
    """Return the plan in a file; raises MeshwrightError, naming the file."""
    text = read_text(path, MAX_PLAN_BYTES)
    try:
        return Plan.from_json(text)
    except MeshwrightError as error:
        raise MeshwrightError(f"{path}: {error}") from None


def _upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a version 1 plan with the decisions that came later at what they were then."""
    later = {f.name: f.default for f in fields(Plan) if f.default is not MISSING}
    found = {**{k: v for k, v in later.items() if k not in data}, **data}
    placement = found.get("placement")
    if isinstance(placement, list | tuple):
        found["placement"] = list(full_placement(placement))
    return found


def _check_types(data: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind, naming the field."""
    for f in fields(Plan):
        name, value = f.name, data[f.name]
        if f.type is int or (f.type == int | None and value is not None):
            least, most = _BOUNDS.get(name, (1, 10**12))
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                told = f"from {least} to {most}"
                raise MeshwrightError(
                    f"plan: {name} is {reprlib.repr(value)}; a whole number {told} is expected"
                )
        elif f.type is float:
            least, end = (0, 1) if name == "headroom" else (1, 1e6)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < end:
                told = f"a number from {least} to below {end:g} is expected"
                raise MeshwrightError(f"plan: {name} is {reprlib.repr(value)}; {told}")
        elif f.type in (str, bool):
            if not isinstance(value, f.type):
                kind = "text" if f.type is str else "true or false"
                raise MeshwrightError(f"plan: {name} is {reprlib.repr(value)}; {kind} is expected")
        elif value is not None and not isinstance(value, list | tuple):
            raise MeshwrightError(f"plan: {name} is {reprlib.repr(value)}; a list is expected")
    _check_words(data)
    _check_layers(data)


def _check_words(data: Mapping[str, Any]) -> None:
    """Refuse values that are none of those a decision may have."""
    if data["placement"] is None or tuple(map(str, data["placement"])) not in PLACEMENTS:
        orders = " or ".join(",".join(order) for order in PLACEMENTS)
        raise MeshwrightError(f"plan: placement is {data['placement']!r}; {orders} is expected")
    for name, allowed in (("kv_exchange", KV_EXCHANGES), ("offload", OFFLOADS)):
        if data[name] not in allowed:
            raise MeshwrightError(
                f"plan: {name} is {reprlib.repr(data[name])}; {' or '.join(allowed)} is expected"
            )


def _check_layers(data: Mapping[str, Any]) -> None:
    """Refuse chunks and recompute modes that are none."""
    for name in ("chunks", "recompute", "recompute_modules"):
        if data[name] is None:
            raise MeshwrightError(f"plan: {name} is None; a list is expected")
    for c in data["chunks"]:
        if not isinstance(c, dict) or set(c) != {"rank", "start", "stop"}:
            raise MeshwrightError(f"plan: chunk {reprlib.repr(c)} needs exactly rank, start and stop")
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in c.values()):
            raise MeshwrightError(f"plan: chunk {reprlib.repr(c)} needs non-negative integers")
    for mode in data["recompute"]:
        if mode not in RECOMPUTE_MODES:
            raise MeshwrightError(
                f"plan: recompute {reprlib.repr(mode)} is not one of {', '.join(RECOMPUTE_MODES)}"
            )
