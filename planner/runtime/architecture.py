"""How a decoder's module is laid out: where its parts are, and how its blocks split over tensor ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import MeshwrightError

if TYPE_CHECKING:
    from torch import nn

COLUMNS, ROWS, NORM, HEAD_NORM = "colwise", "rowwise", "norm", "head_norm"
WORDS: Final = (COLUMNS, ROWS, NORM, HEAD_NORM)

_PRE_NORM: Final = {"input_layernorm": NORM, "post_attention_layernorm": NORM}
_NORMS: Final = {
    "llama": _PRE_NORM,
    "mistral": _PRE_NORM,
    "qwen2": _PRE_NORM,
    "qwen3": {**_PRE_NORM, "self_attn.q_norm": HEAD_NORM, "self_attn.k_norm": HEAD_NORM},
}
"""Norms of a block by ``model_type``: models whose forward pass is embedding, blocks, norm, head, no more."""


@dataclass(frozen=True)
class Architecture:
    """Where the parts of a decoder are.

    The forward pass must be the embedding, the blocks in turn, the norm and the head and nothing between
    them: then a part that lives on another pipeline rank can be passed through.

    Attributes
    ----------
    embedding, blocks, norm, head
        Paths of submodules; ``blocks`` is a ``ModuleList``.
    tensor
        What tensor parallelism does to each submodule of a block, by its path in the block: ``colwise`` or
        ``rowwise`` for linear layers, ``norm`` for norms over the whole width, ``head_norm`` for norms over
        each head (batch, sequence, heads, width), or a ``torch.distributed.tensor.parallel`` style.
    context
        Whether tokens can be dealt out to context ranks: the model takes ``position_ids`` and finds its
        attention in transformers' table.
    """

    embedding: str = "model.embed_tokens"
    blocks: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    tensor: Mapping[str, Any] = field(default_factory=dict)
    context: bool = False

    def part(self, model: "nn.Module", name: str) -> "nn.Module":
        """Return one of the four parts of a model.

        Raises
        ------
        MeshwrightError
            If the model has no such submodule.
        """
        path = getattr(self, name)
        try:
            return model.get_submodule(path)
        except AttributeError:
            raise MeshwrightError(
                f"architecture: {name} is {path!r}, which {type(model).__name__} does not have; "
                "give architecture=meshwright.Architecture(...) with its own paths"
            ) from None


def find_architecture(model: "nn.Module") -> Architecture:
    """Return the architecture of a transformers model, its linear layers split by its own tensor plan.

    Source: ``base_model_tp_plan`` of the model's configuration
    (https://huggingface.co/docs/transformers/perf_infer_gpu_multi).

    Raises
    ------
    MeshwrightError
        If the family is none of those known.
    """
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", None)
    if family not in _NORMS:
        raise MeshwrightError(
            f"model: {type(model).__name__} is of family {family!r}; known are {', '.join(sorted(_NORMS))}; "
            "for another one give architecture=meshwright.Architecture(...)"
        )
    plan = getattr(config, "base_model_tp_plan", None) or {}
    inside = "layers.*."
    own = {path.removeprefix(inside): word for path, word in plan.items() if path.startswith(inside)}
    return Architecture(tensor={**own, **_NORMS[family]}, context=True)
