"""Sizes that are fine one by one and impossible together, whatever file they came from."""

from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.experts import Experts
from meshwright.planner.importers.config import Config
from meshwright.planner.mixers import SelfAttention

WIDEST_FFN = 100
"""Times hidden; published models stay below 10 (Gemma: 8), so more is a slip of the pen."""


def refuse_contradictions(config: Config, spec: DecoderSpec) -> None:
    """Raise ModelConfigError where sizes contradict each other."""
    if spec.heads % spec.kv_heads:
        config.refuse("key/value heads", spec.kv_heads, f"a divisor of the attention heads ({spec.heads})")
    if spec.ffn > WIDEST_FFN * spec.hidden:
        config.refuse("ffn", spec.ffn, f"at most {WIDEST_FFN} times hidden ({spec.hidden})")
    for mixer in spec.mixers:
        if isinstance(mixer, SelfAttention):
            if mixer.window is not None and mixer.chunk is not None:
                config.refuse("chunk of a layer", mixer.chunk, f"none beside a window ({mixer.window})")
            heads, kv_heads = mixer.heads or spec.heads, mixer.kv_heads or spec.kv_heads
            if heads % kv_heads:
                config.refuse("key/value heads of a layer", kv_heads, f"a divisor of its heads ({heads})")
    for feed in spec.feeds:
        if isinstance(feed, Experts) and feed.topk > feed.experts:
            config.refuse("experts of a token", feed.topk, f"at most the routed experts ({feed.experts})")
    if spec.positions == "learned" and spec.position_rows < 1:
        config.refuse("position_rows", spec.position_rows, "at least 1 where positions are learned")
