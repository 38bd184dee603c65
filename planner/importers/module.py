"""A model graph from torch itself: any ``nn.Module``, its weights never touched.

The forward pass runs once on fake tensors, watched operation by operation; containers of repeated blocks
become the layers, and each layer's operations its operators. Nothing is allocated or downloaded, and the
module stays as it is.

Left out: operations that torch cannot run on fake tensors, branches that the example does not take, and
recurrent kernels (their work is counted as memory traffic alone).
"""

from typing import Any

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.module_build import build_graph
from meshwright.planner.importers.module_inputs import longest_input, told
from meshwright.planner.importers.module_trace import TraceError


def from_module(module: Any, example_inputs: Any = None, *, name: str | None = None) -> ModelGraph:
    """Return the graph of a module, read from its own forward pass.

    Parameters
    ----------
    module
        A ``torch.nn.Module``, with weights or on the ``meta`` device. It is neither changed nor run on data.
    example_inputs
        A tuple of tensors for the forward pass, or a mapping from its argument names; any device, ``meta``
        included. None for a language model of transformers: token ids of shape (1, sequence).
    name
        The graph's name; the class's by default.

    Returns
    -------
    ModelGraph
        With every parameter counted once, tied ones too, and frozen ones marked.

    Raises
    ------
    MeshwrightError
        torch is missing, no module was given, or the forward pass cannot be followed: the message names the
        module and the operation, and what to try.
    """
    try:
        import torch
    except ImportError as error:
        raise TraceError(
            "torch", "it is not installed", "pip install torch (the CPU build will do)"
        ) from error
    from meshwright.planner.importers.module_record import record

    if not isinstance(module, torch.nn.Module):
        raise TraceError(
            type(module).__name__, "it is no torch.nn.Module", "a module, or load_model() for a config.json"
        )
    trace = record(module, example_inputs)
    if next(module.parameters(), None) is None:
        raise TraceError(type(module).__name__, "it has no parameter to train", "a module with weights")
    config = told(module, "config")
    family = str(told(config, "model_type") or type(module).__name__)
    return build_graph(
        trace,
        name=name or type(module).__name__,
        family=family,
        max_sequence_length=longest_input(config),
    )
