"""Rules for attention windows: which layers see a sliding window and which see all tokens."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.rules import Reading, Rule, flag, optional_size

Windows: TypeAlias = tuple[int | None, ...]
IsSliding: TypeAlias = Callable[[Reading, int], bool]


def compact(windows: Iterable[int | None]) -> Windows:
    """Return the windows of all layers, a single one if they are all equal."""
    each = tuple(windows)
    return each[:1] if len(set(each)) == 1 else each or (None,)


def _listed(reading: Reading, layer_types: Any, window: int) -> Windows:
    """Return windows as ``layer_types`` in the file says, one name a layer."""
    allowed = ("sliding_attention", "full_attention")
    if not isinstance(layer_types, list) or any(name not in allowed for name in layer_types):
        reading.config.refuse("layer_types", layer_types, f"a list of {' and '.join(allowed)}")
    if len(layer_types) != reading.fields["layers"]:
        reading.config.refuse(
            "layer_types", layer_types, f"one entry for each of {reading.fields['layers']} layers"
        )
    return compact(window if name == "sliding_attention" else None for name in layer_types)


def _window(reading: Reading, default: int | None) -> int | None:
    """Return ``sliding_window``: absent means the class default, null means none."""
    name, value = reading.config.find(("sliding_window",))
    if value is MISSING or value is None:
        return default if value is MISSING else None
    return reading.config.count(name, value, "rows")


def windowed(is_sliding: IsSliding, default: int | None = None) -> Rule:
    """Return a rule: ``sliding_window`` on the layers that ``layer_types``, or else ``is_sliding``, names."""

    def read(reading: Reading) -> Windows:
        """Read the window of each layer."""
        window = _window(reading, default)
        if window is None:
            return (None,)
        _, layer_types = reading.config.find(("layer_types",))
        if layer_types is not MISSING and layer_types is not None:
            return _listed(reading, layer_types, window)
        return compact(window if is_sliding(reading, i) else None for i in range(reading.fields["layers"]))

    return read


def all_layers(reading: Reading, layer: int) -> bool:
    """Mistral, Phi-3: every layer slides."""
    return True


def no_layers(reading: Reading, layer: int) -> bool:
    """Unknown families: no layer slides, unless ``layer_types`` names it."""
    return False


def all_but_every(*names: str, default: int) -> IsSliding:
    """Gemma-2 (2), Cohere2 (4), Gemma-3 (6): every n-th layer sees all tokens; ``names`` may hold n."""
    every = optional_size(*names, default=default) if names else None

    def is_sliding(reading: Reading, layer: int) -> bool:
        """Return whether a layer has a window."""
        n = every(reading) if every else default
        return bool((layer + 1) % n)

    return is_sliding


def all_but_first_of(n: int) -> IsSliding:
    """CWM, Granite-SWA: of every n layers the first sees all tokens."""
    return lambda reading, layer: bool(layer % n)


def all_but_first_and_every(n: int) -> IsSliding:
    """MiMo-V2: the first and every n-th layer see all tokens."""
    return lambda reading, layer: layer > 0 and bool((layer + 1) % n)


def behind_max_window_layers(reading: Reading, layer: int) -> bool:
    """Qwen2, Qwen3: where ``use_sliding_window`` is on, layers from ``max_window_layers`` on slide."""
    first = optional_size("max_window_layers", default=28)(reading)
    return bool(flag("use_sliding_window")(reading)) and bool(layer >= first)


def behind_first(default: int) -> IsSliding:
    """Dots-1: layers from ``max_window_layers`` on slide."""
    first = optional_size("max_window_layers", default=default)
    return lambda reading, layer: bool(layer >= first(reading))


def alternate_up_to_max(reading: Reading, layer: int) -> bool:
    """Qwen2-MoE: every second layer before ``max_window_layers`` slides."""
    first = optional_size("max_window_layers", default=28)(reading)
    return layer % 2 == 0 and bool(layer < first)


def without_rotary(reading: Reading, layer: int) -> bool:
    """SmolLM3: where ``use_sliding_window`` is on, the layers without rotary embedding slide."""
    interval = optional_size("no_rope_layer_interval", default=4)(reading)
    return bool(flag("use_sliding_window")(reading)) and (layer + 1) % int(interval) == 0


def switched(is_sliding: IsSliding, switch: str, default: int | None = None) -> Rule:
    """Return :func:`windowed` where ``switch`` is on, else windows on no layer."""
    rule, on = windowed(is_sliding, default), flag(switch)
    return lambda reading: rule(reading) if on(reading) else (None,)


def gpt_neo(reading: Reading) -> Windows:
    """GPT-Neo: ``attention_types`` lists [pattern of global and local, repeats]; local is ``window_size``."""
    window = optional_size("window_size", default=256, what="rows")(reading)
    _, types = reading.config.find(("attention_types",))
    if types is MISSING or types is None:
        types = [[["global", "local"], reading.fields["layers"]]]
    try:
        names = [name for pattern, repeats in types for name in pattern * min(int(repeats), 10_000)]
    except (TypeError, ValueError):
        reading.config.refuse("attention_types", types, 'lists such as [[["global", "local"], 12]]')
    return compact(window if name == "local" else None for name in names[: reading.fields["layers"]])
