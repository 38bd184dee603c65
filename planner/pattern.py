"""The pattern of a decoder's layers: which mixer and which feed each has, and what such a kind is called."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.attention import Attention
from meshwright.planner.decoder import DecoderSpec, Sublayer, repeated
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.mixers import SelfAttention

ATTRIBUTES: Final = (
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "gated",
    "positions",
    "tied",
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: its mixer and its feed, None where it has none."""

    mixer: Sublayer | None
    feed: Sublayer | None


def layers_of(spec: DecoderSpec) -> tuple[Layer, ...]:
    """Return the layers in order, the flat fields standing in where no pattern is given."""
    mixers = spec.mixers or tuple(SelfAttention(window) for window in spec.windows)
    feeds = spec.feeds or (Mlp(),)
    pairs = zip(repeated(mixers, spec.layers), repeated(feeds, spec.layers), strict=True)
    return tuple(Layer(mixer, feed) for mixer, feed in pairs)


def layer_behind(spec: DecoderSpec) -> Layer:
    """Return the layer behind the last: what a longer pattern says, else the last one again."""

    def behind(pattern: Sequence[Sublayer | None], last: Sublayer | None) -> Sublayer | None:
        """Return what a pattern has behind the last layer, or the last layer's."""
        return pattern[spec.layers] if len(pattern) > spec.layers else last

    last = layers_of(spec)[-1]
    return Layer(behind(spec.mixers, last.mixer), behind(spec.feeds, last.feed))


def kind_names(kinds: Sequence[Layer]) -> tuple[str, ...]:
    """Return a name for each distinct layer: "decoder" and the words that tell it from the others.

    A uniform stack is "decoder"; others are "decoder.sliding" and "decoder.global", "decoder.dense" and
    "decoder.moe", "decoder.mamba.moe" ...; what words cannot tell apart is numbered.
    """
    mixers, feeds = _words([k.mixer for k in kinds]), _words([k.feed for k in kinds])
    lacking = any(k.mixer is None for k in kinds), any(k.feed is None for k in kinds)
    names = [_name(layer, mixers, feeds, lacking) for layer in kinds]
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name}-{seen[name]}" if names.count(name) > 1 else name)
    return tuple(numbered)


def _name(
    layer: Layer, mixers: dict[Sublayer, str], feeds: dict[Sublayer, str], lacking: tuple[bool, bool]
) -> str:
    """Return the name with only those words that are needed; ``lacking``: some layer has no mixer (feed)."""
    words = ["decoder"]
    if layer.mixer is not None and (len(mixers) > 1 or any(lacking)):
        words.append(mixers[layer.mixer])
    if layer.feed is not None and (len(feeds) > 1 or lacking[0]):
        words.append(feeds[layer.feed])
    return ".".join(words) if layer.mixer or layer.feed else "decoder.empty"


def _words(sublayers: Sequence[Sublayer | None]) -> dict[Sublayer, str]:
    """Return the label of each distinct sublayer, its detail where labels collide.

    Attention that sees all tokens is "global" among others that see fewer.
    """
    distinct = [s for s in dict.fromkeys(sublayers) if s is not None]
    count = Counter(s.label for s in distinct)
    words = {s: s.label if count[s.label] == 1 else s.detail for s in distinct}
    heads = {word.split(".")[0] for word in words.values()}
    if len(heads) > 1 and all(h.startswith(("attention", "sliding", "chunked")) for h in heads):
        words = {s: _global(word) for s, word in words.items()}
    return words


def _global(word: str) -> str:
    return word.replace("attention", "global", 1) if word.startswith("attention") else word


def attributes(spec: DecoderSpec) -> dict[str, int | float | str | bool | None]:
    """Return the sizes that reports print, under the specification's names.

    Experts' where there are any; zeros for heads where no layer attends, for ``ffn`` where none has a feed.
    """
    given = {name: getattr(spec, name) for name in ATTRIBUTES}
    layers = layers_of(spec)
    if not any(_attends(spec, layer) for layer in set(layers)):
        given |= {"heads": 0, "kv_heads": 0, "head_dim": 0}
    if not any(layer.feed for layer in layers):
        given |= {"ffn": 0}
    routed = [layer.feed for layer in layers if isinstance(layer.feed, Experts)]
    if routed:
        most = max(routed, key=lambda feed: feed.experts)
        given |= {"experts": most.experts, "topk": most.topk, "expert_ffn": most.width, "shared": most.shared}
    return given


def _attends(spec: DecoderSpec, layer: Layer) -> bool:
    """Return whether a layer has an attention core."""
    mixer = () if layer.mixer is None else layer.mixer.operators(spec)
    return any(isinstance(op, Attention) for op in mixer)
