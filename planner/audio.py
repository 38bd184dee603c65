"""Audio encoders' first layers: two convolutions turn a spectrogram into tokens (arXiv 2212.04356)."""

from typing import Final

from meshwright.costmodels.operators import LayerKind, Operator
from meshwright.planner.pieces import activation, added, data, dense

KERNEL: Final = 3
"""Frames that each convolution reads; the second one's stride is two."""


def spectrogram_kinds(
    hidden: int, mel_bins: int, position_rows: int, *, frames: str, stream: str, name: str
) -> tuple[LayerKind, LayerKind]:
    """Return the two convolutions with their activations; positions are added behind the second.

    Parameters
    ----------
    hidden, mel_bins, position_rows
        Features of a token, channels of a frame, rows of positions.
    frames, stream
        The streams of frames and of tokens, one token for two frames.
    name
        What the second layer is called.
    """
    first: tuple[Operator, ...] = (
        data("spectrogram", mel_bins),
        dense("convolution", KERNEL * mel_bins, hidden, saves_output=True),
        activation("activation", hidden),
    )
    second: tuple[Operator, ...] = (
        dense("convolution", KERNEL * hidden, hidden, saves_output=True),
        activation("activation", hidden),
        added("positions", hidden, weights=position_rows * hidden),
    )
    return (
        LayerKind("frames", "embedding", first, hidden, frames),
        LayerKind(name, "embedding", second, hidden, stream),
    )
