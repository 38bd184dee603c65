"""The inputs of the traced forward pass: the user's, or token ids for a module with a ``config``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from meshwright.planner.importers.module_trace import TraceError

DEFAULT_LENGTH: Final = 64
"""Tokens of the example where none is given: long enough to see heads, cheap to evaluate masks on."""

LONGEST_MASK: Final = 5120
"""Longest example made in order to see a sliding window in the mask."""


def call_inputs(module: Any, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of the forward pass.

    Raises
    ------
    TraceError
        Neither inputs nor a configuration that says what they are; or inputs of another type.
    """
    import torch

    if example is None:
        return (), _from_config(module)
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), {str(k): v for k, v in example.items()}
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    raise TraceError(
        "example_inputs",
        f"a {type(example).__name__} is no input",
        "a tuple of tensors, or a mapping from argument names to tensors",
    )


def _from_config(module: Any) -> dict[str, Any]:
    """Return token ids of shape (1, sequence) for a module that carries a language model's configuration."""
    import torch

    config = getattr(module, "config", None)
    if getattr(config, "vocab_size", None) is None:
        raise TraceError(
            "example_inputs",
            "the module has no config with a vocab_size to make token ids from",
            "example_inputs=(tensor, ...) or {'argument': tensor}; meta tensors will do",
        )
    ids = torch.zeros((1, example_length(config)), dtype=torch.long)
    inputs: dict[str, Any] = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, : max(1, ids.shape[1] // 2)]
    return inputs


def example_length(config: Any) -> int:
    """Return a length at which a sliding window shows in the mask and positions are allowed."""
    longest = getattr(config, "max_position_embeddings", None) or LONGEST_MASK
    parts = [config, getattr(config, "text_config", None)]
    windows = [
        size
        for part in parts
        for name, size in getattr(part, "__dict__", {}).items()
        if ("window" in name or name == "local_attention") and type(size) is int
    ]
    length = DEFAULT_LENGTH + max((w for w in windows if w + DEFAULT_LENGTH <= LONGEST_MASK), default=0)
    return min(length, int(longest))
