"""Mixed-precision recipes and optimizers: the bytes of state that a parameter costs.

Sources: ZeRO (arXiv 1910.02054, section 3.1: 2 + 2 + 12), Megatron-LM distributed-optimizer document
(18 bytes with fp32 gradients), 8-bit Adam (arXiv 2110.02861).
"""

from dataclasses import dataclass

from meshwright.hardware.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Precision:
    """Element types of a training recipe.

    Attributes
    ----------
    compute
        Dtype of the products, a key of the accelerator's peak rates.
    element_bytes
        Bytes of a parameter as the products read it, and of an activation.
    master
        Whether an fp32 copy of the weights is kept beside the working copy.
    moment_bytes
        Bytes of one optimizer moment.
    """

    name: str
    compute: str
    element_bytes: int
    master: bool
    moment_bytes: float
    gradient_bytes: int | None = None
    """Bytes of a gradient; None leaves it to the software profile."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: moments kept per parameter."""

    name: str
    moments: int


PRECISIONS = {
    p.name: p
    for p in (
        Precision("bf16", "bf16", 2, True, 4),
        Precision("fp16", "fp16", 2, True, 4),
        Precision("pure-bf16", "bf16", 2, False, 2, 2),
        Precision("bf16-8bit", "bf16", 2, True, 1),
        Precision("fp32", "fp32", 4, False, 4, 4),
        Precision("tf32", "tf32", 4, False, 4, 4),
    )
}

OPTIMIZERS = {
    o.name: o
    for o in (Optimizer("adamw", 2), Optimizer("adam", 2), Optimizer("momentum", 1), Optimizer("sgd", 0))
}


def find_precision(name: str) -> Precision:
    """Return a recipe by name; raises UnknownNameError."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, list(PRECISIONS))
    return PRECISIONS[name]


def find_optimizer(name: str) -> Optimizer:
    """Return an optimizer by name; raises UnknownNameError."""
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, list(OPTIMIZERS))
    return OPTIMIZERS[name]
