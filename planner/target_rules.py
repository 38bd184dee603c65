"""Rules of legality that a target framework adds: what its files can say, alone and together."""

from collections.abc import Callable

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.schedule import splits_backward
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.planner.choice import Choice
from meshwright.planner.meshes import SCHEDULES, Meshes
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS
from meshwright.planner.pricing import loss_name
from meshwright.planner.problem import Problem
from meshwright.planner.rule import Rule, has_experts
from meshwright.planner.target import TARGET_DEGREES, Target
from meshwright.planner.target_job import context_refusals, pipeline_refusals, tensor_refusals


def target_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules that a problem's target adds."""
    t = problem.target
    able = [i for i, name in enumerate(SCHEDULES) if name in t.schedules]
    node = problem.cluster.devices_per_host
    allowed, piped = sorted(t.zero_stages), sorted(t.zero_stages & t.zero_stages_with_pipeline)
    return (
        Rule(
            "target tensor",
            f"{t.title}: no tensor parallelism in its files",
            lambda m: (m.tp == 1) | t.tensor,
        ),
        Rule(
            "target even hosts",
            f"{t.title} starts equally many processes on each host: its devices fill hosts of {node}, or lie "
            "on one",
            lambda m: (m.devices <= node) | (m.devices % node == 0) | (not t.even_hosts),
        ),
        Rule("target pipeline", f"{t.title}: no pipeline in its files", lambda m: (m.pp == 1) | t.pipeline),
        Rule(
            "target sequence parallelism",
            f"{t.title} has no sequence parallelism",
            lambda m: (m.sequence_parallel == 0) | t.sequence_parallel,
        ),
        Rule("target ZeRO", f"{t.title} has ZeRO {allowed}", lambda m: np.isin(m.zero_stage, allowed)),
        Rule(
            "ZeRO with a pipeline",
            f"with a pipeline {t.title} has ZeRO {piped}",
            lambda m: (m.pp == 1) | np.isin(m.zero_stage, piped),
        ),
        Rule(
            "target schedule",
            f"{t.title} has {', '.join(sorted(t.schedules))}",
            lambda m: np.isin(m.schedule_code, able) & ((m.vpp == 1) | t.interleaved),
        ),
        *_split_backward(problem),
        *_target_degrees(t),
        *_target_values(t),
        *_target_pairs(problem),
        *_target_pipeline(problem),
    )


