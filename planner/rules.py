"""Rules of legality: each has a name that messages use, and is one test over a whole batch of meshes."""

from collections.abc import Callable

import numpy as np

from meshwright.costmodels.arrays import BoolArray
from meshwright.costmodels.strategy import OFFLOADS, ON_NVME, WEIGHTS_AWAY
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.meshes import Meshes
from meshwright.planner.model_rules import model_rules
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS
from meshwright.planner.problem import Problem
from meshwright.planner.rule import Rule, causes
from meshwright.planner.schedule_rules import schedule_rules
from meshwright.planner.target_rules import target_rules


def rules(problem: Problem) -> tuple[Rule, ...]:
    """Return all rules of a problem, cheapest and most telling first."""
    return (
        *_device_rules(problem),
        *model_rules(problem),
        *_sharding_rules(problem),
        *schedule_rules(problem),
        *target_rules(problem),
        *_pin_rules(problem),
    )


def _device_rules(problem: Problem) -> tuple[Rule, ...]:
    cluster, job = problem.cluster, problem.job
    total, batch = cluster.num_devices, job.global_batch_size
    lacking = [
        p for p in ("tp", "pp", "dp", "zero", "cp", "ep") if p not in cluster.accelerator.support.parallelisms
    ]
    return (
        Rule(
            "device count",
            f"tp x cp x pp x dp {'is at most' if job.allow_idle else 'equals'} {total} devices",
            lambda m: m.devices <= total if job.allow_idle else m.devices == total,
            lambda m: f"here {m.devices[0]}",
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
        return lambda m: (m.zero_stage == 0) | (m.shards == 1)
    return lambda m: np.asarray(getattr(m, name) == 1)


def _sharding_rules(problem: Problem) -> tuple[Rule, ...]:
    cluster, node = problem.cluster, problem.cluster.devices_per_host
    linked, drives = cluster.accelerator.host_link is not None, cluster.nvme_bytes_per_s is not None
    return (
        Rule(
            "copies of shards",
            "dp_replicate divides dp, and above 1 needs ZeRO 1 to 3 over several ranks",
            lambda m: (
                (m.dp % m.dp_replicate == 0) & ((m.dp_replicate == 1) | ((m.zero_stage > 0) & (m.shards > 1)))
            ),
        ),
        Rule(
            "secondary shards",
            f"hpz divides dp / dp_replicate, and above 1 needs ZeRO-3 and ranks of one node ({node} devices)",
            lambda m: (
                (m.dp // m.dp_replicate % m.hpz == 0)
                & ((m.hpz == 1) | ((m.zero_stage == 3) & (m.hpz * m.stride("dp") <= node)))
            ),
        ),
        Rule(
            "offload needs a host link",
            f"{cluster.accelerator.name} has {'a' if linked else 'no'} link to host memory",
            lambda m: (m.offload == 0) | linked,
        ),
        Rule(
            "offloaded states are split",
            "offloading needs ZeRO 1 to 3, that of parameters ZeRO-3: what is whole stays on the device",
            lambda m: (
                (m.offload == 0) | (m.zero_stage == 3) | ((m.zero_stage > 0) & ~WEIGHTS_AWAY[m.offload])
            ),
        ),
        Rule(
            "offload to drives",
            f"offloading to NVMe needs ZeRO-3 (as in DeepSpeed) and a cluster that says what the drives of a "
            f"host move; {cluster.name} {'does' if drives else 'does not: give nvme_gb_per_s'}",
            lambda m: ~ON_NVME[m.offload] | ((m.zero_stage == 3) & drives),
        ),
    )


def _pin_rules(problem: Problem) -> tuple[Rule, ...]:
    def test(name: str, choice: Choice) -> Callable[[Meshes], BoolArray]:
        """Return the test of one choice."""

        def allows(m: Meshes) -> BoolArray:
            """Return where the choice admits a column's value."""
            column = getattr(m, name)
            values, back = np.unique(column, return_inverse=True)
            passes = np.array([choice.admits(plain_value(name, v.item())) for v in values], dtype=np.bool_)
            return passes[back.reshape(-1)]

        return allows

    return tuple(
        Rule(f"pin {name}", f"{name} is pinned or bounded by the job", test(name, c))
        for name, c in problem.job.choices.items()
        if name != "recompute"
    )


def plain_value(name: str, value: int | str) -> int | str | bool:
    """Return a column's value as a job writes it."""
    tables = {"placement": PLACEMENTS, "kv_exchange": KV_EXCHANGES, "offload": OFFLOADS}
    if name in tables:
        found = tables[name][int(value)]
        return ",".join(found) if name == "placement" else str(found)
    return bool(value) if name == "sequence_parallel" else value


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
    """Refuse one mesh that breaks a rule.

    Raises
    ------
    MeshwrightError
        Telling every cause once, by the name of its rule and what that asks for.
    """
    broken = [rule for rule in rules(problem) if not rule.allows(mesh)[0]]
    if broken:
        raise MeshwrightError(f"strategy ({mesh.describe(0)}): {'; '.join(causes(broken, mesh))}")
