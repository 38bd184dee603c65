"""Rules of legality: each has a name that messages use, and is one test over a whole batch of meshes."""

from collections.abc import Callable

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.operators import Axis, Part
from meshwright.costmodels.schedule import legal as schedule_legal
from meshwright.costmodels.schedule import names
from meshwright.costmodels.strategy import OFFLOADS, ON_NVME, WEIGHTS_AWAY
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice
from meshwright.planner.lengths import main_length, stream_lengths, target_length
from meshwright.planner.meshes import Meshes
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS
from meshwright.planner.pricing import loss_name
from meshwright.planner.problem import Problem
from meshwright.planner.rule import Rule
from meshwright.planner.rule import has_experts as has_experts
from meshwright.planner.target_job import refusals
from meshwright.planner.target_rules import target_rules
from meshwright.planner.targets import TARGETS

SCHEDULES = names()
MOST_MICROBATCHES = 8192
"""Far beyond any run that was published; the event simulation grows with them."""


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
        raise MeshwrightError(
            f"precision: {device.name} does not compute in {recipe.compute}; it has {have}; choose another "
            "with precision (--precision)"
        )
    if target.name != "any" and target.needs not in support.targets:
        have = ", ".join(sorted({"any"} | {t.name for t in TARGETS.values() if t.needs in support.targets}))
        raise MeshwrightError(f"target: {target.name} does not run on {device.name}; supported there: {have}")
    lacking = refusals(target, problem.model, problem.job, loss_name(problem))
    if lacking:
        raise MeshwrightError(
            f"target: {target.name} ({target.title}) cannot train this: {'; '.join(lacking)}"
        )
    _check_positions(problem)


def _check_positions(problem: Problem) -> None:
    """Refuse lengths beyond learned positions, of the main stream and of an encoder-decoder's target."""
    model, job = problem.model, problem.job
    if model.attributes.get("positions") != "learned":
        return
    for name, length, limit in (
        ("sequence_length", job.sequence_length, model.max_sequence_length),
        ("target_length", target_length(model, job), model.attributes.get("target_positions")),
    ):
        if isinstance(limit, int) and length > limit:
            given = "" if getattr(job, name) else " (as long as the source, for it is not given)"
            raise MeshwrightError(
                f"{name}: {length}{given} exceeds the {limit} learned positions of {model.name}"
            )