def _split_backward(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on schedules that run weight gradients as passes of their own."""
    t, wanted = problem.target, problem.job.choices.get("recompute", Choice())
    split = [i for i, name in enumerate(SCHEDULES) if splits_backward(name)]
    stages, modes = sorted(t.zero_stages & t.split_zero_stages), t.recompute & t.split_recompute
    left = any(wanted.admits(mode) for mode in modes)
    return (
        Rule(
            "target ZeRO with weight passes",
            f"{t.title} has ZeRO {stages} with schedules that run weight gradients apart",
            lambda m: ~np.isin(m.schedule_code, split) | np.isin(m.zero_stage, stages),
        ),
        Rule(
            "target recompute with weight passes",
            f"{t.title} recomputes {', '.join(sorted(modes))} with schedules that run weight gradients apart",
            lambda m: ~np.isin(m.schedule_code, split) | left,
        ),
    )


def _target_degrees(t: Target) -> tuple[Rule, ...]:
    """Return the rules that a degree is 1 where the target's files cannot say it."""

    def alone(degree: str) -> Callable[[Meshes], BoolArray]:
        """Return the test that a degree is 1."""
        return lambda m: np.asarray(getattr(m, degree) == 1)

    return tuple(
        Rule(f"target {degree}", f"{t.title}: no {degree} in its files", alone(degree))
        for degree, able in TARGET_DEGREES
        if not getattr(t, able)
    )


def _target_values(t: Target) -> tuple[Rule, ...]:
    """Return the rules on values that the target has."""
    orders = [i for i, p in enumerate(PLACEMENTS) if p in t.placements]
    ways = [i for i, way in enumerate(KV_EXCHANGES) if way in t.kv_exchanges]
    hosts = [i for i, what in enumerate(OFFLOADS) if what in t.offload]
    return (
        Rule(
            "target placement",
            f"{t.title} has {' and '.join(','.join(PLACEMENTS[i]) for i in orders)}",
            lambda m: np.isin(m.placement, orders),
        ),
        Rule(
            "target key/value exchange",
            f"{t.title} has {', '.join(sorted(t.kv_exchanges))}",
            lambda m: (m.cp == m.ulysses) | np.isin(m.kv_exchange, ways),
        ),
        Rule(
            "target offload",
            f"{t.title} offloads {', '.join(sorted(t.offload))}",
            lambda m: np.isin(m.offload, hosts),
        ),
    )


def _heads_divide(problem: Problem, tp: IntArray) -> BoolArray:
    """Return whether tensor ranks share the parts that could have copies without any."""
    parts = [p for p in problem.model.parts if p.axis == "tensor" and p.replicable]
    return np.asarray(np.logical_and.reduce([np.ones_like(tp) > 0, *(int(p.units) % tp == 0 for p in parts)]))


def _target_pairs(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on decisions that a target has, but not together."""
    t, experts = problem.target, has_experts(problem)
    pipeline_last = [i for i, order in enumerate(PLACEMENTS) if order[-1] == "pp"]
    mixed = [i for i, way in enumerate(KV_EXCHANGES) if way in t.combined_exchanges]
    return (
        Rule(
            "target heads and keys",
            f"{t.title} exchanges heads among some context ranks and keys among the others by "
            f"{' or '.join(sorted(t.combined_exchanges)) or 'no way'} only",
            lambda m: (m.ulysses == 1) | (m.ulysses == m.cp) | np.isin(m.kv_exchange, mixed),
        ),
        Rule(
            "target copies and context",
            f"{t.title}: beside context ranks dp_replicate is below dp",
            lambda m: (m.cp == 1) | (m.dp_replicate == 1) | (m.dp_replicate < m.dp) | t.context_shards,
        ),
        Rule(
            "target experts and placement",
            f"{t.title}: with the pipeline inside the data ranks ep x etp equals tp x cp",
            lambda m: (
                np.isin(m.placement, pipeline_last)
                | (m.pp == 1)
                | (m.ep * m.etp == m.tp * m.cp)
                | (not experts or t.experts_across_pipeline)
            ),
        ),
        Rule(
            "target experts",
            f"{t.title} splits experts over the tensor ranks (etp = tp) or spreads them (ep above 1, etp 1)",
            lambda m: (
                (m.etp == np.where(m.ep > 1, 1, m.tp)) | (not experts or not t.experts_tensor_or_spread)
            ),
        ),
        Rule(
            "target key/value heads",
            f"{t.title} has no copies of key/value heads: tp divides them",
            lambda m: _heads_divide(problem, m.tp) | t.replicated_heads,
        ),
        Rule(
            "target ZeRO with the recipe",
            f"{t.title} trains with {problem.precision.name} under ZeRO 1 to 3 only",
            lambda m: (m.zero_stage > 0) | (problem.precision.name not in t.sharded_precisions),
        ),
        Rule(
            "target ZeRO with the optimizer",
            f"{t.title} trains by {problem.job.optimizer} under ZeRO 1 to 3 only",
            lambda m: (m.zero_stage > 0) | (problem.job.optimizer not in t.sharded_optimizers),
        ),
    )


def _target_pipeline(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on what a target can train in a pipeline, over tensor or over context ranks."""
    t = problem.target
    hosts = [i for i, what in enumerate(OFFLOADS) if what in t.pipeline_offload]
    unpiped = pipeline_refusals(t, problem.base, problem.job, loss_name(problem, 2))
    unsplit = tensor_refusals(t, problem.base, problem.job, loss_name(problem))
    undealt = context_refusals(t, problem.base, problem.job, loss_name(problem))
    return (
        Rule(
            "target pipeline model",
            f"{t.title} has a pipeline for some models only: {'; '.join(unpiped) or 'this is one'}",
            lambda m: (m.pp == 1) | (not unpiped),
        ),
        Rule(
            "target tensor model",
            f"{t.title} splits some models only over tensor ranks: {'; '.join(unsplit) or 'this is one'}",
            lambda m: (m.tp == 1) | (not unsplit),
        ),
        Rule(
            "target context model",
            f"{t.title} splits some models only over context ranks: {'; '.join(undealt) or 'this is one'}",
            lambda m: (m.cp == 1) | (not undealt),
        ),
        Rule(
            "target tensor with a pipeline",
            f"{t.title} has tensor ranks or a pipeline, not both",
            lambda m: (m.tp == 1) | (m.pp == 1) | t.tensor_with_pipeline,
        ),
        Rule(
            "target offload with a pipeline",
            f"with a pipeline {t.title} offloads {', '.join(sorted(t.pipeline_offload))}",
            lambda m: (m.pp == 1) | np.isin(m.offload, hosts),
        ),
        Rule(
            "target tied embeddings",
            f"{t.title} has no pipeline for tied embeddings",
            lambda m: (m.pp == 1) | (t.tied_pipeline or not problem.model.tied),
        ),
    )
