"""What is trained: all weights, adapters beside frozen ones (LoRA, QLoRA), or all but the first layers.

A tuning is written as text (``lora:r=16,targets=all-linear``, ``qlora``, ``freeze:layers=20``) or as a
mapping with the same words; :func:`meshwright.planner.tuned.tuned` applies it to a model graph.

Sources: LoRA (arXiv 2106.09685), QLoRA (arXiv 2305.14314), the documentation of PEFT and torchtune.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from meshwright.hardware.errors import MeshwrightError

Kind = Literal["full", "lora", "freeze"]

BASES: Final[Mapping[str, float | None]] = {
    "model": None,
    # 4 bits, an 8-bit maximum every 64 weights and an fp32 one every 64 x 256 (double quantisation):
    # 4 + 8/64 + 32/(64 x 256) bits (arXiv 2305.14314, section 3)
    "nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    # the same with an fp32 maximum every 64 weights
    "nf4-single": (4 + 32 / 64) / 8,
    # GPTQ (arXiv 2210.17323) with groups of 128: an fp16 scale and a 4-bit zero point each
    "int4": (4 + (16 + 4) / 128) / 8,
    # LLM.int8 (arXiv 2208.07339): one scale a row, counted as none
    "int8": 1.0,
    "fp8": 1.0,
}
"""Bytes in which a frozen weight of a block is stored; None: the recipe's element."""

RANK: Final = 16
"""Of an adapter unless said; PEFT's and torchtune's recipes use 8 to 64."""
ALL_LINEAR: Final = "all-linear"
EXPERTS: Final = "experts"
ATTENTION: Final = "attention"
MLP: Final = "mlp"

