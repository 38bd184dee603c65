"""Names in a file that no size follows from, and that are wrong where they are no names at all."""

from typing import Final

from meshwright.planner.importers.config import MISSING, Config

ACTIVATION_KEYS: Final = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
ACTIVATIONS: Final = frozenset(
    {
        "gegelu",
        "gelu",
        "gelu_10",
        "gelu_accurate",
        "gelu_fast",
        "gelu_new",
        "gelu_python",
        "gelu_python_tanh",
        "gelu_pytorch_tanh",
        "hardswish",
        "laplace",
        "leaky_relu",
        "linear",
        "mish",
        "prelu",
        "quick_gelu",
        "relu",
        "relu2",
        "relu6",
        "sigmoid",
        "silu",
        "sqrtsoftplus",
        "swish",
        "tanh",
        "xielu",
    }
)
"""Those of transformers 5.24 (``activations.ACT2CLS``), and Phi-3-small's, from the code beside its file."""


def check_names(config: Config) -> tuple[str, ...]:
    """Return a note where an activation is nobody's: it costs what any other does, but may be misspelt.

    Raises
    ------
    ModelConfigError
        An activation or a class in ``architectures`` is no text.
    """
    _check_classes(config)
    key, name = config.find(ACTIVATION_KEYS)
    if name is MISSING or name is None:
        return ()
    if not isinstance(name, str) or not name:
        config.refuse(key, name, "a text such as 'silu'")
    if name in ACTIVATIONS:
        return ()
    return (f"{key} {name!r} is no activation of transformers: priced as any other; check the name",)


def _check_classes(config: Config) -> None:
    """Refuse ``architectures`` that name no classes; none at all, and one that is not in a list, will do."""
    found = config.values.get("architectures")
    if found is not None and not isinstance(found, str):
        listed = isinstance(found, list) and all(isinstance(name, str) and name for name in found)
        if not listed:
            config.refuse("architectures", found, "a list of class names such as ['LlamaForCausalLM']")
