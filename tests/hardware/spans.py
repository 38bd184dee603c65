"""What tests ask of the span of a group beside what prices need."""

import numpy as np

from meshwright.hardware.span import GroupSpan, IntArray


def spanned_tier(span: GroupSpan) -> IntArray:
    """Return the index of the outermost tier that a group uses, shape ``(...)``; -1 for a group of one."""
    used = np.asarray(span.sizes) > 1
    outermost = used.shape[-1] - 1 - np.argmax(used[..., ::-1], axis=-1)
    return np.where(used.any(axis=-1), outermost, -1)
