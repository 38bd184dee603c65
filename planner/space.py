"""The search space: every mesh that a problem allows, as one batch of arrays.

Enumerated are all degrees, ZeRO stage, micro-batch size, schedule, sequence parallelism, the ways of context
parallelism and the placement. For each group of ``tp``, ``cp``, ``pp`` and ``dp`` the other decisions are
short tables of legal combinations (pipeline, sharding, experts, context), whose product is taken in numpy.
Twins that differ in name only are kept once: ZeRO where nothing can be sharded, placements that agree in the
order of the dimensions in use, the exchange of keys and values where all ranks exchange heads.

Searched only if the job pins them: schedules other than 1F1B and interleaved (GPipe holds every micro-batch
in flight, and frameworks at scale do not run it), offloading, and context parts below
:data:`LEAST_CONTEXT_TOKENS`. Expert-tensor degrees are 1 or ``tp``. Hybrid sharding and secondary shards
follow the topology: what lies inside a block of a tier is one copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import legal as schedule_legal
from meshwright.costmodels.schedule import names
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.planner.choice import Choice
from meshwright.planner.chunking import equal_chunks
from meshwright.planner.lengths import main_length
from meshwright.planner.meshes import Meshes
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS
from meshwright.planner.problem import Problem
from meshwright.planner.rules import has_experts, legal, splits_sequence

LEAST_CONTEXT_TOKENS = 1024
"""Shorter parts of a sequence than this leave context ranks with little but their exchange."""
USUAL = {
    "schedule": Choice(allowed=frozenset({"1f1b", "interleaved"})),
    "offload": Choice(allowed=frozenset({"none"})),
}
"""What is searched where the job says nothing."""
SCHEDULES = names()
COLUMNS = tuple(f.name for f in fields(Meshes))

Degrees = tuple[int, int, int, int]
"""(tp, cp, pp, dp)."""


def divisors(n: int) -> list[int]:
    """Return the divisors of ``n`` in rising order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _admitted(problem: Problem, name: str, values: Sequence[int]) -> list[int]:
    """Return the values that the job's choice for a decision admits."""
    wanted = problem.job.choices.get(name, Choice())
    return [v for v in values if wanted.admits(v)]


def _admitted_words(problem: Problem, name: str, words: Sequence[str]) -> list[int]:
    """Return the indices of the words that the job's choice (or custom) admits."""
    wanted = problem.job.choices.get(name, USUAL.get(name, Choice()))
    return [i for i, word in enumerate(words) if wanted.admits(word)]


