"""What each target framework can express: the search is restricted to it, so every plan can be launched."""

from dataclasses import dataclass

from meshwright.costmodels.schedule import names as schedules
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS, RECOMPUTE_MODES

ALL_STAGES = frozenset({0, 1, 2, 3})
TARGET_DEGREES = (
    ("cp", "context"),
    ("ulysses", "ulysses"),
    ("ep", "expert"),
    ("etp", "expert_tensor"),
    ("dp_replicate", "hybrid"),
    ("hpz", "secondary"),
)
"""Degrees, and the field of a target that says whether it has them."""


@dataclass(frozen=True)
class Target:
    """A framework's limits on the decisions of a plan.

    Attributes
    ----------
    profile
        The software profile that prices what this framework runs.
    tensor, pipeline, interleaved, sequence_parallel
        Which decisions it can express.
    context, ulysses, expert, expert_tensor, hybrid, secondary
        Likewise: ``cp``, exchange of heads, ``ep``, ``etp``, ``dp_replicate`` and ``hpz`` above 1.
    kv_exchanges, placements, schedules, offload
        Values that it has.
    zero_stages, zero_stages_with_pipeline
        ZeRO stages it has, alone and together with a pipeline.
    recompute
        Modes it has; ``recompute_uniform`` if all layers share one.
    vocab_multiple
        Each tensor-parallel rank's share of the vocabulary is padded to a multiple of this.
    partial_groups
        Whether interleaving works with micro-batches that are no multiple of ``pp``.
    uneven_chunks
        Whether the several chunks of a rank may hold different numbers of layers.
    loses
        Decisions that a plan loses by going there, in words.
    """

    name: str
    title: str
    profile: str
    tensor: bool = True
    pipeline: bool = True
    interleaved: bool = True
    sequence_parallel: bool = True
    context: bool = True
    ulysses: bool = True
    expert: bool = True
    expert_tensor: bool = True
    hybrid: bool = True
    secondary: bool = True
    kv_exchanges: frozenset[str] = frozenset(KV_EXCHANGES)
    placements: frozenset[tuple[str, ...]] = frozenset(PLACEMENTS)
    offload: frozenset[str] = frozenset(OFFLOADS)
    schedules: frozenset[str] = frozenset(schedules())
    zero_stages: frozenset[int] = ALL_STAGES
    zero_stages_with_pipeline: frozenset[int] = frozenset({0, 1})
    recompute: frozenset[str] = frozenset(RECOMPUTE_MODES)
    recompute_uniform: bool = False
    vocab_multiple: int = 1
    partial_groups: bool = False
    uneven_chunks: bool = False
    loses: tuple[str, ...] = ()


TARGETS = {
    t.name: t
    for t in (
        Target("any", "any framework", profile="generic", vocab_multiple=128),
        Target(
            "deepspeed",
            "DeepSpeed JSON",
            profile="deepspeed",
            tensor=False,
            pipeline=False,
            interleaved=False,
            sequence_parallel=False,
            context=False,
            ulysses=False,
            expert=False,
            expert_tensor=False,
            hybrid=False,
            schedules=frozenset({"1f1b"}),
            recompute=frozenset({"none", "full"}),
            recompute_uniform=True,
            loses=("every degree but data", "hybrid sharding", "recompute layer by layer"),
        ),
        Target(
            "fsdp",
            "FSDP2 through Accelerate",
            profile="fsdp2",
            tensor=False,
            pipeline=False,
            interleaved=False,
            sequence_parallel=False,
            context=False,
            ulysses=False,
            expert=False,
            expert_tensor=False,
            secondary=False,
            offload=frozenset({"none", "parameters"}),
            schedules=frozenset({"1f1b"}),
            zero_stages=frozenset({2, 3}),
            recompute=frozenset({"none", "full"}),
            recompute_uniform=True,
            loses=(
                "every degree but data",
                "optimizer offload alone",
                "ZeRO 0 and 1",
                "recompute layer by layer",
            ),
        ),
    )
}


def find_target(name: str) -> Target:
    """Return a target by name.

    Raises
    ------
    UnknownNameError
        With near matches.
    """
    if name not in TARGETS:
        raise UnknownNameError("target", name, list(TARGETS))
    return TARGETS[name]