def rules(problem: Problem) -> tuple[Rule, ...]:
    """Return all rules of a problem, cheapest and most telling first."""
    return (
        *_device_rules(problem),
        *_model_rules(problem),
        *_context_rules(problem),
        *_expert_rules(problem),
        *_sharding_rules(problem),
        *_schedule_rules(problem),
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


_COUNTED: dict[Axis, tuple[str, Callable[[Meshes], IntArray]]] = {
    "tensor": ("tp", lambda m: m.tp),
    "ulysses": ("tp x ulysses", lambda m: m.tp * m.ulysses),
    "expert": ("ep", lambda m: m.ep),
    "expert_tensor": ("etp", lambda m: m.etp),
}
"""The ranks that a part of each axis is split over, in words and as a column."""


def _divides(part: Part) -> Rule:
    """Return the rule that a part can be split; above its units only copies of them help."""
    units, replicable = int(part.units), part.replicable
    word, ranks = _COUNTED[part.axis]

    def allows(m: Meshes) -> BoolArray:
        n = ranks(m)
        return np.asarray((units % n == 0) | (replicable & (n % units == 0)))

    says = f"{word} divides the {units} {part.what}" + (" or is a multiple" if replicable else "")
    name = f"{word} divides {part.what}"
    return Rule(name, says, allows)


def _part_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return a rule for each distinct part; those of one name (two widths of experts) hold together."""
    found: dict[str, Rule] = {}
    for part in problem.model.parts:
        if not part.padded:
            rule = _divides(part)
            found[rule.name] = _both(found[rule.name], rule) if rule.name in found else rule
    return tuple(found.values())


def _both(one: Rule, other: Rule) -> Rule:
    says = one.says if other.says in one.says else f"{one.says}, and {other.says}"
    return Rule(one.name, says, lambda m: one.allows(m) & other.allows(m))


def _model_rules(problem: Problem) -> tuple[Rule, ...]:
    layers, lengths = problem.model.num_layers, text_lengths(problem)
    told = " and ".join(map(str, lengths))
    return (
        *_part_rules(problem),
        Rule(
            "tp within the vocabulary",
            "each tensor rank holds a row of the vocabulary",
            lambda m: (m.tp <= problem.model.vocab_size) | (problem.model.vocab_size == 0),
        ),
        Rule(
            "sequence parallelism divides the length",
            f"with sequence parallelism tp is above 1 and tp x cp divides {told} tokens",
            lambda m: (m.sequence_parallel == 0) | ((m.tp > 1) & _all_divide(lengths, m.tp * m.cp)),
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


def text_lengths(problem: Problem) -> tuple[int, ...]:
    """Return the lengths of the sequences of text; patches of images are padded where they must be split."""
    model, job = problem.model, problem.job
    found = stream_lengths(model, job)
    own = [found[s.name].sequence_length for s in model.streams if s.source != "image"]
    return tuple(sorted({main_length(model, job), *(round(n) for n in own if n)}))


def _all_divide(lengths: tuple[int, ...], parts: IntArray) -> BoolArray:
    return np.asarray(np.logical_and.reduce([length % parts == 0 for length in lengths]))


def splits_sequence(problem: Problem) -> bool:
    """Return whether context parallelism can cut the model's sequences: one stream, and no operator objects.

    Operators that pass a state from token to token (scans) say so with ``splits_sequence = False``.
    """
    model = problem.model
    ops = (op for kind in model.kinds for op in kind.operators)
    return (
        not model.streams
        and model.context is None
        and all(getattr(op, "splits_sequence", True) for op in ops)
    )


def _context_rules(problem: Problem) -> tuple[Rule, ...]:
    length, whole = main_length(problem.model, problem.job), splits_sequence(problem)
    return (
        Rule(
            "sequences can be split",
            f"{problem.model.name} reads a sequence in order or several streams of tokens: cp is 1",
            lambda m: (m.cp == 1) | whole,
        ),
        Rule(
            "cp divides the length",
            f"2 x cp divides {length} tokens: each rank gets two mirrored pieces, to balance causal work",
            lambda m: (m.cp == 1) | (length % (2 * m.cp) == 0),
        ),
        Rule(
            "ulysses divides cp",
            "ulysses is a part of cp",
            lambda m: m.cp % m.ulysses == 0,
            lambda m: f"ulysses {m.ulysses[0]} does not divide cp {m.cp[0]}",
        ),
    )


def _expert_rules(problem: Problem) -> tuple[Rule, ...]:
    experts = has_experts(problem)

    def folds(m: Meshes) -> BoolArray:
        ranks, inner = m.ep * m.etp, m.inner
        fits = (m.tp * m.shards) % ranks == 0
        copies = (m.dp_replicate == 1) | (m.cp == 1) | (m.stride("dp") >= m.cp * m.tp) | (not experts)
        return np.asarray(fits & copies & ((inner % ranks == 0) | (ranks % inner == 0)))

    return (
        Rule(
            "experts",
            f"{problem.model.name} has {'experts' if experts else 'no experts: ep and etp are 1'}",
            lambda m: (m.ep * m.etp == 1) | experts,
        ),
        Rule(
            "experts are folded",
            "ep x etp divides tp x cp x dp / dp_replicate and fits what lies inside the pipeline dimension; "
            "with copies of shards the context ranks lie inside the data ranks",
            folds,
        ),
        Rule(
            "experts need sequence parallelism",
            "with experts and tp above 1 sequence parallelism is on: else tensor ranks send the same tokens",
            lambda m: (m.tp == 1) | (m.sequence_parallel == 1) | (not experts),
        ),
    )


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


def _schedule_rules(problem: Problem) -> tuple[Rule, ...]:
    partial, loop = problem.target.partial_groups, SCHEDULES.index("interleaved")
    single = [SCHEDULES.index(name) for name in ("1f1b", "gpipe")]

    def runs(m: Meshes) -> BoolArray:
        # Numbered first: the values themselves may be so large that their product has no room.
        values, codes = zip(*(np.unique(c, return_inverse=True) for c in _pipeline(m)), strict=True)
        sizes = tuple(map(len, values))
        few, back = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
        keys = zip(*(v[i] for v, i in zip(values, np.unravel_index(few, sizes), strict=True)), strict=True)
        return np.array([_objection(*key) is None for key in keys], dtype=np.bool_)[back.reshape(-1)]

    return (
        Rule(
            "interleaving",
            "the interleaved schedule has vpp above 1 and pp above 1, one of single chunks has vpp 1",
            lambda m: np.where(
                m.schedule_code == loop,
                (m.vpp > 1) & (m.pp > 1),
                (m.vpp == 1) | ~np.isin(m.schedule_code, single),
            ),
        ),
        Rule(
            "micro-batches fill the groups",
            "interleaving needs micro-batches that are a multiple of pp",
            lambda m: (m.schedule_code != loop) | (m.num_microbatches % m.pp == 0) | partial,
        ),
        Rule(
            "schedule runs",
            "the schedule can run with these pp, vpp and micro-batches",
            runs,
            lambda m: _objection(*(c[0] for c in _pipeline(m))),
        ),
    )


def _pipeline(m: Meshes) -> tuple[IntArray, ...]:
    """Return the columns on which it depends whether a schedule runs."""
    return m.schedule_code, m.pp, m.vpp, m.num_microbatches


def _objection(code: int, pp: int, vpp: int, passes: int) -> str | None:
    """Return why a schedule cannot run, or None."""
    name = SCHEDULES[code]
    reason = schedule_legal(name, int(pp), int(vpp), int(passes))
    return None if reason is None else f"{name}: {reason}"


def _pin_rules(problem: Problem) -> tuple[Rule, ...]:
    def test(name: str, choice: Choice) -> Callable[[Meshes], BoolArray]:
        def allows(m: Meshes) -> BoolArray:
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
    """Refuse one mesh that breaks a rule, naming each rule and what it asks for.

    Raises
    ------
    MeshwrightError
        Listing every broken rule.
    """
    broken = [rule for rule in rules(problem) if not rule.allows(mesh)[0]]
    if broken:
        told = "; ".join(rule.told(mesh) for rule in broken)
        raise MeshwrightError(f"strategy ({mesh.describe(0)}): {told}")
