"""Rules for mixers: attention of all layers with what differs among them, latent attention, indexers."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from meshwright.planner.decoder import Sublayer, repeated
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.rules import (
    NOT_GIVEN,
    Default,
    Reading,
    Rule,
    amount,
    constant,
    nullable,
    optional_size,
    size,
)
from meshwright.planner.latent import LatentAttention, SparseIndex
from meshwright.planner.mixers import SelfAttention

Mixers: TypeAlias = tuple[Sublayer, ...]
ByLayer: TypeAlias = Callable[[Reading, int, int | None], dict[str, Any]]
"""Further fields of a layer's attention, by its index and window."""
HasRotary: TypeAlias = Callable[[Reading, int, int | None], bool]
"""Whether a layer (by index, with its window) rotates queries and keys."""

KV_RANK: Final = ("kv_lora_rank",)


def compact(mixers: Mixers) -> Mixers:
    """Return one mixer if all are equal."""
    return mixers[:1] if len(set(mixers)) == 1 else mixers


def attention(
    rotary: HasRotary | None = None,
    *,
    chunk: Rule | None = None,
    sinks: bool = False,
    by_layer: ByLayer | None = None,
    **switches: Rule,
) -> Rule:
    """Return a rule for standard attention whose layers differ in more than their ``windows``.

    Parameters
    ----------
    rotary
        Which layers rotate; by default all.
    chunk
        A rule for the chunk of layers that rotate (Llama-4); by default none.
    sinks
        Whether heads have sinks.
    by_layer
        Further fields of a layer's attention, by its index and window.
    **switches
        Rules for other fields of :class:`~meshwright.planner.mixers.SelfAttention`, equal in all layers.
    """
    turns, chunks = rotary or (lambda reading, layer, window: True), chunk or constant(None)

    def read(reading: Reading) -> Mixers:
        """Read the mixer of each layer."""
        layers = max(0, reading.fields["layers"])
        windows = repeated(reading.fields.get("windows", (None,)), layers)
        given = {name: rule(reading) for name, rule in switches.items()}
        length = chunks(reading)

        def mixer(i: int, window: int | None) -> SelfAttention:
            """Return the attention of one layer."""
            turned = turns(reading, i, window)
            inside = length if turned else None
            own = {"sinks": sinks, **given, **(by_layer(reading, i, window) if by_layer else {})}
            return SelfAttention(window, chunk=inside, rotary=turned, **own)

        return compact(tuple(mixer(i, window) for i, window in enumerate(windows)))

    return read


def no_rope_layers(switch: str = "no_rope_layers", interval: int = 4) -> HasRotary:
    """Llama-4, SmolLM3: layers with 1 in ``no_rope_layers`` rotate, by default all but every n-th."""
    every = optional_size("no_rope_layer_interval", default=interval)

    def turns(reading: Reading, layer: int, window: int | None) -> bool:
        """Return whether one layer rotates."""
        _, listed = reading.config.find((switch,))
        if listed is MISSING or not listed:
            return bool((layer + 1) % every(reading))
        if not isinstance(listed, list) or len(listed) <= layer:
            reading.config.refuse(switch, listed, f"one entry for each of {reading.fields['layers']} layers")
        return bool(listed[layer])

    return turns


def sliding_only(reading: Reading, layer: int, window: int | None) -> bool:
    """Cohere2: only layers with a window rotate."""
    return window is not None


def sliding_or_alone(reading: Reading, layer: int, window: int | None) -> bool:
    """EXAONE-4: layers with a window rotate, and all layers where none has one."""
    return window is not None or bool(reading.fields["windows"] == (None,))


def latent(
    kv_rank: Default = None,
    nope: Default = None,
    rope: Default = None,
    value: Default = None,
    q_rank: Default = None,
    index: Rule | None = None,
) -> Rule:
    """Return a rule for multi-head latent attention with the class's defaults; None: required."""
    read_kv, read_q = size(*KV_RANK, default=kv_rank), nullable("q_lora_rank", default=q_rank)
    read_nope, read_rope = size("qk_nope_head_dim", default=nope), amount("qk_rope_head_dim", default=rope)
    read_value = size("v_head_dim", default=value)
    indices = index or constant((None,))

    def read(reading: Reading) -> Mixers:
        """Read the mixer of each layer."""
        sizes = read_kv(reading), read_nope(reading), read_rope(reading), read_value(reading)
        layers, query = reading.fields["layers"], read_q(reading)
        if None in sizes or NOT_GIVEN in (*sizes, layers):
            return ()
        windows = repeated(reading.fields.get("windows", (None,)), layers)
        picks = repeated(indices(reading), layers)
        pairs = zip(windows, picks, strict=True)
        return compact(tuple(LatentAttention(*sizes, query, window=w, index=p) for w, p in pairs))

    return read


def if_latent(rule: Rule) -> Rule:
    """Return a rule that reads latent attention where the file names its rank, else the usual attention."""

    def read(reading: Reading) -> Mixers:
        """Read the mixers, none where heads are not latent."""
        _, value = reading.config.find(KV_RANK)
        return () if value is MISSING or value is None else tuple(rule(reading))

    return read


def head_dim(nope: int, rope: int) -> Rule:
    """Return a rule for the features of a query's head: those with and without rotation."""
    plain, turned = amount("qk_nope_head_dim", default=nope), amount("qk_rope_head_dim", default=rope)
    return lambda reading: plain(reading) + turned(reading)


def indexer(heads: int, dim: int, topk: int) -> Rule:
    """Return a rule for the indexer of each layer (DeepSeek-V3.2, GLM-5), with the class's defaults."""
    read_heads, read_dim = size("index_n_heads", default=heads), size("index_head_dim", default=dim)
    read_topk = size("index_topk", default=topk)

    def read(reading: Reading) -> tuple[SparseIndex, ...]:
        """Read the indexer of each layer."""
        sizes = read_heads(reading), read_dim(reading), read_topk(reading)
        layers = max(1, reading.fields["layers"])
        return tuple(SparseIndex(*sizes, shared=_is_shared(reading, i)) for i in range(layers))

    return read


def _is_shared(reading: Reading, layer: int) -> bool:
    """Return whether a layer reads an earlier one's choice: as listed, by pattern, or every n-th chooses."""
    for name in ("indexer_types", "index_topk_pattern"):
        _, listed = reading.config.find((name,))
        if listed is not MISSING and listed is not None:
            return _entry(reading, name, listed, layer) in ("shared", "S")
    every = optional_size("index_topk_freq", default=1)(reading)
    offset = amount("index_skip_topk_offset", default=2)(reading)
    return bool(max(layer - offset + 1, 0) % every)


def _entry(reading: Reading, name: str, listed: Any, layer: int) -> Any:
    if not isinstance(listed, list | str) or len(listed) <= layer:
        reading.config.refuse(name, listed, f"one entry for each of {reading.fields['layers']} layers")
    return listed[layer]
