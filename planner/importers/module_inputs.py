"""The inputs of the traced forward pass: the user's, or token ids for a module with a ``config``."""

import reprlib
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
        Neither inputs nor a configuration that says what they are; or inputs of another type, or empty.
    """
    import torch

    if example is None:
        return (), _from_config(module)
    _refuse_empty(example)
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


def told(owner: Any, name: str) -> Any:
    """Return an attribute of a module or its configuration, None if it has none.

    Raises
    ------
    TraceError
        The attribute is there and reading it fails, as a property or ``__getattr__`` may.
    """
    try:
        return getattr(owner, name, None)
    except Exception as error:
        raise TraceError(
            type(owner).__name__,
            f"reading its {name} fails ({type(error).__name__}: {str(error)[:200]})",
            f"a module whose {name} can be read, or one without it",
        ) from error


def longest_input(config: Any) -> int | None:
    """Return the tokens that a configuration's positions allow, None if it does not say.

    Raises
    ------
    TraceError
        It says what is no positive integer.
    """
    longest = told(config, "max_position_embeddings")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise TraceError(
            type(config).__name__,
            f"its max_position_embeddings is {reprlib.repr(longest)}",
            "a positive integer, or None where positions are unbounded",
        )
    return longest


def _refuse_empty(example: Any) -> None:
    """Raise TraceError if a tensor has no elements: nothing can be counted for a token of it."""
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(example):
        if isinstance(leaf, torch.Tensor) and 0 in leaf.shape:
            raise TraceError(
                "example_inputs",
                f"a tensor of shape {tuple(leaf.shape)} is empty",
                "at least one sample and one token; one of each will do",
            )


def _from_config(module: Any) -> dict[str, Any]:
    """Return token ids of shape (1, sequence) for a module that carries a language model's configuration."""
    import torch

    config = told(module, "config")
    if told(config, "vocab_size") is None:
        raise TraceError(
            "example_inputs",
            "the module has no config with a vocab_size to make token ids from",
            "example_inputs=(tensor, ...) or {'argument': tensor}; meta tensors will do",
        )
    ids = torch.zeros((1, example_length(config)), dtype=torch.long)
    inputs: dict[str, Any] = {"input_ids": ids}
    if told(config, "is_encoder_decoder"):
        inputs["decoder_input_ids"] = ids[:, : max(1, ids.shape[1] // 2)]
    return inputs


def example_length(config: Any) -> int:
    """Return a length at which a sliding window shows in the mask and positions are allowed."""
    longest = longest_input(config) or LONGEST_MASK
    parts = [config, told(config, "text_config")]
    windows = [
        size
        for part in parts
        for name, size in getattr(part, "__dict__", {}).items()
        if ("window" in name or name == "local_attention") and type(size) is int
    ]
    length = DEFAULT_LENGTH + max((w for w in windows if w + DEFAULT_LENGTH <= LONGEST_MASK), default=0)
    return min(length, longest)
