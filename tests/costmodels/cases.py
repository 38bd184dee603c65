"""Settings, strategies and layer counts that tests of the cost models are made of."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.precision import find_optimizer, find_precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.roofline import device_rates
from meshwright.costmodels.schedule import legal
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.spec import Cluster
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec

ROUNDING = 1 + 1e-12
"""Sums in another order differ by less."""
SMALL = DecoderSpec(hidden=256, layers=6, heads=8, kv_heads=4, head_dim=32, ffn=512, vocab=1000)


def make_setting(
    spec: DecoderSpec = SMALL,
    cluster: Cluster | str = "dgx-h100:1",
    profile: Profile | str = "generic",
    *,
    precision: str = "bf16",
    optimizer: str = "adamw",
    loss: str = "full",
    sequence_length: int = 512,
    vocab_multiple: int = 1,
    **overrides: object,
) -> Setting:
    """Return the setting of a decoder; ``overrides`` replace fields of the profile."""
    stack = replace(find_profile(profile) if isinstance(profile, str) else profile, **overrides)
    machine = load_cluster(cluster) if isinstance(cluster, str) else cluster
    recipe = find_precision(precision)
    return Setting(
        kinds=tuple(
            adapt(kind, stack, find_loss(loss), recipe) for kind in decoder_graph(spec, "drawn").kinds
        ),
        sequence_length=sequence_length,
        cluster=machine,
        rates=device_rates(machine.accelerator, recipe),
        precision=recipe,
        optimizer=find_optimizer(optimizer),
        profile=stack,
        vocab_multiple=vocab_multiple,
    )


def make_strategies(schedule: Sequence[str] | str = "1f1b", **columns: Sequence[int] | int) -> Strategies:
    """Return a batch of strategies from columns; what is left out is 1 (0 for ZeRO, off for sequences).

    Pipelines lie outermost unless the strides say otherwise.
    """
    names = (
        *("tp", "pp", "dp", "cp", "ep", "etp", "dp_replicate", "hpz", "vpp", "ulysses", "ring"),
        *("micro_batch_size", "num_microbatches"),
    )
    values = dict.fromkeys(names, 1) | {"zero_stage": 0, "sequence_parallel": 0, "offload": 0} | columns
    size = max(np.size(v) for v in values.values())
    arrays = {k: np.broadcast_to(np.asarray(v, dtype=np.int64), size).copy() for k, v in values.items()}
    arrays.setdefault("context_stride", arrays["tp"])
    arrays.setdefault("data_stride", arrays["tp"] * arrays["cp"])
    arrays.setdefault("pipeline_stride", arrays["tp"] * arrays["cp"] * arrays["dp"])
    arrays.setdefault("inner", arrays["tp"] * arrays["cp"] * arrays["dp"])
    told = (schedule,) * size if isinstance(schedule, str) else tuple(schedule)
    return Strategies(**arrays, schedule=told)


def even_counts(spec: DecoderSpec, chunks: int, mode: str = "none", width: int | None = None) -> np.ndarray:
    """Return counts (1, width, K, M): all layers in order, cut as evenly as can be, blocks in one mode."""
    order = decoder_graph(spec, "drawn").layer_kinds
    kinds = max(order) + 1
    table = np.zeros((1, width or chunks, kinds, len(MODES)), dtype=np.int64)
    for layer, kind in enumerate(order):
        block = 0 < layer < len(order) - 1
        table[0, layer * chunks // len(order), kind, MODES.index(mode) if block else 0] += 1
    return table


def smallest_vpp(name: str) -> int:
    """Return one chunk a rank where the schedule allows it, else two."""
    return 1 if legal(name, 8, 1, 32) is None else 2
