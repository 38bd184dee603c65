"""What a target framework can express: the search is restricted to it, so every plan can be launched."""

from dataclasses import dataclass

from meshwright.costmodels.schedule import names as schedules
from meshwright.costmodels.schedule import splits_backward
from meshwright.costmodels.strategy import OFFLOADS
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
    split_zero_stages, split_recompute
        Which of its ZeRO stages and modes work with schedules that run weight gradients as passes of their
        own.
    pipeline_families
        Kinds of models (``model_type``) whose pipeline is a generated module, which trains all weights, sees
        all tokens and computes a whole cross entropy; None: pipelines are the framework's own, of any model.
    tensor_families
        Kinds of models that it splits over tensor ranks, training all weights with a whole cross entropy;
        None: any.
    context_families
        Kinds of models that it splits over context ranks, with attention to all tokens before, training all
        weights with a whole cross entropy; None: any.
    context_shards
        Whether states may be sharded over context ranks alone where there are copies of the shards.
    tensor_with_pipeline
        Whether tensor ranks and a pipeline go together.
    whole_embedding
        Whether each tensor rank holds the whole embedding (the head is split).
    pipeline_offload
        What it can offload beside a pipeline.
    vocab_multiple
        Each tensor-parallel rank's share of the vocabulary is padded to a multiple of this.
    partial_groups
        Whether interleaving works with micro-batches that are no multiple of ``pp``.
    uneven_chunks
        Whether the several chunks of a rank may hold different numbers of layers.
    usual_schedules
        Schedules that are searched where the job says nothing.
    combined_exchanges
        Ways of exchanging keys and values that it has beside an exchange of heads within smaller groups.
    experts_across_pipeline
        Whether experts may be spread over other ranks than ``tp x cp`` where the pipeline lies inside the
        data ranks.
    precisions, optimizers, losses, tunings
        Recipes, optimizers, cross entropies and kinds of tuning that it has; None: all.
    multi_token
        Whether it trains multi-token-prediction layers.
    decoders_only
        Whether its models are plain decoders: one stream of text, attention in every layer.
    recompute_modules
        Modules that its selective recomputation can name where a job lists some; None: all.
    selective_operators
        Light operators that its selective recomputation can name; None: all. A model with others has only
        the remaining modes there (:func:`meshwright.planner.target_job.fitted`).
    whole_recompute_precisions
        Recipes under which it runs no part of a layer again.
    sharded_precisions, sharded_optimizers
        Recipes and optimizers that it has with ZeRO 1 to 3 only.
    families
        Kinds of models (``model_type``) that it has; None: any.
    tied_pipeline
        Whether models with tied embeddings can have a pipeline.
    replicated_heads
        Whether tensor ranks may outnumber key/value heads, which then have copies.
    experts_tensor_or_spread
        Whether experts are split over the tensor ranks exactly where they are not spread over ranks.
    framework
        What an accelerator must support for it, where that is called otherwise than the target.
    even_hosts
        Whether it starts equally many processes on every host.
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
    split_zero_stages: frozenset[int] = ALL_STAGES
    split_recompute: frozenset[str] = frozenset(RECOMPUTE_MODES)
    pipeline_families: frozenset[str] | None = None
    tensor_families: frozenset[str] | None = None
    context_families: frozenset[str] | None = None
    context_shards: bool = True
    tensor_with_pipeline: bool = True
    whole_embedding: bool = False
    pipeline_offload: frozenset[str] = frozenset(OFFLOADS)
    vocab_multiple: int = 1
    partial_groups: bool = False
    uneven_chunks: bool = False
    usual_schedules: frozenset[str] = frozenset({"1f1b", "interleaved"})
    combined_exchanges: frozenset[str] = frozenset(KV_EXCHANGES)
    experts_across_pipeline: bool = True
    precisions: frozenset[str] | None = None
    optimizers: frozenset[str] | None = None
    losses: frozenset[str] | None = None
    tunings: frozenset[str] | None = None
    multi_token: bool = True
    decoders_only: bool = False
    recompute_modules: frozenset[str] | None = None
    selective_operators: frozenset[str] | None = None
    whole_recompute_precisions: frozenset[str] = frozenset()
    sharded_precisions: frozenset[str] = frozenset()
    sharded_optimizers: frozenset[str] = frozenset()
    families: frozenset[str] | None = None
    tied_pipeline: bool = True
    replicated_heads: bool = True
    experts_tensor_or_spread: bool = False
    framework: str | None = None
    even_hosts: bool = False
    loses: tuple[str, ...] = ()

    def modes_with(self, schedule: str) -> frozenset[str]:
        """Return the recompute modes that it has with a schedule."""
        return self.recompute & self.split_recompute if splits_backward(schedule) else self.recompute

    @property
    def needs(self) -> str:
        """What an accelerator must support, as its data file calls it."""
        return self.framework or self.name

    def least_zero_stage(self, precision: str, optimizer: str) -> int:
        """Return the lowest ZeRO stage under which it trains with a recipe and an optimizer."""
        sharded = precision in self.sharded_precisions or optimizer in self.sharded_optimizers
        return max(min(self.zero_stages), int(sharded))
