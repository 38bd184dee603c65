"""Hypothesis strategies that the tests share."""

import numpy as np
from hypothesis import strategies as st

from meshwright.costmodels.schedule import build, names

# Pipelines -----------------------------------------------------------------------------------------------


@st.composite
def schedules(draw, max_pp=6, max_vpp=3, max_microbatches=13):
    """A legal schedule of any kind."""
    name = draw(st.sampled_from(names()))
    interleaved = name == "interleaved"
    pp = draw(st.integers(2 if interleaved else 1, max_pp))
    vpp = draw(st.integers(2, max_vpp)) if interleaved else 1
    return build(name, pp, vpp, draw(st.integers(pp if interleaved else 1, max_microbatches)))


def seconds(max_s=4.0):
    """A duration: zero or of everyday size."""
    return st.just(0.0) | st.floats(2.0**-10, max_s)


@st.composite
def timed_schedules(draw, **limits):
    """A schedule, unequal forward and backward times of its chunks, and a transfer time."""
    schedule = draw(schedules(**limits))
    times = st.lists(seconds(), min_size=schedule.num_chunks, max_size=schedule.num_chunks).map(np.array)
    return schedule, draw(times), draw(times), draw(seconds(max_s=1.0))
