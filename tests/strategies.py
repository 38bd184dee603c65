"""Hypothesis strategies that the tests share."""

from functools import lru_cache
from itertools import product

import numpy as np
from hypothesis import strategies as st

from meshwright.costmodels.schedule import build, legal, names
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.spec import Cluster, Tier

# Pipelines -----------------------------------------------------------------------------------------------


@lru_cache
def _legal_sizes(name, max_pp, max_vpp, max_microbatches):
    sizes = product(*(range(1, most + 1) for most in (max_pp, max_vpp, max_microbatches)))
    return [size for size in sizes if legal(name, *size) is None]


@st.composite
def schedules(draw, max_pp=6, max_vpp=3, max_microbatches=13):
    """A legal schedule of any kind."""
    name = draw(st.sampled_from(names()))
    return build(name, *draw(st.sampled_from(_legal_sizes(name, max_pp, max_vpp, max_microbatches))))


def seconds(max_s=4.0):
    """A duration: zero or of everyday size."""
    return st.just(0.0) | st.floats(2.0**-10, max_s)


@st.composite
def timed_schedules(draw, **limits):
    """A schedule, unequal forward and backward times of its chunks, a transfer time, and weight times.

    The weight times are zero where the schedule does not tell weight gradients apart.
    """
    schedule = draw(schedules(**limits))
    n = schedule.num_chunks
    times = st.lists(seconds(), min_size=n, max_size=n).map(np.array)
    forward_s, backward_s, transfer_s = draw(times), draw(times), draw(seconds(max_s=1.0))
    return schedule, forward_s, backward_s, transfer_s, draw(times) if schedule.split else np.zeros(n)


