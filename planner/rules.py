"""Rules of legality: each has a name that messages use, and is one test over a whole batch of meshes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import BoolArray
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.meshes import Meshes
from meshwright.planner.plan import PLACEMENTS
from meshwright.planner.problem import Problem
from meshwright.planner.target import TARGETS

MOST_MICROBATCHES = 8192
"""Far beyond any run that was published; the event simulation grows with them."""


@dataclass(frozen=True)
class Rule:
    """A rule: ``allows`` returns a mask over meshes, ``says`` explains what it asks for."""

    name: str
    says: str
    allows: Callable[[Meshes], BoolArray]


def check_problem(problem: Problem) -> None:
    """Refuse what no mesh can mend: the accelerator cannot train, or lacks the dtype or the target.

    Raises
    ------
    MeshwrightError
        Naming what is lacking.
    """
    device, target, recipe = problem.cluster.accelerator, problem.target, problem.precision
    support = device.support
    if not support.training:
        raise MeshwrightError(
            f"cluster: {device.name} cannot train (inference only); choose another accelerator"
        )
    if recipe.compute not in device.peak_flops_per_s or recipe.compute not in support.dtypes:
        have = ", ".join(sorted(support.dtypes & set(device.peak_flops_per_s)))
        raise MeshwrightError(f"precision: {device.name} does not compute in {recipe.compute}; it has {have}")
    if target.name != "any" and target.name not in support.targets:
        have = ", ".join(sorted({"any"} | (support.targets & set(TARGETS))))
        raise MeshwrightError(f"target: {target.name} does not run on {device.name}; supported there: {have}")
    limit = problem.model.max_sequence_length
    learned = problem.model.attributes.get("positions") == "learned"
    if learned and limit is not None and problem.job.sequence_length > limit:
        raise MeshwrightError(
            f"sequence_length: {problem.job.sequence_length} exceeds the {limit} learned positions of "
            f"{problem.model.name}"
        )


def rules(problem: Problem) -> tuple[Rule, ...]:
    """Return all rules of a problem, cheapest and most telling first."""
    return (*_device_rules(problem), *_model_rules(problem), *_target_rules(problem), *_pin_rules(problem))


def _device_rules(problem: Problem) -> tuple[Rule, ...]:
    cluster, job = problem.cluster, problem.job
    total, batch = cluster.num_devices, job.global_batch_size
    lacking = [p for p in ("tp", "pp", "dp", "zero") if p not in cluster.accelerator.support.parallelisms]
    return (
        Rule(
            "device count",
            f"tp x pp x dp {'is at most' if job.allow_idle else 'equals'} {total} devices",
            lambda m: m.devices <= total if job.allow_idle else m.devices == total,
        ),
        Rule(
            "batch divisible",
            f"dp x micro-batch size x micro-batches equals the global batch of {batch}",
            lambda m: m.dp * m.micro_batch_size * m.num_microbatches == batch,
        ),
        *(
            Rule(
                f"accelerator lacks {p}",
                f"{cluster.accelerator.name} does not support {p}",
                _unused(p),
            )
            for p in lacking
        ),
    )


def _unused(name: str) -> Callable[[Meshes], BoolArray]:
    """Return the test that a parallelism is not used: its degree is 1, or nothing is sharded by ZeRO."""
    if name == "zero":
        return lambda m: (m.zero_stage == 0) | (m.dp == 1)
    return lambda m: np.asarray(getattr(m, name) == 1)


def _model_rules(problem: Problem) -> tuple[Rule, ...]:
    length, layers = problem.job.sequence_length, problem.model.num_layers

    def divides(units: int, replicable: bool) -> Callable[[Meshes], BoolArray]:
        return lambda m: (units % m.tp == 0) | (replicable & (m.tp % units == 0))

    return (
        *(
            Rule(
                f"tp divides {part.what}",
                f"tp divides the {part.units} {part.what}" + (" or is a multiple" if part.replicable else ""),
                divides(int(part.units), part.replicable),
            )
            for part in problem.model.parts
            if not part.padded
        ),
        Rule(
            "tp within the vocabulary",
            "each tensor rank holds a row of the vocabulary",
            lambda m: m.tp <= problem.model.vocab_size,
        ),
        Rule(
            "sequence parallelism divides the length",
            f"with sequence parallelism tp is above 1 and divides {length} tokens",
            lambda m: (m.sequence_parallel == 0) | ((m.tp > 1) & (length % m.tp == 0)),
        ),
        Rule(
            "micro-batches within reach",
            f"a step has at most {MOST_MICROBATCHES} micro-batches: each is simulated; make them larger",
            lambda m: m.num_microbatches <= MOST_MICROBATCHES,
        ),
        Rule(
            "a layer for each chunk",
            f"pp x vpp is at most {layers} layers (embedding and head included)",
            lambda m: m.pp * m.vpp <= layers,
        ),
    )


def _target_rules(problem: Problem) -> tuple[Rule, ...]:
    t = problem.target
    allowed, piped = sorted(t.zero_stages), sorted(t.zero_stages & t.zero_stages_with_pipeline)
    return (
        Rule(
            "target tensor",
            f"{t.title}: no tensor parallelism in its files",
            lambda m: (m.tp == 1) | t.tensor,
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
            lambda m: np.isin(m.schedule, sorted(t.schedules)) & ((m.vpp == 1) | t.interleaved),
        ),
        Rule(
            "interleaving",
            "the interleaved schedule, and no other, has vpp above 1 and pp above 1",
            lambda m: np.where(m.schedule == "interleaved", (m.vpp > 1) & (m.pp > 1), m.vpp == 1),
        ),
        Rule(
            "micro-batches fill the groups",
            "interleaving needs micro-batches that are a multiple of pp",
            lambda m: (m.vpp == 1) | (m.num_microbatches % m.pp == 0) | t.partial_groups,
        ),
    )


def _pin_rules(problem: Problem) -> tuple[Rule, ...]:
    def test(name: str, choice: Choice) -> Callable[[Meshes], BoolArray]:
        def allows(m: Meshes) -> BoolArray:
            column = getattr(m, name)
            values, back = np.unique(column, return_inverse=True)
            passes = np.array([choice.admits(_plain(name, v.item())) for v in values], dtype=np.bool_)
            return passes[back.reshape(-1)]

        return allows

    return tuple(
        Rule(f"pin {name}", f"{name} is pinned or bounded by the job", test(name, c))
        for name, c in problem.job.choices.items()
        if name != "recompute"
    )


def _plain(name: str, value: int | str) -> int | str | bool:
    """Return a column's value as a job writes it."""
    if name == "placement":
        return ",".join(PLACEMENTS[int(value)])
    return bool(value) if name == "sequence_parallel" else value


def violations(problem: Problem, meshes: Meshes) -> dict[str, int]:
    """Return for each rule how many meshes it forbids."""
    return {rule.name: int((~rule.allows(meshes)).sum()) for rule in rules(problem)}


def legal(problem: Problem, meshes: Meshes) -> tuple[BoolArray, dict[str, int]]:
    """Return the mask of legal meshes, and how many each rule discarded first."""
    passed = np.ones(len(meshes), dtype=np.bool_)
    discarded: dict[str, int] = {}
    for rule in rules(problem):
        allowed = rule.allows(meshes)
        fresh = int((passed & ~allowed).sum())
        if fresh:
            discarded[rule.name] = fresh
        passed &= allowed
    return passed, discarded


def check_mesh(problem: Problem, mesh: Meshes) -> None:
    """Refuse one mesh that breaks a rule, naming each rule and what it asks for.

    Raises
    ------
    MeshwrightError
        Listing every broken rule.
    """
    broken = [rule for rule in rules(problem) if not rule.allows(mesh)[0]]
    if broken:
        told = "; ".join(f"{rule.name}: {rule.says}" for rule in broken)
        raise MeshwrightError(f"strategy ({mesh.describe(0)}): {told}")
