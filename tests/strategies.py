"""Hypothesis strategies that the tests share."""

import numpy as np
from hypothesis import strategies as st

from meshwright.costmodels.schedule import build, names
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.spec import Cluster, Tier

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


# Hardware ------------------------------------------------------------------------------------------------


@st.composite
def tiers(draw, fan_outs=(2, 3, 4, 8), kinds=("switch", "mesh", "torus", "line", "fat-tree", "rail")):
    """One tier of any kind, with numbers of everyday size."""
    kind = draw(st.sampled_from(kinds))
    bandwidth = draw(st.floats(1e9, 1e12))
    return Tier(
        name=kind,
        kind=kind,
        fan_out=draw(st.sampled_from(fan_outs)),
        bandwidth_bytes_per_s=bandwidth,
        latency_s=draw(st.floats(1e-7, 1e-4)),
        efficiency=draw(st.floats(0.3, 1.0)),
        oversubscription=1.0 if kind in ("mesh", "torus", "line") else draw(st.sampled_from([1.0, 2.0, 7.0])),
        pair_bandwidth_bytes_per_s=draw(st.floats(0.1, 1.0)) * bandwidth if kind == "mesh" else None,
    )


@st.composite
def clusters(draw, max_tiers=3, max_devices=256, **limits):
    """A small cluster of one to three tiers of any kind."""
    drawn = draw(st.lists(tiers(**limits), min_size=1, max_size=max_tiers))
    while len(drawn) > 1 and np.prod([t.fan_out for t in drawn]) > max_devices:
        drawn = drawn[:-1]
    return Cluster("drawn", load_accelerator("h100-sxm"), tuple(drawn), devices_per_host=drawn[0].fan_out)


@st.composite
def placed_groups(draw, cluster):
    """A group that tiles a cluster: size and stride whose product divides the number of devices."""
    divisors = [d for d in range(1, cluster.num_devices + 1) if cluster.num_devices % d == 0]
    size = draw(st.sampled_from(divisors))
    rest = cluster.num_devices // size
    return size, draw(st.sampled_from([d for d in divisors if rest % d == 0]))


# Emission ------------------------------------------------------------------------------------------------


@st.composite
def launchable(draw, *targets):
    """A problem on one to four hosts and a legal plan for its target, idle devices included."""
    from meshwright.planner.target import find_target
    from tests.planner.emit.cases import case

    target = find_target(draw(st.sampled_from(targets or ("any", "deepspeed", "fsdp"))))
    hosts = draw(st.integers(1, 4))
    tp = draw(st.sampled_from((1, 2, 4, 8))) if target.tensor else 1
    pp = draw(st.sampled_from([p for p in (1, 2, 4) if p * tp <= 8 * hosts])) if target.pipeline else 1
    # Accelerate fills every host evenly, the others may leave devices of the last one idle.
    dps = (
        st.sampled_from([1, 4, 8 * hosts])
        if target.name == "fsdp"
        else st.integers(1, 8 * hosts // (tp * pp))
    )
    dp, micro, passes = draw(dps), draw(st.integers(1, 4)), draw(st.integers(1, 8))
    stages = target.zero_stages_with_pipeline if pp > 1 else target.zero_stages
    return case(
        target.name,
        f"dgx-h100:{hosts}",
        job={"global_batch_size": dp * micro * passes, "allow_idle": True},
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch_size=micro,
        zero_stage=draw(st.sampled_from(sorted(stages))),
        recompute=draw(st.sampled_from(sorted(target.recompute))),
    )