@st.composite
def held_up_schedules(draw, **limits):
    """The same, and seconds before which each chunk starts nothing."""
    case = draw(timed_schedules(**limits))
    n = case[0].num_chunks
    return *case, draw(st.lists(seconds(), min_size=n, max_size=n).map(np.array))


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
    from meshwright.planner.job import Job
    from meshwright.planner.target_job import fitted
    from meshwright.planner.targets import find_target
    from tests.planner.emit.cases import case, model

    target = find_target(draw(st.sampled_from(targets or ("any", "deepspeed", "fsdp"))))
    target = fitted(target, model(), Job(1, 1))
    hosts = draw(st.integers(1, 4))
    tp = draw(st.sampled_from((1, 2, 4, 8))) if target.tensor else 1
    piped = target.pipeline and (tp == 1 or target.tensor_with_pipeline)
    pp = draw(st.sampled_from([p for p in (1, 2, 4) if p * tp <= 8 * hosts])) if piped else 1
    room = 8 * hosts // (tp * pp)
    # Context ranks where the target names the models that it has them for: this is one.
    cp = draw(st.sampled_from([c for c in (1, 2) if c <= room])) if target.context_families else 1
    # Accelerate fills every host evenly, the others may leave devices of the last one idle.
    dps = st.sampled_from([1, 4, room // cp]) if target.name == "fsdp" else st.integers(1, room // cp)
    dp, micro, passes = draw(dps), draw(st.integers(1, 4)), draw(st.integers(1, 8))
    stages = target.zero_stages_with_pipeline if pp > 1 else target.zero_stages
    return case(
        target.name,
        f"dgx-h100:{hosts}",
        job={"global_batch_size": dp * micro * passes, "allow_idle": True},
        tp=tp,
        cp=cp,
        kv_exchange=draw(st.sampled_from(sorted(target.kv_exchanges))) if cp > 1 else "ring",
        pp=pp,
        dp=dp,
        micro_batch_size=micro,
        zero_stage=draw(st.sampled_from(sorted(stages))),
        recompute=draw(st.sampled_from(sorted(target.recompute - {"moe"}))),  # no experts here
    )


# Cost models ---------------------------------------------------------------------------------------------


@st.composite
def decoders(draw, max_layers=8):
    """A small decoder of any make; ``tp`` up to its key/value heads divides what it must."""
    from meshwright.planner.decoder import PRE_NORMS, DecoderSpec

    kv_heads = draw(st.sampled_from((2, 4)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 4)))
    parallel = draw(st.booleans())
    post = draw(st.booleans()) and not parallel
    return DecoderSpec(
        hidden=64 * draw(st.integers(1, 16)),
        layers=draw(st.integers(1, max_layers)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((32, 64, 128))),
        ffn=64 * draw(st.integers(1, 48)),
        vocab=draw(st.integers(100, 200_000)),
        gated=draw(st.booleans()),
        norm_bias=draw(st.booleans()),
        norms=(*PRE_NORMS, "post_attention", "post_mlp") if post else PRE_NORMS,
        qk_norm=draw(st.sampled_from((None, "head", "full"))),
        qkv_bias=draw(st.booleans()),
        o_bias=draw(st.booleans()),
        parallel=parallel,
        positions=draw(st.sampled_from(("rotary", "none"))),
        tied=draw(st.booleans()),
        windows=draw(st.sampled_from(((None,), (256,), (None, 256)))),
        attention_dropout=draw(st.sampled_from((0.0, 0.1))),
        hidden_dropout=draw(st.sampled_from((0.0, 0.1))),
        embedding_dropout=draw(st.sampled_from((0.0, 0.1))),
    )


@st.composite
def work_shapes(draw, tps=(1, 2)):
    """A micro-batch of a rank; any ``tp`` of :func:`decoders` divides."""
    from meshwright.costmodels.work import Shape

    tp = draw(st.sampled_from(tps))
    return Shape(
        sequences=draw(st.integers(1, 8)),
        sequence_length=64 * draw(st.integers(1, 64)),
        tp=tp,
        sequence_parallel=draw(st.integers(0, int(tp > 1))),
        element_bytes=draw(st.sampled_from((2, 4))),
        vocab_multiple=draw(st.sampled_from((1, 128))),
    )


@st.composite
def software(draw):
    """A profile with its switches and shares turned at random."""
    from dataclasses import replace

    from meshwright.costmodels.profiles import find_profile, sourced_profiles

    share = st.sampled_from((0.0, 0.3, 0.9, 1.0))
    return replace(
        find_profile(draw(st.sampled_from(tuple(sourced_profiles())))),
        attention=draw(st.sampled_from(("cudnn", "flash-2", "megatron-softmax", "torch"))),
        norm=draw(st.sampled_from(("fused", "eager"))),
        recompute_exit=draw(st.booleans()),
        overlap_gradients=draw(share),
        overlap_parameters=draw(share),
        overlap_tensor=draw(share),
        overlap_cost=draw(share),
        layer_host_s=draw(st.sampled_from((0.0, 1e-4, 1e-2))),
        tensor_host_s=draw(st.sampled_from((0.0, 1e-3))),
    )


@st.composite
def cost_settings(draw, spec=None, machine=None, stack=None):
    """A setting: any small decoder, cluster, profile, recipe, optimizer and loss."""
    from tests.costmodels.cases import make_setting

    return make_setting(
        draw(decoders()) if spec is None else spec,
        draw(clusters()) if machine is None else machine,
        draw(software()) if stack is None else stack,
        precision=draw(st.sampled_from(("bf16", "fp16", "pure-bf16", "bf16-8bit", "fp32"))),
        optimizer=draw(st.sampled_from(("adamw", "momentum", "sgd"))),
        loss=draw(st.sampled_from(("full", "chunked", "fused"))),
        sequence_length=64 * draw(st.integers(1, 32)),
        vocab_multiple=draw(st.sampled_from((1, 128))),
    )


@st.composite
def degrees(draw, devices, max_pp):
    """Columns of one strategy whose degrees fit into a number of devices, with its schedule."""
    tp = draw(st.sampled_from([t for t in (1, 2) if t <= devices]))
    pp = draw(st.integers(1, min(max_pp, devices // tp, 5)))
    dp = draw(st.integers(1, min(devices // (tp * pp), 16)))
    vpp = draw(st.integers(2, 3)) if pp > 1 and 2 * pp <= max_pp and draw(st.booleans()) else 1
    vpp = vpp if pp * vpp <= max_pp else 1
    outer = draw(st.booleans())
    return {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "vpp": vpp,
        "zero_stage": draw(st.integers(0, 3)),
        "micro_batch_size": draw(st.integers(1, 4)),
        "num_microbatches": draw(st.integers(1, 3)) * (pp if vpp > 1 else 1),
        "sequence_parallel": draw(st.integers(0, int(tp > 1))),
        "data_stride": tp if outer else tp * pp,
        "pipeline_stride": tp * dp if outer else tp,
        "schedule": "interleaved" if vpp > 1 else draw(st.sampled_from(("1f1b", "gpipe"))),
    }


@st.composite
def plans(draw, modes=("none", "selective", "full"), **fixed):
    """What ``price`` takes: a setting, one strategy and its layer counts."""
    from tests.costmodels.cases import even_counts, make_strategies

    spec = fixed.pop("spec", None) or draw(decoders())
    setting = draw(cost_settings(spec=spec, **fixed))
    columns = draw(degrees(setting.cluster.num_devices, spec.layers + 2))
    counts = even_counts(spec, columns["pp"] * columns["vpp"], draw(st.sampled_from(modes)))
    return setting, make_strategies(**columns), counts
