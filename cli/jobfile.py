"""What a command is asked: one YAML job file, the flags that override it, both checked by one schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from meshwright.cli.amounts import amount, length, whole, written_out
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import read_yaml
from meshwright.planner.choice import Choice
from meshwright.planner.job import MOST_RISK, batch_sequences
from meshwright.planner.pins import both, read_pins
from meshwright.planner.plan import RECOMPUTE_MODES

FLAG_NAMES: Final = {
    "global_batch_size": "--global-batch",
    "sequence_length": "--seq-len",
    "micro_batch_size": "--micro-batch",
    "zero_stage": "--zero",
    "time_limit_s": "--time-limit",
    "pins": "--pin",
}
_SHOWN_CHARACTERS: Final = 60
_BATCHES: Final = ("global_batch_size", "global_batch_tokens")
_INSTEAD: Final = (_BATCHES, ("headroom", "oom_risk"))
"""Keys that stand for each other: a later layer's replace those of the layers before."""


def _number(value: Any) -> Any:
    """Return anything but true and false, which are no numbers, as it is."""
    return str(value) if isinstance(value, bool) else value


def _listed(value: Any) -> Any:
    """Return the items of ``a,b,c``."""
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(whole), Field(ge=1, le=10**15)]
Length = Annotated[int, BeforeValidator(length), Field(ge=1, le=10**15)]
Amount = Annotated[int, BeforeValidator(amount), Field(ge=1, le=10**15)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Seconds = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]


class _Schema(BaseModel):
    """Unknown keys are errors: a misspelt one would silently change the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class StrategySchema(_Schema):
    """The strategy that ``estimate`` prices; what is left out gets a default."""

    tp: Count = 1
    cp: Count = 1
    pp: Count = 1
    dp: Count | None = None
    dp_replicate: Count = 1
    ep: Count = 1
    etp: Count = 1
    hpz: Count = 1
    vpp: Count = 1
    micro_batch_size: Count = 1
    zero_stage: Annotated[int, BeforeValidator(whole), Field(ge=0, le=3)] | None = None
    sequence_parallel: Annotated[bool, Field(strict=True)] | None = None
    kv_exchange: Name | None = None
    ulysses: Count = 1
    offload: Name | None = None
    schedule: Name | None = None
    placement: Annotated[tuple[Name, ...], BeforeValidator(_listed)] | None = None
    recompute: Name | tuple[Name, ...] | dict[str | int, Name] | None = None
    layers_per_stage: Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(min_length=1)] | None = (
        None
    )


_RULES: Final = "rules are expected: a mapping such as {tp: 4}, or a list such as ['tp<=8']"
_EXPECTED: Final = {
    "pins": _RULES,
    "limits": _RULES,
    "tuning": "text such as lora:r=16, or a mapping such as {kind: lora, r: 16}, is expected",
    "strategy": f"a mapping is expected, with keys of {', '.join(StrategySchema.model_fields)}",
    "recompute": f"a mode ({', '.join(RECOMPUTE_MODES)}), one for each layer, ranges such as "
    "{0-15: full}, or every-N:MODE is expected",
    "placement": "the dimensions, innermost first, are expected: tp,cp,dp,pp",
    "layers_per_stage": "the layers of each chunk are expected, whole numbers of at least 1: 7,8,8,7",
}
"""What fields of several kinds take."""
_SAID: Final = {
    "bool_type": "true or false is expected",
    "int_parsing": "a whole number is expected",
    "float_parsing": "a number is expected",
}
"""What is expected, where pydantic tells of its own inside."""


class JobSchema(_Schema):
    """A job file. Every key may be missing there and be given by a flag."""

    model: Name | None = None
    cluster: Name | None = None
    global_batch_size: Count | None = None
    global_batch_tokens: Count | None = None
    sequence_length: Length | None = None
    target_length: Length | None = None
    image_tokens: Length | None = None
    precision: Name | None = None
    optimizer: Name | None = None
    tuning: Name | dict[str, Any] | None = None
    expert_load: Annotated[float, BeforeValidator(_number), Field(ge=1, le=10**6)] | None = None
    recompute_modules: Name | list[Name] | None = None
    mtp: Annotated[bool, Field(strict=True)] | None = None
    target: Name | None = None
    profile: Name | None = None
    loss: Name | None = None
    headroom: Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)] | None = None
    oom_risk: Annotated[float, BeforeValidator(_number), Field(gt=0, le=MOST_RISK)] | None = None
    tokens: Amount | None = None
    pins: dict[str, Any] | list[str] = Field(default_factory=dict)
    limits: dict[str, Any] | list[str] = Field(default_factory=dict)
    allow_idle: Annotated[bool, Field(strict=True)] | None = None
    time_limit_s: Seconds | None = None
    strategy: StrategySchema | None = None


@dataclass(frozen=True)
class Request:
    """A checked request: ``job`` and ``strategy`` hold only what was given."""

    model: str
    cluster: str
    job: Mapping[str, Any]
    strategy: Mapping[str, Any] | None
    time_limit_s: float | None


def read_request(flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Request:
    """Merge defaults, the job file that ``flags["job_file"]`` names, and the flags, later ones winning.

    ``flags`` has the schema's keys, those of the strategy beside the others; None means not given.

    Raises
    ------
    MeshwrightError
        If the file cannot be read, a key is unknown, missing, given twice or has a bad value.
    """
    path = flags.get("job_file")
    layers = [dict(defaults or {})]
    if path is not None:
        layers.append(_beside(Path(path), _given(JobSchema, read_yaml(Path(path)), str(path))))
    layers.append(_from_flags(flags))
    return _request(_merged(layers))


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, those of the strategy under their key, checked."""
    given = _with_tuning({k: v for k, v in flags.items() if v is not None and v != [] and v != ()})
    strategy = {k: v for k, v in given.items() if k in StrategySchema.model_fields}
    job = {k: v for k, v in given.items() if k in JobSchema.model_fields}
    if strategy and flags.get("plan") is not None:
        raise MeshwrightError(
            f"{_where(None, next(iter(strategy)))} cannot stand beside --plan, which says it all"
        )
    found = _given(JobSchema, job, None)
    return found | ({"strategy": _given(StrategySchema, strategy, None)} if strategy else {})


