"""Hyper-connections: several residual streams, collapsed before each sublayer and mixed behind it.

Manifold-constrained hyper-connections (arXiv 2409.19606; DeepSeek-V4): a small product over all streams of
a token gives the weights with which they are collapsed into one input, by which the output is spread over
them, and by which they are mixed. Left out: the iterations that make the mixing matrix doubly stochastic
(a few numbers a token).
"""

from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import residual, wide

SCALES = 3
"""One learned scale for each of collapsing, spreading and mixing."""


def collapse(spec: DecoderSpec, name: str) -> tuple[Operator, ...]:
    """Return what leads from the streams to a sublayer's input; nothing where there is one stream."""
    n, h = spec.residual_streams, spec.hidden
    if n == 1:
        return ()
    weights = (2 + n) * n
    return (
        Gemm(f"{name}_mixing", wide(n * h), (wide(weights),), "replicated", on="sequence", saves_output=True),
        Pointwise(f"{name}_collapse", "sequence", n * h + weights, h, saves=h, weights=weights + SCALES),
    )


def spread(spec: DecoderSpec, name: str, *, kept: bool) -> Pointwise:
    """Return the sum of the residual streams and a sublayer's output; ``kept`` where it is no layer's end."""
    n, h = spec.residual_streams, spec.hidden
    if n == 1:
        return residual(spec, name, saves=h if kept else 0)
    reads, mask = (n + 1) * h, h if spec.hidden_dropout > 0 else 0
    return Pointwise(name, "sequence", reads, n * h, saves=n * h if kept else 0, mask_features=mask)


def collapse_head(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return what leads from the streams to the final norm."""
    n, h = spec.residual_streams, spec.hidden
    if n == 1:
        return ()
    return (
        Gemm("head_mixing", wide(n * h), (wide(n),), "replicated", on="sequence", saves_output=True),
        Pointwise("head_collapse", "sequence", n * h + n, h, saves=h, weights=n + 1),
    )
