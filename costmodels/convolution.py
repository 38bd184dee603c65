"""The short causal convolution over time that stands before a scan (arXiv 2312.00752, section 3.4)."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.part import Part
from meshwright.costmodels.plain import Plain
from meshwright.costmodels.work import Shape, Work


@dataclass(frozen=True, slots=True)
class CausalConvolution(Plain):
    """A depthwise convolution over the last ``width`` tokens, its activation function fused in.

    Each feature has its own filter, so that it is bound by memory: features are read and written once
    forward (2 ``width`` FLOPs each); backward reads the gradient and the input and writes a gradient. What
    is not kept (``saves_output``) is computed again there, as the fused Mamba kernels do.

    Attributes
    ----------
    channels
        What it filters, as tensor parallelism splits it (heads, groups).
    width
        Tokens that a filter sees.
    bias
        Whether each feature has one.

    Left out: the last ``width - 1`` tokens that a neighbour in a context group would send.
    """

    name: str
    channels: tuple[Part, ...]
    width: int
    bias: bool = False
    saves_output: bool = True
    light: bool = False
    trained: bool = True
    splits_sequence: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tensor parallelism splits."""
        return self.channels

    def parameters(self) -> int:
        """Return a filter, and a bias, for each feature."""
        return int(sum(p.features for p in self.channels) * (self.width + self.bias))

    def local_features(self, shape: Shape) -> Num:
        """Return the features on one rank."""
        return sum(p.local(shape.tp) for p in self.channels)

    def local_parameters(self, shape: Shape) -> Num:
        """Return the filters and biases on one rank."""
        return self.local_features(shape) * (self.width + self.bias)

    def forward(self, shape: Shape) -> tuple[Work, ...]:
        """Return one pass over the features."""
        elements = shape.tokens * self.local_features(shape)
        return (Work("memory", 2.0 * self.width * elements, 2 * elements * shape.element_bytes),)

    def backward(self, shape: Shape) -> tuple[Work, ...]:
        """Return the gradients of input and filters, after the forward pass where its output was dropped."""
        (once,) = self.forward(shape)
        gradients = Work("memory", (1 + self.trained) * once.flops, 1.5 * once.bytes)
        return (gradients,) if self.saves_output else (once, gradients)

    def saved_bytes(self, shape: Shape) -> Num:
        """Return the bytes of the output if it is kept (the input belongs to the product before)."""
        return self.saves_output * shape.tokens * self.local_features(shape) * shape.element_bytes