def _with_tuning(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags with the short word for an adapter's rank written out."""
    if "lora" not in flags:
        return flags
    if "tuning" in flags:
        raise MeshwrightError("--lora cannot stand beside --tuning, which says what is trained; give one")
    return flags | {"tuning": f"lora:r={flags['lora']}"}


def _given(schema: type[_Schema], data: Mapping[str, Any], path: str | None) -> dict[str, Any]:
    """Return the keys that are set in ``data`` as the schema reads them; ``path`` None means flags."""
    try:
        found = schema.model_validate(dict(data)).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise MeshwrightError(_explain(error, path)) from None
    found = {k: v for k, v in found.items() if v is not None}
    if all(key in found for key in _BATCHES):
        raise MeshwrightError(_where(path, "global_batch_tokens") + " cannot stand beside global_batch_size")
    rules = [found.pop(key) for key in ("pins", "limits") if key in found]
    if rules:
        found["pins"] = _together([read_pins(r) for r in rules])
    return found


def _together(parts: list[dict[str, Choice]]) -> dict[str, Choice]:
    """Return choices that hold together."""
    merged: dict[str, Choice] = {}
    for part in parts:
        for name, new in part.items():
            merged[name] = both(name, merged[name], new) if name in merged else new
    return merged


def _explain(error: ValidationError, path: str | None) -> str:
    """Return one sentence for the first problem that pydantic found."""
    first = error.errors(include_url=False)[0]
    loc = first["loc"]
    # What follows a field's name are pydantic's own names of the kinds that it tried.
    fields = loc[:2] if loc[0] == "strategy" and loc[1:2] and str(loc[1]) != "StrategySchema" else loc[:1]
    key = ".".join(map(str, fields))
    if first["type"] == "extra_forbidden":
        schema = StrategySchema if first["loc"][0] == "strategy" else JobSchema
        near = get_close_matches(str(first["loc"][-1]), schema.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(schema.model_fields)}"
        return f"{_where(path, key)} is not a key of a job file; {hint}"
    shown = repr(first["input"])
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."
    said = _SAID.get(first["type"]) or first["msg"][:1].lower() + first["msg"][1:]
    open_ = written_out(first["input"]) if first["type"].startswith("int_") else ""
    wanted = _EXPECTED.get(str(fields[-1])) or said + open_
    return f"{_where(path, key)} is {shown}; {wanted}"


def _where(path: str | None, key: str) -> str:
    """Name the place of a key: a flag, or a file and its key."""
    return f"{path}: {key}" if path else FLAG_NAMES.get(key, "--" + key.replace("_", "-"))


def _beside(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Resolve the paths in a job file against its folder; a bare name stays a name."""
    for key in ("model", "cluster", "profile"):
        value = found.get(key, "")
        if "/" in value or Path(value).suffix in (".json", ".yaml", ".yml", ".toml"):
            found[key] = str(path.parent / Path(value).expanduser())
    return found


def _merged(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Lay the layers over each other; pins and the strategy key by key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for keys in _INSTEAD:
            if any(key in layer for key in keys):
                merged = {k: v for k, v in merged.items() if k not in keys}
        for key, value in layer.items():
            nested = isinstance(value, dict) and key != "tuning"
            merged[key] = {**merged.get(key, {}), **value} if nested else value
    return merged


def _request(data: dict[str, Any]) -> Request:
    """Return the request; raises MeshwrightError if a key that a job needs is missing."""
    for key in ("model", "cluster", "sequence_length"):
        if key not in data:
            raise MeshwrightError(
                f"{key} is missing: give {_where(None, key)} or the key {key} in a job file"
            )
    job = {k: v for k, v in data.items() if k not in ("model", "cluster", "strategy", "time_limit_s")}
    if not {"global_batch_size", "global_batch_tokens"} & set(job):
        raise MeshwrightError(
            "global_batch_size is missing: give --global-batch (sequences) or --global-batch-tokens, or the "
            "key global_batch_size or global_batch_tokens in a job file"
        )
    job["global_batch_size"] = batch_sequences(job)
    job.pop("global_batch_tokens", None)
    return Request(
        model=data["model"],
        cluster=data["cluster"],
        job=job,
        strategy=data.get("strategy"),
        time_limit_s=data.get("time_limit_s"),
    )
