"""Published measurements: one row is one training run as its source printed it.

The schema is described in ``data/README.md``. A row is kept as printed: what a row leaves open is filled in
by :mod:`benchmarks.row_model`, :mod:`benchmarks.row_cluster` and :mod:`benchmarks.row_strategy`, each filling
recorded as an assumption.
"""

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from benchmarks.row_fields import problem_of
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import unique_keys
from meshwright.hardware.units import MIB

BUILT_IN: Final = Path(__file__).parent / "data" / "train.jsonl.xz"
MAX_BYTES: Final = 256 * MIB
"""Of a file's text; a small compressed one may hold any amount."""
TRUSTED: Final = ("A", "B")
COUNTERS: Final = ("nvidia-smi", "allocated", "active", "reserved")
"""What may have counted a peak of memory: all of the device, or what PyTorch's allocator tells."""


class RowError(MeshwrightError):
    """A row that cannot be read; names the file, the line, the field and what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published run; fields as in the data's schema, None where the source does not say.

    Attributes
    ----------
    heads, kv_heads, ffn_hidden
        Sizes of the dense part; ``ffn_hidden`` is the width of one branch.
    moe
        Sizes of the mixture of experts and of latent attention, as the source names them.
    micro_batch, global_batch
        Sequences.
    outcome
        ``ok`` or ``oom`` (ended out of memory).
    step_time_s
        The target; None where only memory or the outcome is known.
    trust
        ``A``, ``B`` or ``C``; None for runs out of memory.
    """

    id: str
    family: str
    source: str
    ref: str
    model_name: str
    framework: str
    outcome: str
    notes: str = ""
    year: int | None = None
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    gated_mlp: bool | None = None
    moe: Mapping[str, Any] | None = field(default=None, hash=False)
    accelerator: str | None = None
    accelerator_as_printed: str | None = None
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    intra_bw_note: str | None = None
    inter_bw_note: str | None = None
    precision: str | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    sequence_parallel: bool | None = None
    sharding: str | None = None
    sharding_as_printed: str | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    recompute: str | None = None
    schedule: str | None = None
    flash_attention: bool | None = None
    torch_compile: bool | None = None
    optimizer: str | None = None
    tuning: str | None = None
    lora: int | None = None
    offload: str | None = None
    step_time_s: float | None = None
    step_time_from: str | None = None
    peak_memory_gib: float | None = None
    memory_metric: str | None = None
    trust: str | None = None
    extra: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def trusted(self) -> bool:
        """Whether its settings are complete, or nearly (trust A or B)."""
        return self.trust in TRUSTED

    def stated(self, name: str) -> Any:
        """Return what only this source states under a name, None if it does not."""
        return None if self.extra is None else self.extra.get(name)


NO_STEP: Final = "not a training step"
"""What the notes of a row say whose peak was seen while a model was loaded or wrapped."""
REQUIRED: Final = ("id", "family", "source", "ref", "model_name", "framework", "outcome")
_KNOWN: Final = frozenset(f.name for f in fields(Row))


def row_from(values: Mapping[str, Any], where: str = "row") -> Row:
    """Return a checked row.

    Raises
    ------
    RowError
        If a field is unknown or missing, or its value of another type, out of range or no known word.
    """
    for name in values:
        if name not in _KNOWN:
            raise RowError(f"{where}: {name!r} is not a field; allowed: {', '.join(sorted(_KNOWN))}")
    for name in REQUIRED:
        if not isinstance(values.get(name), str):
            raise RowError(f"{where}: {name} is {values.get(name)!r}; a text is required")
    problem = problem_of(Row, values)
    if problem:
        raise RowError(f"{where}: {problem}")
    return Row(**values)


def read_rows(path: Path = BUILT_IN) -> tuple[Row, ...]:
    """Return the rows of a ``.jsonl`` file, compressed if its name ends in ``.xz``.

    Raises
    ------
    RowError
        If the file cannot be read, a line is no JSON object, a row is wrong or an id stands twice.
    """
    lines = enumerate(text_of(path).split("\n"), start=1)
    rows = tuple(_parse(line, f"{path}, line {n}") for n, line in lines if line.strip())
    _refuse_twins(rows, path)
    return rows


def text_of(path: Path) -> str:
    """Return the text of a file of rows, decompressed if its name ends in ``.xz``; raises RowError."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise RowError(f"{path}: over {MAX_BYTES} bytes of text; split it into smaller files")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise RowError(f"{path}: cannot be read ({error}); a .jsonl or .jsonl.xz file is expected") from error


def _parse(line: str, where: str) -> Row:
    try:
        values = json.loads(line, object_pairs_hook=unique_keys(f"{where}: field"))
    except MeshwrightError as error:
        raise RowError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise RowError(f"{where}: not JSON that can be read ({error}); one object a line") from error
    if not isinstance(values, dict):
        raise RowError(f"{where}: a JSON object is expected")
    return row_from(values, where)


def _refuse_twins(rows: Iterable[Row], path: Path) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise RowError(f"{path}: id {row.id!r} stands twice")
        seen.add(row.id)


def features(row: Row) -> frozenset[str]:
    """Return what a row exercises: ``moe``, ``cp``, ``fp8`` (8 or 4 bits), ``tuning``, else ``dense``."""
    precision = (row.precision or "").lower()
    found = {
        "moe": row.moe is not None,
        "cp": (row.cp or 1) > 1,
        "fp8": any(word in precision for word in ("fp8", "float8", "fp4")),
        "tuning": not (row.tuning or "full").lower().startswith("full"),
    }
    return frozenset(name for name, here in found.items() if here) or frozenset({"dense"})


def step_peak_gib(row: Row) -> float | None:
    """Return the peak that a row prints of a training step; None where no step ended or was run."""
    return row.peak_memory_gib if row.outcome == "ok" and NO_STEP not in row.notes else None


def counter_of(row: Row) -> str:
    """Return what counted a row's peak memory: the first of :data:`COUNTERS` named, else ``not stated``."""
    said = (row.memory_metric or row.notes).lower()
    named = [(said.find(word), word) for word in COUNTERS if word in said]
    return min(named)[1] if named else "not stated"