def degrees(problem: Problem) -> list[Degrees]:
    """Return (tp, cp, pp, dp) that fit the devices; all are used unless idle devices are allowed."""
    total, batch = problem.cluster.num_devices, problem.job.global_batch_size
    tensor = [p for p in problem.model.parts if not p.padded and p.axis == "tensor"]
    widest = max((int(p.units) for p in tensor), default=1)
    idle, target = problem.job.allow_idle, problem.target
    tps = [t for t in range(1, min(total, widest if target.tensor else 1) + 1) if idle or total % t == 0]
    found = []
    for tp in _admitted(problem, "tp", [t for t in tps if _tp_legal(problem, t)]):
        for cp in _admitted(problem, "cp", _contexts(problem, total // tp)):
            room = total // (tp * cp)
            pps = range(1, min(room, problem.model.num_layers if target.pipeline else 1) + 1)
            for pp in _admitted(problem, "pp", [p for p in pps if idle or room % p == 0]):
                dps = [d for d in divisors(batch) if d <= room // pp] if idle else [room // pp]
                found += [(tp, cp, pp, dp) for dp in _admitted(problem, "dp", dps)]
    return found


def _contexts(problem: Problem, room: int) -> list[int]:
    """Return the context degrees that the model, the length and the devices allow."""
    length, idle = main_length(problem.model, problem.job), problem.job.allow_idle
    if not (problem.target.context and splits_sequence(problem)):
        return [1]
    most = length // 2 if "cp" in problem.job.choices else max(1, length // LEAST_CONTEXT_TOKENS)
    cut = [c for c in divisors(length) if c <= min(room, most) and length % (2 * c) == 0]
    return sorted({1, *(c for c in cut if idle or room % c == 0)})


def _tp_legal(problem: Problem, tp: int) -> bool:
    parts = [p for p in problem.model.parts if not p.padded and p.axis == "tensor"]
    return all(p.units % tp == 0 or (p.replicable and tp % p.units == 0) for p in parts)


class _Group:
    """The tables of one group of degrees: what each bundle of decisions may be, as rows of integers."""

    def __init__(self, problem: Problem, tp: int, cp: int, pp: int, dp: int, experts: bool) -> None:
        self.problem, self.experts = problem, experts
        self.tp, self.cp, self.pp, self.dp = tp, cp, pp, dp

    def meshes(self) -> dict[str, IntArray]:
        """Return all combinations of the tables, column by column."""
        tables = [
            (("micro_batch_size", "num_microbatches", "schedule", "vpp"), self.pipelines),
            (("ulysses", "kv_exchange"), self.contexts),
            (("sequence_parallel",), self.splits),
            (("placement", "ep", "etp", "dp_replicate", "hpz", "zero_stage", "offload"), self.shardings),
        ]
        sizes = [len(rows) for _, rows in tables]
        index = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
        degree = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp}
        found = {name: np.full(len(index[0]), value) for name, value in degree.items()}
        for (columns, rows), at in zip(tables, index, strict=True):
            table = np.array(rows, dtype=np.int64).reshape(len(rows), len(columns))
            found |= {name: table[at, i] for i, name in enumerate(columns)}
        return found

    @cached_property
    def pipelines(self) -> list[tuple[int, int, int, int]]:
        """(micro-batch, micro-batches, schedule, vpp)."""
        each = self.problem.job.global_batch_size // self.dp
        return [(b, each // b, s, v) for b in divisors(each) for s, v in self._schedules]

    @cached_property
    def _schedules(self) -> list[tuple[int, int]]:
        """(schedule, vpp); one stage has no use for schedules of several."""
        wanted = _admitted_words(self.problem, "schedule", SCHEDULES)
        plain = [s for s in wanted if SCHEDULES[s] in ("1f1b", "gpipe")]
        if self.pp == 1:
            return [(s, 1) for s in plain]
        able = self.problem.target.interleaved
        blocks, most = len(self.problem.model.block_layers), self.problem.model.num_layers // self.pp
        equal = [v for v in range(1, most + 1) if v == 1 or (able and equal_chunks(blocks, self.pp * v)[1])]
        many = 64 * self.pp
        return [
            (s, v) for s in wanted for v in equal if schedule_legal(SCHEDULES[s], self.pp, v, many) is None
        ]

    @cached_property
    def contexts(self) -> list[tuple[int, int]]:
        """(ulysses, key/value exchange)."""
        ways = _admitted_words(self.problem, "kv_exchange", KV_EXCHANGES)
        able = self.problem.target.ulysses
        parts = _admitted(self.problem, "ulysses", divisors(self.cp) if able else [1])
        return [(u, way) for u in parts for way in (ways if u < self.cp else ways[:1])]

    @cached_property
    def splits(self) -> list[int]:
        """Sequence parallelism."""
        if self.tp == 1 or not self.problem.target.sequence_parallel:
            return [0]
        return [1] if self.experts else [0, 1]

    @cached_property
    def shardings(self) -> list[tuple[int, ...]]:
        """(placement, ep, etp, dp_replicate, hpz, ZeRO stage, offload)."""
        hosts = _admitted_words(self.problem, "offload", OFFLOADS)
        return [
            (place, ep, etp, copies, secondary, z, host)
            for place in self._placements
            for ep, etp in self._experts
            for copies in self._copies(place)
            for z in self._stages(copies, ep * etp)
            for secondary in self._secondary(place, copies, z)
            for host in hosts
            if z > 0 or copies == 1
        ]

    @cached_property
    def _placements(self) -> list[int]:
        """The placements that the job admits, one for each order of the dimensions in use."""
        wanted = self.problem.job.choices.get("placement", Choice())
        degree = {"cp": self.cp, "dp": self.dp, "pp": self.pp}
        orders: dict[tuple[str, ...], int] = {}
        for i, order in enumerate(PLACEMENTS):
            if wanted.admits(",".join(order)) and order in self.problem.target.placements:
                orders.setdefault(tuple(d for d in order if degree.get(d, 1) > 1), i)
        return list(orders.values())

    @cached_property
    def _experts(self) -> list[tuple[int, int]]:
        """(ep, etp)."""
        target, ranks = self.problem.target, self.tp * self.cp * self.dp
        eps = divisors(ranks) if self.experts and target.expert else [1]
        tensor = {1, self.tp} if self.experts and target.expert_tensor else {1}
        if "etp" in self.problem.job.choices and self.experts:
            tensor |= set(divisors(ranks))
        parts = [p for p in self.problem.model.parts if p.axis == "expert"]
        eps = [ep for ep in eps if all(p.units % ep == 0 for p in parts)]
        etps = _admitted(self.problem, "etp", sorted(tensor))
        return [
            (ep, etp) for ep in _admitted(self.problem, "ep", eps) for etp in etps if ranks % (ep * etp) == 0
        ]

    def _stride(self, place: int) -> int:
        """Return the distance between data neighbours."""
        order = PLACEMENTS[place]
        return int(np.prod([getattr(self, d) for d in order[: order.index("dp")]]))

    def _copies(self, place: int) -> list[int]:
        """Return the numbers of copies: 1, or one for each block of a tier that holds several data ranks."""
        blocks = self.problem.cluster.block_sizes[:-1] if self.problem.target.hybrid else ()
        inside = [block // self._stride(place) for block in blocks]
        found = {1, *(self.dp // n for n in inside if 1 < n < self.dp and self.dp % n == 0)}
        if "dp_replicate" in self.problem.job.choices:
            found |= set(divisors(self.dp))
        return _admitted(self.problem, "dp_replicate", sorted(found))

    def _secondary(self, place: int, copies: int, stage: int) -> list[int]:
        """Return 1, and with ZeRO-3 the data ranks of a node where shards reach beyond it."""
        if stage < 3:
            return _admitted(self.problem, "hpz", [1])
        inside = self.problem.cluster.devices_per_host // self._stride(place)
        shard = self.dp // copies
        able = self.problem.target.secondary and 1 < inside < shard and shard % inside == 0
        found = {1, inside} if able else {1}
        if "hpz" in self.problem.job.choices:
            found |= set(divisors(shard))
        return _admitted(self.problem, "hpz", sorted(found))

    def _stages(self, copies: int, expert_ranks: int) -> list[int]:
        """Return the ZeRO stages that differ in more than name."""
        target = self.problem.target
        stages = target.zero_stages & (
            target.zero_stages_with_pipeline if self.pp > 1 else target.zero_stages
        )
        wanted = _admitted(self.problem, "zero_stage", sorted(stages))
        shards = self.dp // copies * self.cp
        if shards > 1 or (self.experts and self.tp > expert_ranks):
            return wanted
        return wanted[:1] if self.problem.profile.working_copy else [z for z in wanted if z in (wanted[0], 3)]


def _groups(problem: Problem) -> Iterator[dict[str, IntArray]]:
    experts = has_experts(problem)
    for tp, cp, pp, dp in degrees(problem):
        if problem.job.global_batch_size % dp == 0:
            yield _Group(problem, tp, cp, pp, dp, experts).meshes()


def enumerate_meshes(problem: Problem) -> Meshes:
    """Return every candidate mesh before the rules; see :func:`space`."""
    groups = list(_groups(problem))
    empty = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([empty, *(g[name] for g in groups)]) for name in COLUMNS}
    schedule = np.array(SCHEDULES)[columns.pop("schedule")]
    return Meshes(**columns, schedule=schedule)


def space(problem: Problem) -> tuple[Meshes, dict[str, int]]:
    """Return the legal meshes of a problem, and how many each rule discarded."""
    meshes = enumerate_meshes(problem)
    passed, discarded = legal(problem, meshes)
    return meshes.take(passed), discarded
