"""Multi-token prediction: layers that predict one token further, before the head.

DeepSeek-V3 (arXiv 2412.19437, section 2.2): the hidden state and the next token's embedding are normalised,
put side by side, projected back to ``hidden``, run through one decoder block, and read by the shared head.
The embedding is a copy, as the layer lies on the last stage; the head is the one behind it.

Left out: the shift of the tokens by one.
"""

from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, LayerKind, Operator
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.shared import SharedGemm
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import stream_norm, wide


def mtp_kind(spec: DecoderSpec, block: LayerKind) -> LayerKind:
    """Return the layer kind: embedding, projection, ``block``, norm, shared head and its loss."""
    operators = (*_projection(spec), *block.operators, *_prediction(spec))
    return LayerKind("mtp", "block", operators, block.hidden)


def _projection(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return the embedding of the next token, both norms, and the projection from twice ``hidden``."""
    h = spec.hidden
    return (
        Embedding("mtp_tokens", spec.vocabulary, h, tied=True),
        Boundary("mtp_embedding_exit", "exit", h),
        stream_norm(spec, "mtp_embedding_norm", feeds_product=True),
        stream_norm(spec, "mtp_hidden_norm", feeds_product=True),
        Boundary("mtp_enter", "enter", 2 * h),
        Gemm("mtp_projection", wide(2 * h), (wide(h),), "column", saves_output=True),
        Boundary("mtp_exit", "exit", h),
    )


def _prediction(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return the norm, the product with the head's weight and the cross entropy."""
    h = spec.hidden
    return (
        stream_norm(spec, "mtp_final_norm"),
        Boundary("mtp_head_enter", "enter", h),
        SharedGemm("mtp_head", wide(h), (spec.vocabulary,), "column", spec.head_bias),
        CrossEntropy("mtp_loss", spec.vocabulary, FULL_LOGITS),
    )
