"""Rules for feeds: which layers hold experts, how many, how wide, and what stands beside them.

The keys are spelled in many ways; what they mean is shared by the families: dense layers at the start
(``first_k_dense_replace``), experts in every n-th layer (``decoder_sparse_step``,
``interleave_moe_layer_step``, ``moe_layer_freq``), or a list that says it for each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from meshwright.planner.decoder import Sublayer
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.rules import (
    NOT_GIVEN,
    Default,
    Reading,
    Rule,
    amount,
    constant,
    each_layer,
    optional_size,
)

IsRouted: TypeAlias = Callable[[Reading, int], bool]
Feeds: TypeAlias = tuple[Sublayer, ...]

EXPERTS: Final = (
    "num_local_experts",
    "n_routed_experts",
    "num_experts",
    "moe_num_experts",
    "num_moe_experts",
    "n_experts",
    "ffn_config.moe_num_experts",
)
TOPK: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "n_activated_experts",
    "ffn_config.moe_top_k",
)
EXPERT_WIDTH: Final = (
    "moe_intermediate_size",
    "expert_intermediate_size",
    "expert_ffn_hidden_size",
    "moe_ffn_hidden_size",
)
SHARED: Final = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
SHARED_WIDTH: Final = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
DENSE_FIRST: Final = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
ROUTED_NAMES: Final = ("sparse", "moe", "hash_moe")
DENSE_NAMES: Final = ("dense", "mlp")


def routed_layers(first: int = 0) -> IsRouted:
    """Return the test whether a layer holds experts, ``first`` dense layers being the class's default."""
    start = amount(*DENSE_FIRST, default=first, what="layers")

    def is_routed(reading: Reading, layer: int) -> bool:
        """Return whether a layer holds experts."""
        listed = _listed(reading, layer)
        return _stepped(reading, layer, start(reading)) if listed is None else listed

    return is_routed


def _list(reading: Reading, name: str) -> list[Any] | None:
    """Return a list in the file, None if there is none."""
    _, value = reading.config.find((name,))
    if value is MISSING or value is None or (name == "moe_layer_freq" and not isinstance(value, list)):
        return None
    if not isinstance(value, list):
        reading.config.refuse(name, value, "a list")
    return value


def _entry(reading: Reading, name: str, layer: int) -> Any:
    """Return a list's entry for a layer, None if there is no list."""
    values = _list(reading, name)
    if values is not None and layer >= len(values):
        reading.config.refuse(name, values, f"one entry for each of {reading.fields['layers']} layers")
    return None if values is None else values[layer]


def _listed(reading: Reading, layer: int) -> bool | None:
    """Return what a list in the file says of a layer, None where none does."""
    named = _entry(reading, "mlp_layer_types", layer)
    if named is not None:
        if named not in (*ROUTED_NAMES, *DENSE_NAMES):
            reading.config.refuse("mlp_layer_types", named, "sparse or dense")
        return named in ROUTED_NAMES
    chosen = _list(reading, "moe_layers")
    if chosen is not None:
        return layer in chosen
    switched = _entry(reading, "moe_layer_freq", layer)
    return None if switched is None else bool(switched)


def _stepped(reading: Reading, layer: int, start: int) -> bool:
    """Return whether a layer holds experts by the steps that the file names."""

    def step(name: str) -> int:
        """Return one of the steps, 1 by default."""
        return int(optional_size(name, default=1)(reading))

    end = _optional_last(reading)
    dense = _list(reading, "mlp_only_layers") or []
    every = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    regular = all((layer + 1) % step(name) == 0 for name in every)
    return start <= layer <= end and layer not in dense and regular and layer % step("moe_layer_freq") == 0


def _optional_last(reading: Reading) -> int:
    """Return the last layer that may hold experts (``moe_layer_end_index``; -1: the last)."""
    _, value = reading.config.find(("moe_layer_end_index",))
    if value in (MISSING, None, -1):
        return int(reading.fields["layers"]) - 1
    return reading.config.count("moe_layer_end_index", value, "layers", minimum=0)


