"""Implementations of the cross entropy and what each does to the logits.

Bytes per logit on one rank, by counting tensors of a bf16 model:

- ``full`` (Megatron-LM's ``vocab_parallel_cross_entropy``): an fp32 copy of the logits becomes the softmax
  and is kept for the backward pass (4 saved); it becomes its gradient in place, and the bf16 logits or their
  gradient exist beside it (6 in all). Each step is a kernel: forward cast 6, maximum 4, difference 8,
  exponent 8, sum 4, quotient 8 = 38, backward product with the loss's gradient 8 and cast 6 = 14.
- ``jit`` (the same under ``--cross-entropy-loss-fusion``): compiled in three parts around two all-reduces,
  cast and maximum 6, difference, exponent and sum 8, quotient 8 = 22; backward product and cast 4 + 4 + 2.
- ``te`` (Transformer Engine's ``parallel_cross_entropy``, ``--cross-entropy-fusion-impl te``): one kernel
  reads bf16 logits for maximum and sum, another writes their gradient over them (2 saved): forward 2 + 2 + 2,
  backward its product with the loss's gradient 2 + 2.
- ``torch`` (``F.cross_entropy(logits.float(), labels)``): bf16 logits are cast up, the log-softmax is kept
  (4 saved); backward its gradient from the picked logit's (4 + 4) meets it: 12 at the peak. Forward moves 6 +
  8, the pick is small; backward 4 (zeros and scatter) + 12 + 6 (cast down). Over split logits
  (``torch.distributed.tensor.parallel.loss_parallel``) the softmax is written out: forward 6 + 4 (maximum) +
  8 (shifted) + 8 (exponent) + 4 (sum) + 8, backward 4 + 8 (exponent) + 12 (added) + 8 (scaled) + 6, where
  the log-softmax, the picked logit's gradient, the sum of both and the result exist at once: 16.
- ``traced``: the same as ``torch`` in a graph that holds the whole step, which writes nothing out.
- ``eager`` (transformers before 4.45): the fp32 logits are an output that lives on, shifted by a copy, and
  the log-softmax of the copy is kept (8 saved); backward 16 at the peak. Forward moves 6 + 8 + 8, backward
  4 + 12 + 8 (the shift's) + 6.
- ``engine`` (pipeline engines of 2023 that keep a stage's outputs): as ``eager``, and the 16-bit logits live
  on beside the fp32 ones (10 saved, 18 at the peak). They gather the ranks' logits into a list and join it
  (Megatron-LM of that time, ``_gather_along_last_dim``): 2 more.
- ``kernel`` (cross entropy of flash-attn, Apex and Liger over logits that exist): one kernel reads bf16
  logits and keeps them, the backward pass writes the gradient over them: 2 bytes.
- ``metrics`` (llm-foundry's MPT, ``models/mpt/modeling_mpt.py``, under Composer, ``trainer/trainer.py``:
  ``_eval_train_metrics``): that kernel, which writes the gradient beside the logits (4
  at the peak), for they are looked at again: after each micro-batch's backward pass two train metrics
  (``LanguageCrossEntropy``, ``LanguagePerplexity``) take ``F.cross_entropy`` of them under autocast, each
  a log-softmax 2 + 2 and the cast that ``nll_loss`` asks for 2 + 4; told forward.
- ``pieces`` (LitGPT's fine-tuning, ``lm_head_chunk_size`` and ``chunked_cross_entropy``): head and loss run
  over 128 tokens of each sequence at a time in 16 bits; every piece keeps its logits and their log-softmax
  (2 + 2 saved), and the backward pass holds two gradients of one piece, an eighth of 1,024 tokens (4.5 in
  all). Forward moves 4 + 2, backward 2 + 6.
- ``compiled`` (``torch.compile`` of ``F.cross_entropy(logits.float(), labels)`` by itself): no fp32 copy
  exists. The partitioner keeps the bf16 logits with maximum and sum of each row, and the backward pass writes
  a bf16 gradient beside them (2 saved, 4 at the peak; as ``min_cut_rematerialization_partition`` splits it).
  Forward reads the logits for the maximum and for the sum.
- ``sliced`` (LitGPT's full fine-tuning, ``chunked_cross_entropy`` of 128 rows of whole 16-bit logits at a
  time): the logits are an output that lives on, shifted by a copy; every slice keeps its log-softmax (2 + 2
  saved). Backward the slices' gradients are joined and shifted back (2 + 2 beside the logits). Forward moves
  4 + 4, backward 8 + 4 + 4.
- ``chunked``: the head and the loss run over one eighth of the tokens at a time and the logits are
  computed again in the backward pass; nothing is kept.
- ``fused`` (Liger kernel, arXiv 2410.10989): the gradient is formed in the forward pass chunk by chunk.

Left out: label smoothing and z-loss.
"""

from typing import Final

from meshwright.costmodels.vocabulary import LossKernel
from meshwright.hardware.errors import UnknownNameError

FULL_LOGITS: Final = LossKernel(4, 6, 38, 14)
CHUNKS: Final = 8
"""Of the tokens: torchtune's ``num_output_chunks``."""

LOSSES: Final = {
    "full": FULL_LOGITS,
    "torch": LossKernel(4, 12, 14, 22, split_bytes=4, split_forward_traffic=24, split_backward_traffic=16),
    "traced": LossKernel(4, 12, 14, 22),
    "eager": LossKernel(8, 16, 22, 30),
    "engine": LossKernel(10, 18, 22, 30, gathered_bytes=2),
    "kernel": LossKernel(2, 2, 2, 4),
    "metrics": LossKernel(2, 4, 22, 4),
    "jit": LossKernel(4, 6, 22, 10),
    "te": LossKernel(2, 2, 6, 4),
    "compiled": LossKernel(2, 4, 4, 4),
    "sliced": LossKernel(4, 6, 8, 16),
    "pieces": LossKernel(4, 4.5, 6, 8),
    "chunked": LossKernel(0, 8, 12, 8, 1 / CHUNKS, repeats_head=True),
    "fused": LossKernel(0, 6, 8, 0, 1 / CHUNKS),
}


def find_loss(name: str) -> LossKernel:
    """Return an implementation by name; raises UnknownNameError."""
    if name not in LOSSES:
        raise UnknownNameError("loss", name, list(LOSSES))
    return LOSSES[name]
