"""What meshes of one ``tp``, ``cp``, ``pp`` and ``dp`` may differ in: tables of choices and their product."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import isqrt

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import legal as schedule_legal
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.planner.choice import Choice
from meshwright.planner.chunking import equal_chunks
from meshwright.planner.lengths import sample_shape
from meshwright.planner.meshes import SCHEDULES
from meshwright.planner.model_rules import MOST_MICROBATCHES
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS
from meshwright.planner.problem import Problem

USUAL = {"offload": Choice(allowed=frozenset({"none"}))}
"""What is searched where the job says nothing; of schedules those that are usual in the target."""


_TRIED_AT_ONCE = 100_000
"""Numbers that are tried as factors in one call."""

_LAYOUT = ("placement", "ulysses", "ep", "etp", "dp_replicate", "hpz", "zero_stage", "offload")


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of ``n`` in rising order: the products of its prime powers.

    Batches and lengths of up to 10^15 are asked for many times over, so that trying all numbers up to the
    root of each would take minutes; what is left of one shrinks with every factor found.
    """
    found, rest, factor = [1], n, 2
    while rest > 1:
        factor = _least_factor(rest, factor)
        powers = [1]
        while rest % factor == 0:
            rest //= factor
            powers.append(powers[-1] * factor)
        found = [d * power for d in found for power in powers]
    return tuple(sorted(found))


def _least_factor(n: int, least: int) -> int:
    """Return the least divisor of ``n`` that is at least ``least``; ``n`` where none is up to its root."""
    last = isqrt(n)
    for start in range(least, last + 1, _TRIED_AT_ONCE):
        tried = np.arange(start, min(start + _TRIED_AT_ONCE, last + 1), dtype=np.int64)
        dividing = np.flatnonzero(n % tried == 0)
        if len(dividing):
            return int(tried[dividing[0]])
    return n


def most_samples(problem: Problem) -> float:
    """Return the samples of which one device cannot hold more, were there nothing but one layer's output.

    Counted is a byte a feature, less than any precision takes: a bound, and no rule of what fits.
    """
    model, job = problem.model, problem.job
    widest = max(float(sample_shape(model, job, kind).tokens * kind.hidden) for kind in model.kinds)
    return problem.cluster.accelerator.memory_bytes / widest


def admitted(problem: Problem, name: str, values: Sequence[int]) -> list[int]:
    """Return the values that the job's choice for a decision admits."""
    wanted = problem.job.choices.get(name, Choice())
    return [v for v in values if wanted.admits(v)]


def _admitted_words(problem: Problem, name: str, words: Sequence[str]) -> list[int]:
    """Return the indices of the words that the job's choice (or custom) admits."""
    usual = {**USUAL, "schedule": Choice(allowed=problem.target.usual_schedules)}
    wanted = problem.job.choices.get(name, usual.get(name, Choice()))
    return [i for i, word in enumerate(words) if wanted.admits(word)]


