"""Why a problem has no plan: the rule that binds, by how much, and what a search found to lift it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from meshwright.costmodels.loss import LOSSES
from meshwright.costmodels.precision import PRECISIONS
from meshwright.hardware.spec import Cluster, Tier
from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.binding import unpinned
from meshwright.planner.bounds import Demand
from meshwright.planner.choice import Choice
from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.cpsat.scaling import Limits
from meshwright.planner.expand import expand
from meshwright.planner.field import Field, survey
from meshwright.planner.heuristic import Found, any_fits, weigh_splits
from meshwright.planner.meshes import mesh_of
from meshwright.planner.model_rules import MOST_MICROBATCHES, splits_sequence
from meshwright.planner.modes import host_linked
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate, Infeasibility
from meshwright.planner.rules import plain_value
from meshwright.planner.space import LEAST_CONTEXT_TOKENS, degrees, enumerate_meshes
from meshwright.planner.spill import spilled

LIGHTEST_TRIED = 6
"""Meshes in which CP-SAT looks for the lowest peak."""
FIT_TRIED = 200
"""Meshes of lowest memory floor that are tried to see whether a changed problem fits."""
LIGHT_LIMIT = 2.0
"""Seconds for each of them."""
GROWTH = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
"""Multiples of the nodes that are tried, smallest first."""


def explain(f: Field, expired: Callable[[], bool]) -> Infeasibility:
    """Return why no plan exists, and remedies that were checked before the clock ran out."""
    if not len(f.meshes):
        return _no_mesh(f.problem, f.discarded, expired)
    return _no_room(f, expired)


def _no_mesh(problem: Problem, discarded: dict[str, int], expired: Callable[[], bool]) -> Infeasibility:
    """No mesh passes the rules: the batch, the pins, or the rules of model and target."""
    near = nearest_batches(problem)
    if near:
        batch = problem.job.global_batch_size
        message = (
            f"the global batch of {batch} sequences is not divisible by any data degree that these devices "
            f"allow; nearest batches that are: {', '.join(map(str, near))}"
        )
        remedies = (
            f"a global batch of {' or '.join(map(str, near))}",
            *_working(problem, expired),
        )
        return Infeasibility("batch divisible", message, remedies=remedies)
    broken = {name: count for name, count in discarded.items() if count}
    if broken:
        rule = max(broken, key=lambda name: broken[name])
        told = ", ".join(f"{name} ({count})" for name, count in broken.items())
        message = f"no mesh satisfies every rule; forbidden by: {told}"
    else:
        rule, message = _no_degrees(problem)
    unknown = _untried(problem) if "offload to drives" in broken else ()
    return Infeasibility(rule, message, remedies=_lifting(problem, expired), untried=unknown)


def _no_degrees(problem: Problem) -> tuple[str, str]:
    """Return the rule and the reason why no mesh is left to test: a pin, several pins, or the devices."""
    total, job = problem.cluster.num_devices, problem.job
    free = replace(problem, job=replace(job, choices={}))
    for name, wanted in job.choices.items():
        alone = replace(problem, job=replace(job, choices={name: wanted}))
        if name != "recompute" and not len(enumerate_meshes(alone)):
            why = f"the pin on {name} admits none of {_possible(free, name)}"
            return f"pin {name}", why + (_shortest_parts(problem) if name == "ulysses" else "")
    pins = f" and the pins on {', '.join(job.choices)} together" if job.choices else ""
    return "device count", f"no tp x cp x pp x dp of this model{pins} uses exactly {total} devices"


def _shortest_parts(problem: Problem) -> str:
    """Say that context ranks, whose heads ``ulysses`` exchanges, are more only where a job pins them."""
    if "cp" in problem.job.choices or not (problem.target.context and splits_sequence(problem)):
        return ""
    least = f"{LEAST_CONTEXT_TOKENS:,} tokens"
    return (
        f"; it divides cp, and a cp with parts of fewer than {least} is searched only if pinned: pin cp too"
    )


def _possible(free: Problem, name: str) -> str:
    """Say which values a decision may take here, and of which target where it has no other."""
    column = np.unique(getattr(enumerate_meshes(free), name)).tolist()
    values = list(dict.fromkeys(str(plain_value(name, v)) for v in column))
    shown = ", ".join(values[:12]) + (", ..." if len(values) > 12 else "")
    why = f" ({free.target.title} has no other)" if len(values) == 1 and free.job.target != "any" else ""
    return f"the values that are possible here: {shown}{why}"


def nearest_batches(problem: Problem) -> tuple[int, ...]:
    """Return the nearest batches below and above that some data degree divides; none if the batch is fine."""
    batch = problem.job.global_batch_size
    degree = {dp for *_, dp in degrees(problem)}
    if not degree or any(batch % dp == 0 for dp in degree):
        return ()
    below = max((batch // dp * dp for dp in degree), default=0)
    above = min(-(-batch // dp) * dp for dp in degree)
    return tuple(b for b in (below, above) if b > 0)


def _no_room(f: Field, expired: Callable[[], bool]) -> Infeasibility:
    """Nothing fits memory: the lightest plan that was found, and by how much it misses."""
    lightest = _lightest(f, expired)
    if lightest is None:
        floor = float(f.floor_bytes.min())
        missing = max(0.0, floor - f.usable)
        message = (
            f"memory: even spread over all devices one needs at least {_gib(floor)} GiB, "
            f"{_gib(f.usable)} are usable"
        )
        return _short("memory", message, missing, None, f.problem, expired)
    if lightest.fits_device and not lightest.fits_host:
        return _no_host_room(f, lightest, expired)
    missing = max(lightest.peak_bytes) - f.usable
    stage = int(np.argmax(lightest.peak_bytes))
    device, plan = f.problem.cluster.accelerator.name, lightest.plan
    message = (
        f"memory: the lightest plan found ({mesh_of(plan).describe(0)}) needs "
        f"{_gib(max(lightest.peak_bytes))} GiB on stage {stage}; "
        f"{device} has {_gib(lightest.capacity_bytes)}, {_gib(f.usable)} usable: {_gib(missing)} GiB too many"
    )
    return _short("memory", message, missing, lightest, f.problem, expired)


def _short(
    rule: str,
    message: str,
    missing: float,
    closest: Estimate | None,
    problem: Problem,
    expired: Callable[[], bool],
) -> Infeasibility:
    """Return what is short, with the remedies that work and those that cannot be tried."""
    return Infeasibility(rule, message, missing, closest, _working(problem, expired), _untried(problem))


def _no_host_room(f: Field, lightest: Estimate, expired: Callable[[], bool]) -> Infeasibility:
    """Devices would hold the lightest plan, but its host does not hold what it offloads."""
    drives = lightest.plan.offload.endswith("nvme")
    held, share = lightest.host_bytes, f.limits.host
    if drives and max(lightest.nvme_bytes) > f.limits.nvme:
        held, share = lightest.nvme_bytes, f.limits.nvme
    place = "drives" if held is lightest.nvme_bytes else "host memory"
    missing = max(held) - share
    message = (
        f"{place}: the lightest plan found ({mesh_of(lightest.plan).describe(0)}) keeps {_gib(max(held))} "
        f"GiB of each device there; a device's share of {f.problem.cluster.name} is {_gib(share)} GiB: "
        f"{_gib(missing)} GiB too many"
    )
    return _short(place, message, missing, lightest, f.problem, expired)


def _gib(n_bytes: float) -> str:
    return f"{bytes_to_gib(n_bytes):.2f}"


def _lightest(f: Field, expired: Callable[[], bool]) -> Estimate | None:
    """Return the plan of lowest peak that CP-SAT finds in the meshes of lowest floor."""
    free = replace(f, limits=Limits(1e18), splits={})
    rows = np.argsort(f.floor_bytes, kind="stable")[:FIT_TRIED]
    light = _light_plans(free, rows)
    best: list[Found] = light[:1]
    for found in [] if expired() else light[:LIGHTEST_TRIED]:
        candidate = MeshSolver(free.task(found.row), 1e9, LIGHT_LIMIT).lightest()
        if candidate is not None:
            best.append(Found(found.row, candidate))
    if not best:
        return None
    winner = min(best, key=lambda found: found.candidate.peak_bytes)
    return price_plan(f.problem, expand(f, winner))


def _light_plans(free: Field, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Found]:
    """Return the evenly split plan of each mesh with the modes that keep least, lightest first.

    Offloading keeps nothing, but works in more room than others: the least without it is tried as well.
    """
    even = [split for row in rows for split in free.even_splits(int(row))]
    if not even:
        return []
    kept = free.tables.take(np.array([split.row for split in even])).saved_bytes
    laid = []
    for split, saved in zip(even, kept, strict=True):
        want = free.wanted(split.row)
        for own in filter(Demand.possible, (want, want.without("offload"))):
            modes = np.where(own.allowed, saved, np.inf).argmin(axis=-1)
            counts = np.zeros_like(split.filled.counts)
            counts[:, np.arange(len(modes)), modes] = split.kinds
            laid.append((split.row, counts, split.cuts))
    lightest: dict[int, Found] = {}
    for found in sorted(weigh_splits(free, laid), key=lambda found: found.candidate.peak_bytes):
        lightest.setdefault(found.row, found)
    return list(lightest.values())


Remedy = tuple[str, Callable[[], Problem]]


def _lifting(problem: Problem, expired: Callable[[], bool]) -> tuple[str, ...]:
    """Return the remedies where no mesh passes the rules: what saves memory lifts none of them.

    More nodes are tried only where dropping a restriction does not help: each try is a larger search.
    """
    free = (*_restrictions(problem), *_fewer_samples(problem))
    return _helpful(iter(free), expired) or _helpful(_growth(problem, expired), expired)


def _working(problem: Problem, expired: Callable[[], bool]) -> tuple[str, ...]:
    """Return the texts of those remedies under which a plan that fits was found."""
    return _helpful(_relaxations(problem, expired), expired)


def _helpful(tried: Iterator[Remedy], expired: Callable[[], bool]) -> tuple[str, ...]:
    return tuple(text for text, changed in tried if not expired() and fits(changed()))


def fits(problem: Problem) -> bool:
    """Return whether an evenly split plan of the problem fits: a plan in hand, not a bound.

    As in the search, states go to the host only where nothing fits without.
    """
    away = spilled(problem)
    return _fits(problem) or (away is not None and _fits(away))


def _fits(problem: Problem) -> bool:
    f = survey(problem)
    rows = np.argsort(f.floor_bytes, kind="stable")[:FIT_TRIED]
    return any_fits(f, rows[np.isfinite(f.bounds[rows])])


def _relaxations(problem: Problem, expired: Callable[[], bool]) -> Iterator[Remedy]:
    """Yield changes of the problem, one limit at a time."""
    yield from _restrictions(problem)
    yield from _drives(problem)
    yield from _lighter_jobs(problem)
    yield from _growth(problem, expired)


def _to_drives(problem: Problem) -> frozenset[str]:
    """Return what the target can move to drives, where the job leaves that open; drives may be unknown."""
    linked = host_linked(problem) and "offload" not in problem.job.choices
    return frozenset(what for what in problem.target.offload if what.endswith("nvme") and linked)


def _drives(problem: Problem) -> Iterator[Remedy]:
    """Yield the problem with states on the drives of its hosts."""
    able = _to_drives(problem)
    if able and problem.cluster.nvme_bytes_per_s is not None:
        yield (
            f"states on the drives of the host (--pin offload={','.join(sorted(able))})",
            lambda: problem.choosing(offload=Choice(allowed=able)),
        )


def _untried(problem: Problem) -> tuple[str, ...]:
    """Say what could not be tried for want of a number."""
    pinned = problem.job.choices.get("offload", Choice()).allowed or frozenset()
    asked = any(what.endswith("nvme") for what in pinned)
    if not (asked or _to_drives(problem)) or problem.cluster.nvme_bytes_per_s is not None:
        return ()
    node = problem.cluster.name.partition(":")[0]
    return (
        f"drives unknown for {node}: state nvme_gb_per_s and nvme_tb in the cluster's YAML to have states on "
        "them tried",
    )


def _restrictions(problem: Problem) -> Iterator[Remedy]:
    """Yield the problem without a pin, without its target, and with idle devices."""
    job = problem.job
    for name in job.choices:
        yield f"drop the pin on {name}", lambda name=name: unpinned(problem, name)  # type: ignore[misc]
    if job.target != "any":
        yield f"another target than {job.target}", lambda: replace(problem, job=replace(job, target="any"))
    if not job.allow_idle:
        yield "leave devices idle (--allow-idle)", lambda: replace(problem, job=replace(job, allow_idle=True))


def _growth(problem: Problem, expired: Callable[[], bool]) -> Iterator[Remedy]:
    """Yield the problem on as many more devices as it needs."""
    grown = None if expired() else _enough_nodes(problem, expired)
    if grown is not None:
        yield (
            f"{grown.num_devices} devices instead of {problem.cluster.num_devices}",
            lambda: replace(problem, cluster=grown),
        )


def _lighter_jobs(problem: Problem) -> Iterator[Remedy]:
    """Yield cheaper states, losses and lengths, and no headroom."""
    job = problem.job
    for name in ("bf16-8bit", "pure-bf16"):
        if name != job.precision and PRECISIONS[name].compute == problem.precision.compute:
            yield f"precision {name}", lambda name=name: replace(problem, job=replace(job, precision=name))  # type: ignore[misc]
    if (job.loss or problem.profile.loss) != "fused" and "fused" in LOSSES:
        yield "a fused cross entropy (loss: fused)", lambda: replace(problem, job=replace(job, loss="fused"))
    if problem.headroom.share > 0:
        yield "no memory headroom (risky)", lambda: replace(problem, job=replace(job, headroom=0.0))
    yield from _fewer_samples(problem)
    half = job.sequence_length // 2
    if half:
        yield (
            f"sequences of {half} tokens",
            lambda: replace(problem, job=replace(job, sequence_length=half)),
        )


def _fewer_samples(problem: Problem) -> Iterator[Remedy]:
    """Yield the problem with as many samples as micro-batches of one make, where it has more."""
    most = MOST_MICROBATCHES * max((dp for *_, dp in degrees(problem)), default=0)
    if 0 < most < problem.job.global_batch_size:
        yield (
            f"a global batch of at most {most:,} sequences: micro-batches of 1 need no more than "
            f"{MOST_MICROBATCHES:,} of them",
            lambda: replace(problem, job=replace(problem.job, global_batch_size=most)),
        )


def _enough_nodes(problem: Problem, expired: Callable[[], bool]) -> Cluster | None:
    """Return the smallest grown cluster of a few multiples on which the job fits."""
    for factor in GROWTH:
        if expired():
            return None
        grown = grow(problem.cluster, factor)
        changed = replace(problem, cluster=grown)
        if len(enumerate_meshes(changed)) and fits(changed):
            return grown
    return None


def grow(cluster: Cluster, factor: int) -> Cluster:
    """Return the cluster with ``factor`` times the outermost blocks; a single node gains a fabric."""
    last = cluster.tiers[-1]
    if len(cluster.tiers) > 1:
        tiers: tuple[Tier, ...] = (*cluster.tiers[:-1], replace(last, fan_out=last.fan_out * factor))
    else:
        fabric = fabric_like(cluster)
        tiers = (*cluster.tiers, replace(fabric, fan_out=factor))
    return replace(cluster, name=f"{cluster.name} x {factor}", tiers=tiers)


def fabric_like(cluster: Cluster) -> Tier:
    """Return a tier between nodes: that of the preset, else an eighth of the node's own link."""
    from meshwright.hardware.catalogue import load_cluster
    from meshwright.hardware.errors import MeshwrightError

    try:
        node, at, network = cluster.name.partition("@")
        return load_cluster(f"{node.partition(':')[0]}:2{at}{network}").tiers[-1]
    except MeshwrightError:
        inner = cluster.tiers[-1]
        return replace(inner, name="between nodes", bandwidth_bytes_per_s=inner.bandwidth_bytes_per_s / 8)