_WORDS: Final[Mapping[str, str]] = {
    "r": "rank",
    "rank": "rank",
    "targets": "targets",
    "base": "base",
    "dropout": "dropout",
    "embeddings": "train_embeddings",
    "train_embeddings": "train_embeddings",
    "layers": "frozen_layers",
    "frozen_layers": "frozen_layers",
    "streams": "frozen_streams",
    "frozen_streams": "frozen_streams",
}
"""Words of a text or a mapping, and the fields that they set."""
_LISTS: Final = ("targets", "frozen_streams")
_YES_NO: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is trained of a model.

    Attributes
    ----------
    kind
        ``full`` trains every weight; ``lora`` freezes them and trains adapters beside the products that
        ``targets`` name; ``freeze`` trains whole layers and freezes the first ones.
    rank
        Inner width of an adapter.
    targets
        Products that get adapters: ``all-linear`` (every linear layer of the blocks but experts and
        routers), ``attention``, ``mlp``, ``experts`` (an adapter for each expert), a module (``q``, ``k``,
        ``v``, ``o``, ``gate``, ``up``, ``down``; PEFT's ``q_proj`` means the same) or an operator's
        name.
    base
        How the frozen linear weights of the blocks are stored (:data:`BASES`); ``model`` is the recipe's 16
        bits. Embedding, norms, router and head keep them in any case.
    dropout
        Probability of dropout before an adapter; any but zero costs a mask and a copy of its input.
    train_embeddings
        Whether embedding and head are trained too (``lora``; PEFT's ``modules_to_save``), or the embedding
        stays trained though blocks behind it are frozen (``freeze``).
    frozen_layers
        The first so many blocks of the main stream are frozen and get no adapters.
    frozen_streams
        Token streams whose layers are frozen and get no adapters (``patches``: those of a vision tower).

    Raises
    ------
    MeshwrightError
        If a value is not allowed, or settings contradict each other.
    """

    kind: Kind = "full"
    rank: int = RANK
    targets: tuple[str, ...] = (ALL_LINEAR,)
    base: str = "model"
    dropout: float = 0.0
    train_embeddings: bool = False
    frozen_layers: int = 0
    frozen_streams: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise _wrong("kind", self.kind, f"one of {', '.join(get_args(Kind))} (or qlora)")
        if self.base not in BASES:
            raise _wrong("base", self.base, f"one of {', '.join(BASES)}")
        for name, least in (("rank", 1), ("frozen_layers", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**6:
                raise _wrong(name, value, f"an integer from {least} to 1,000,000")
        for name in _LISTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(v, str) and v for v in value):
                raise _wrong(name, value, "a list of names")
        if not self.targets:
            raise _wrong("targets", self.targets, "at least one name, such as all-linear")
        if not isinstance(self.train_embeddings, bool):
            raise _wrong("train_embeddings", self.train_embeddings, "true or false")
        dropout = self.dropout
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise _wrong("dropout", dropout, "a number in [0, 1)")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        plain = Tuning.__dataclass_fields__
        own: Mapping[str, tuple[str, ...]] = {
            "full": ("kind",),
            "lora": tuple(plain),
            "freeze": ("kind", "train_embeddings", "frozen_layers", "frozen_streams"),
        }
        for name in plain:
            if name not in own[self.kind] and getattr(self, name) != plain[name].default:
                raise MeshwrightError(
                    f"tuning: {name} {getattr(self, name)!r} has no meaning with kind {self.kind!r}; "
                    "leave it out, or use kind 'lora'"
                )
        if self.kind == "freeze" and not (self.frozen_layers or self.frozen_streams):
            raise MeshwrightError(
                "tuning: kind 'freeze' freezes nothing; give frozen_layers (freeze:layers=20) or "
                "frozen_streams (freeze:streams=patches)"
            )

    @property
    def stored_bytes(self) -> float | None:
        """Bytes of a frozen linear weight of a block; None: the recipe's element."""
        return BASES[self.base]

    def __str__(self) -> str:
        """Return the text that reads as this tuning."""
        words = {field: word for word, field in reversed(tuple(_WORDS.items()))}
        said = [f for f in fields(self) if f.name != "kind" and getattr(self, f.name) != f.default]
        if self.kind == "lora" and self.rank == RANK:
            said = [*fields(self)[1:2], *said]
        options = ",".join(f"{words[f.name]}={_written(getattr(self, f.name))}" for f in said)
        return f"{self.kind}:{options}" if options else self.kind


def read_tuning(written: "Tuning | str | Mapping[str, Any] | None") -> Tuning:
    """Return a tuning from text, from a mapping, or as it is; None means ``full``.

    ``qlora`` is ``lora`` with base ``nf4``. In text, items are separated by commas and lists by ``+`` or
    by commas: ``lora:r=16,targets=q,v``.

    Raises
    ------
    MeshwrightError
        If a word is unknown or a value not allowed.
    """
    if written is None:
        return Tuning()
    if isinstance(written, Tuning):
        return written
    if isinstance(written, str):
        return _from_words(*_split(written))
    if isinstance(written, Mapping):
        rest = {str(k): v for k, v in written.items() if k != "kind"}
        return _from_words(written.get("kind", "lora" if rest else "full"), rest)
    raise MeshwrightError(f"tuning: {written!r} is neither text nor a mapping; try 'lora:r=16'")


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the options of a text; an item without ``=`` goes on with the list before it."""
    kind, _, rest = text.strip().partition(":")
    options: dict[str, Any] = {}
    word = None
    for item in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, value = item.partition("=")
        if equals:
            word = name.strip()
            options[word] = value.strip()
        elif word is not None and _WORDS.get(word) in _LISTS:
            options[word] = f"{options[word]}+{item}"
        else:
            raise MeshwrightError(f"tuning: {item!r} in {text!r} is no option; write name=value")
    return kind.strip(), options


def _from_words(kind: Any, options: Mapping[str, Any]) -> Tuning:
    unknown = [word for word in options if word not in _WORDS]
    if unknown:
        raise MeshwrightError(f"tuning: {unknown[0]!r} is not an option; allowed: {', '.join(_WORDS)}")
    values = {_WORDS[word]: _value(_WORDS[word], value) for word, value in options.items()}
    if kind == "qlora":
        values = {"base": "nf4", **values}
        kind = "lora"
    return Tuning(kind=kind, **values)


def _value(name: str, written: Any) -> Any:
    """Return a value in its field's type where the text allows it; the rest is refused by the class."""
    if name in _LISTS:
        items = written.replace(",", "+").split("+") if isinstance(written, str) else written
        return tuple(items) if isinstance(items, Sequence) else items
    if not isinstance(written, str):
        return written
    if name == "train_embeddings":
        return _YES_NO.get(written.lower(), written)
    if name in ("rank", "frozen_layers"):
        # int() refuses thousands of digits.
        return int(written) if written.isdecimal() and len(written) < 10 else written
    if name == "dropout":
        try:
            return float(written)
        except ValueError:
            return written
    return written


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong(name: str, value: Any, allowed: str) -> MeshwrightError:
    return MeshwrightError(f"tuning: {name} {reprlib.repr(value)} is not {allowed}")