class DegreeGroup:
    """The tables of one group of degrees, each a list of rows.

    ``experts`` says whether the model has any, ``most_samples`` is :func:`most_samples` of the problem.
    """

    def __init__(
        self, problem: Problem, tp: int, cp: int, pp: int, dp: int, experts: bool, most_samples: float
    ) -> None:
        self.problem, self.experts, self.most_samples = problem, experts, most_samples
        self.tp, self.cp, self.pp, self.dp = tp, cp, pp, dp

    def columns(self) -> dict[str, IntArray]:
        """Return all combinations of the tables, column by column; schedules vary fastest."""
        tables: list[tuple[tuple[str, ...], Sequence[tuple[int, ...]]]] = [
            (_LAYOUT, self.layouts),
            (("kv_exchange",), [(way,) for way in self._exchanges]),
            (("sequence_parallel",), [(split,) for split in self._splits]),
            (("micro_batch_size", "num_microbatches", "schedule", "vpp"), self.pipelines),
        ]
        sizes = [len(rows) for _, rows in tables]
        index = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
        degrees = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp}
        found = {name: np.full(len(index[0]), value, dtype=np.int64) for name, value in degrees.items()}
        for (names, rows), at in zip(tables, index, strict=True):
            table = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
            found |= {name: table[at, i] for i, name in enumerate(names)}
        return self._one_exchange(found)

    def _one_exchange(self, found: dict[str, IntArray]) -> dict[str, IntArray]:
        """Drop twins: where all context ranks exchange heads, keys and values stay where they are."""
        if len(self._exchanges) < 2:
            return found
        distinct = (found["ulysses"] < self.cp) | (found["kv_exchange"] == self._exchanges[0])
        return {name: column[distinct] for name, column in found.items()}

    @cached_property
    def pipelines(self) -> list[tuple[int, int, int, int]]:
        """(micro-batch, micro-batches, schedule, vpp)."""
        each = self.problem.job.global_batch_size // self.dp
        return [(b, each // b, s, v) for b in self._sizes(each) for s, v in self._schedules]

    def _sizes(self, each: int) -> tuple[int, ...]:
        """Return the micro-batch sizes of a replica's batch that can matter, among up to 26,880.

        Of those that leave too many micro-batches only the largest, for the rule that refuses it to be told,
        and of those whose widest layer output no device holds only the smallest, as one that does not fit.
        """
        sizes, most = divisors(each), self.tp * self.cp * self.most_samples
        start = bisect_left(sizes, True, key=lambda size: each // size <= MOST_MICROBATCHES)
        start = max(start - 1, 0)
        return sizes[start : max(bisect_right(sizes, most), start) + 1]

    @cached_property
    def layouts(self) -> list[tuple[int, ...]]:
        """(placement, ulysses, ep, etp, dp_replicate, hpz, ZeRO stage, offload)."""
        return [
            (place, heads, ep, etp, copies, secondary, stage, host)
            for place in self._placements
            for heads in self._ulysses(place)
            for ep, etp in self._experts
            for copies in self._copies(place)
            for host in self._offloads
            for stage in self._stages(copies, ep * etp, host)
            for secondary in self._secondary(place, copies, stage)
            if stage > 0 or copies == 1
        ]

    @cached_property
    def _offloads(self) -> list[int]:
        """What may live in host memory."""
        hosts = _admitted_words(self.problem, "offload", OFFLOADS)
        return [i for i in hosts if OFFLOADS[i] in self.problem.target.offload]

    @cached_property
    def _schedules(self) -> list[tuple[int, int]]:
        """(schedule, vpp); one stage has no use for schedules of several."""
        wanted = _admitted_words(self.problem, "schedule", SCHEDULES)
        plain = [s for s in wanted if SCHEDULES[s] in ("1f1b", "gpipe")]
        if self.pp == 1:
            return [(s, 1) for s in plain]
        able, free = self.problem.target.interleaved, self.problem.target.uneven_chunks
        blocks, most = len(self.problem.model.block_layers), self.problem.model.num_layers // self.pp
        chunked = [v for v in range(2, most + 1) if able and (free or equal_chunks(blocks, self.pp * v)[1])]
        many, pp = 64 * self.pp, self.pp
        pairs = [(s, v) for s in wanted for v in (1, *chunked)]
        return [(s, v) for s, v in pairs if schedule_legal(SCHEDULES[s], pp, v, many) is None]

    @cached_property
    def _exchanges(self) -> list[int]:
        """Ways of exchanging keys and values; one, where nothing is exchanged."""
        ways = _admitted_words(self.problem, "kv_exchange", KV_EXCHANGES)
        return ways if self.cp > 1 else ways[:1]

    @cached_property
    def _splits(self) -> list[int]:
        """Sequence parallelism."""
        if self.tp == 1 or not self.problem.target.sequence_parallel:
            return [0]
        return [1] if self.experts else [0, 1]

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
        eps = admitted(self.problem, "ep", [n for n in eps if all(p.units % n == 0 for p in parts)])
        etps = admitted(self.problem, "etp", sorted(tensor))
        return [(ep, etp) for ep in eps for etp in etps if ranks % (ep * etp) == 0]

    def _stride(self, dim: str, place: int) -> int:
        """Return the distance between neighbours along a dimension."""
        order = PLACEMENTS[place]
        return int(np.prod([getattr(self, d) for d in order[: order.index(dim)]]))

    def _inside(self, dim: str, place: int) -> int:
        """Return how many neighbours along a dimension lie in one node."""
        return self.problem.cluster.devices_per_host // self._stride(dim, place)

    def _ulysses(self, place: int) -> list[int]:
        """Return how many ranks may exchange heads: one, all, or those of a node; any if the job says so."""
        if self.cp == 1 or not self.problem.target.ulysses:
            return admitted(self.problem, "ulysses", [1])
        heads = [p.units for p in self.problem.model.parts if p.axis == "ulysses"]
        parts = [u for u in divisors(self.cp) if all(n % (self.tp * u) == 0 for n in heads)]
        near = max((u for u in parts if u <= self._inside("cp", place)), default=1)
        free = "ulysses" in self.problem.job.choices
        return admitted(self.problem, "ulysses", [u for u in parts if free or u in (1, near, self.cp)])

    def _copies(self, place: int) -> list[int]:
        """Return the numbers of copies: 1, or one for each block of a tier that holds several data ranks."""
        blocks = self.problem.cluster.block_sizes[:-1] if self.problem.target.hybrid else ()
        inside = [block // self._stride("dp", place) for block in blocks]
        found = {1, *(self.dp // n for n in inside if 1 < n < self.dp and self.dp % n == 0)}
        if "dp_replicate" in self.problem.job.choices:
            found |= set(divisors(self.dp))
        return admitted(self.problem, "dp_replicate", sorted(found))

    def _secondary(self, place: int, copies: int, stage: int) -> list[int]:
        """Return 1, and with ZeRO-3 the data ranks of a node where shards reach beyond it."""
        if stage < 3:
            return admitted(self.problem, "hpz", [1])
        inside, shard = self._inside("dp", place), self.dp // copies
        able = self.problem.target.secondary and 1 < inside < shard and shard % inside == 0
        found = {1, inside} if able else {1}
        if "hpz" in self.problem.job.choices:
            found |= set(divisors(shard))
        return admitted(self.problem, "hpz", sorted(found))

    def _stages(self, copies: int, expert_ranks: int, host: int) -> list[int]:
        """Return the ZeRO stages that differ in more than name."""
        target = self.problem.target
        piped = target.zero_stages_with_pipeline if self.pp > 1 else target.zero_stages
        wanted = admitted(self.problem, "zero_stage", sorted(target.zero_stages & piped))
        if host or self.dp // copies * self.cp > 1 or (self.experts and self.tp > expert_ranks):
            return wanted
        least = target.least_zero_stage(self.problem.precision.name, self.problem.job.optimizer)
        alike = [z for z in wanted if z >= least] or wanted
        kinds = [self._alone(z) for z in alike]
        return [z for z, kind in zip(alike, kinds, strict=True) if alike[kinds.index(kind)] == z]

    def _alone(self, stage: int) -> tuple[bool, bool]:
        """Return what a ZeRO stage is for a rank with nobody to share: of equal ones one is enough."""
        stack = self.problem.profile
        return stage == 3 and not stack.working_copy, stage == 1 and stack.flat_gradients