def shared_experts(default: int = 0, width: Rule | None = None) -> Rule:
    """Return a rule for the shared experts' width: their number times an expert's, or as the file says."""
    number, said = amount(*SHARED, default=default), amount(*SHARED_WIDTH, default=-1)

    def read(reading: Reading) -> int:
        """Read the width of the shared experts together."""
        whole = said(reading)
        if whole >= 0:
            return int(whole)
        one = reading.fields["expert_width"] if width is None else width(reading)
        return int(number(reading) * one)

    return read


def node_limit(groups: int = 1, visited: int = 1) -> Rule:
    """Return a rule for the expert groups that a token may visit, and all; None where none is left out."""
    number = amount("n_group", "num_expert_group", default=groups)
    topk = amount("topk_group", "num_limited_groups", default=visited)

    def read(reading: Reading) -> tuple[int, int] | None:
        """Read the limit and the groups, None where every group may be visited."""
        n, k = number(reading), topk(reading)
        return (int(k), int(n)) if 1 <= k < n else None

    return read


def experts(
    *,
    number: Default = None,
    topk: Default = None,
    width: Rule | None = None,
    default_width: Default = None,
    routed: IsRouted | None = None,
    shared: Rule | None = None,
    limit: Rule | None = None,
    single: bool = False,
    dense: Rule | None = None,
    **switches: Rule,
) -> Rule:
    """Return a rule for the feeds of all layers.

    Parameters
    ----------
    number, topk
        The class's defaults for the routed experts and for those that a token visits; None: required.
    width, default_width
        A rule for an expert's width, or the class's default under the usual keys.
    routed
        Which layers hold experts; by default as the file says, else all.
    shared
        A rule for the shared experts' width together; by default none.
    limit
        A rule for ``node_limit`` and ``groups``; by default none.
    single
        Whether a layer with one expert still has its router (else it is a dense MLP).
    dense
        A rule for the width of layers without experts; by default ``ffn``.
    **switches
        Rules for the other switches of :class:`~meshwright.planner.experts.Experts`.
    """
    return _Feeds(
        number=each_layer(*EXPERTS, default=number),
        visits=each_layer(*TOPK, default=topk),
        width=width or each_layer(*EXPERT_WIDTH, default=default_width),
        is_routed=routed or routed_layers(),
        shared=shared or constant(0),
        limit=limit or constant(None),
        single=single,
        dense=dense or constant(None),
        switches=switches,
    )


@dataclass(frozen=True)
class _Feeds:
    """The rule that :func:`experts` makes: it reads the feed of each layer."""

    number: Rule
    visits: Rule
    width: Rule
    is_routed: IsRouted
    shared: Rule
    limit: Rule
    single: bool
    dense: Rule
    switches: Mapping[str, Rule]

    def __call__(self, reading: Reading) -> Feeds:
        """Read the feeds, one where all are equal."""
        numbers, visited, widths = self.number(reading), self.visits(reading), _tuple(self.width(reading))
        layers = reading.fields["layers"]
        if NOT_GIVEN in (*numbers, *visited, *widths, layers):
            return ()
        limited, groups = self.limit(reading) or (None, None)
        given = {name: rule(reading) for name, rule in self.switches.items()}
        given |= {"node_limit": limited, "groups": groups}
        found: list[Sublayer] = []
        for layer in range(layers):
            if not self.is_routed(reading, layer) or (numbers[layer] == 1 and not self.single):
                found.append(Mlp(self.dense(reading)))
                continue
            # what the shared experts' rule may read
            reading.fields["expert_width"] = one = widths[min(layer, len(widths) - 1)]
            found.append(Experts(numbers[layer], visited[layer], one, self.shared(reading), **given))
        reading.fields.pop("expert_width", None)
        return tuple(found[:1]) if len(set(found)) == 1 else tuple(found)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def if_given(rule: Rule) -> Rule:
    """Return a rule that reads experts where the file names several, else the usual dense MLP."""

    def read(reading: Reading) -> Feeds:
        """Read the experts, none where the file names at most one."""
        _, value = reading.config.find(EXPERTS)
        several = isinstance(value, list) or (isinstance(value, int | float) and value > 1)
        return tuple(rule(reading)) if several else ()

    return read
