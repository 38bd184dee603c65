"""Small random problems: tiny decoders on machines whose rates and memory are drawn, so that limits bind."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.costmodels.profile import TRANSFERS_BESIDE
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.spec import Accelerator, Cluster, Tier
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.graph import ModelGraph
from meshwright.planner.job import Job
from meshwright.planner.pins import read_pins
from meshwright.planner.problem import Problem
from meshwright.planner.targets import find_target

PINS: tuple[dict[str, Any], ...] = (
    *({},) * 8,
    {"recompute": ["none", "full"]},
    {"recompute": ["selective", "full"]},
    {"tp": "<=2"},
    {"pp": ">=2"},
    {"schedule": "1f1b"},
    {"schedule": ["1f1b", "gpipe"]},
    {"zero_stage": "!3"},
    {"sequence_parallel": True},
    {"placement": "tp,pp,dp"},
)
WINDOWS: tuple[tuple[int | None, ...], ...] = (
    (None,),
    (None,),
    (64, None),
    (64, 64, None),
    (32, 64, None),
)


def _pick(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def tiny_model(rng: np.random.Generator, most_blocks: int = 6, even: bool = False) -> ModelGraph:
    """Return a decoder of 2 to ``most_blocks`` blocks, of one kind or of alternating windows."""
    heads = _pick(rng, (2, 4))
    return decoder_graph(
        DecoderSpec(
            hidden=64 * int(rng.integers(1, 5)),
            layers=int(rng.integers(2, most_blocks + 1)),
            heads=heads,
            kv_heads=_pick(rng, (1, heads)),
            head_dim=32,
            ffn=_pick(rng, (128, 256, 512)),
            vocab=_pick(rng, (512, 2048, 8192)),
            gated=bool(rng.integers(2)),
            tied=bool(rng.integers(2)),
            windows=(None,) if even else _pick(rng, WINDOWS),
        ),
        "tiny",
    )


def machine(
    rng: np.random.Generator, devices: int, memory_bytes: float = 1e15, *, linked: bool = True
) -> Cluster:
    """Return equal devices in one or two tiers, with rates over orders of magnitude.

    ``linked`` ones have a way to their host, so that activations may be offloaded.
    """
    base = load_accelerator("h100-sxm")
    device: Accelerator = replace(
        base,
        host_link=base.host_link if linked else None,
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=_log(rng, 1e10, 3e12),
        peak_flops_per_s={"bf16": _log(rng, 1e11, 1e14)},
        num_cores=_pick(rng, (4, 16, 132)),
        achieved=replace(base.achieved, kernel_launch_s=_pick(rng, (0.0, 1e-6)), context_bytes=1e5),
    )

    def tier(fan_out: int, slower: float) -> Tier:
        return Tier("drawn", "switch", fan_out, _log(rng, 1e9, 4e11) / slower, _pick(rng, (1e-7, 1e-6, 1e-5)))

    fan_outs = (2, devices // 2) if devices in (4, 6, 8) and rng.integers(2) else (devices,)
    tiers = tuple(tier(n, 1.0 + 7 * i) for i, n in enumerate(fan_outs))
    return Cluster("drawn", device, tiers, devices_per_host=fan_outs[0])


def with_profile(problem: Problem, **changes: Any) -> Problem:
    """Return the problem under its profile with some numbers changed."""
    problem.__dict__["profile"] = replace(problem.profile, **changes)
    return problem


def names_offload(pins: Mapping[str, Any]) -> bool:
    """Return whether pins name a decision that needs a host link."""
    return "offload" in pins or "offload" in pins.get("recompute", ())


def random_problem(
    seed: int, most_blocks: int = 6, most_devices: int = 8, pinned: Mapping[str, Any] | None = None
) -> Problem:
    """Return a small problem without a limit on memory; the same for the same seed.

    ``pinned`` decisions replace those drawn, for a target that has them all.
    """
    rng = np.random.default_rng(seed)
    target = _pick(rng, ("any", "any", "any", "any", "deepspeed", "fsdp"))
    target = target if pinned is None else "any"
    devices = _pick(rng, [d for d in (1, 2, 3, 4, 6, 8) if d <= most_devices])
    model = tiny_model(rng, most_blocks)
    pins = _pick(rng, PINS) if find_target(target).tensor else {}
    pins = pins if pinned is None else pinned
    linked = names_offload(pins) or (pinned is None and seed % 3 == 0)  # one more mode takes its time
    batch = _pick(rng, (2, 4, 6, 8, 12)) if find_target(target).tensor else devices * _pick(rng, (1, 2, 4))
    job = Job(
        global_batch_size=batch * (3 if devices in (3, 6) and rng.integers(2) else 1),
        sequence_length=_pick(rng, (64, 128, 512)),
        precision=_pick(rng, ("bf16", "bf16", "pure-bf16")),
        target=target,
        headroom=0.0,
        choices=read_pins(pins),
        allow_idle=bool(rng.integers(5) == 0),
    )
    return with_profile(
        Problem(model, machine(rng, devices, linked=linked), job),
        overlap_gradients=_pick(rng, (0.0, 0.5, 0.9)),
        overlap_parameters=_pick(rng, (0.0, 0.9)),
        overlap_cost=_pick(rng, (0.0, 0.16, 0.5)),
        communicator_bytes=_pick(rng, (0.0, 1e6)),
        bucket_bytes=_pick(rng, (0.0, 1e5)),
        layer_host_s=_pick(rng, (0.0, 1e-6)),
        step_fixed_s=_pick(rng, (0.0, 1e-5)),
        optimizer_fraction=_pick(rng, (0.02, 0.8)),
        # Drawn last: what was drawn before it stays what it was.
        tensor_host_s=_pick(rng, (0.0, 1e-6)),
        overlap_transfers=_pick(rng, TRANSFERS_BESIDE),
        transfers_split=bool(rng.integers(2)),
        records_streams=bool(rng.integers(2)),
        overlap_backward=bool(rng.integers(2)),
        flat_gradients=bool(rng.integers(2)),
        pipeline_loss=_pick(rng, ("", "torch", "eager")),
        kept_keys=_pick(rng, (0, 0, 1, 2)),
    )


def with_uneven_chunks(problem: Problem) -> Problem:
    """Return the problem as if its target took chunks of any size."""
    problem.__dict__["target"] = replace(problem.target, uneven_chunks=True)
    return problem


def with_memory(problem: Problem, usable: float, host_share: float | None = None) -> Problem:
    """Return the problem with another memory of its devices, and of their hosts."""
    device = replace(problem.cluster.accelerator, memory_bytes=usable / (1 - problem.headroom.share))
    host = None if host_share is None else host_share * problem.cluster.devices_per_host
    cluster = replace(problem.cluster, accelerator=device, host_memory_bytes=host)
    changed = Problem(problem.base, cluster, problem.job)
    changed.__dict__.update(profile=problem.profile, target=problem.target)
    return changed
