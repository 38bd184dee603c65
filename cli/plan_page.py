"""A plan in words: degrees and where they lie, batch, schedule, stages."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from operator import mul
from typing import Any

from rich.table import Table

from meshwright.cli.figures import count, gib, listed, plural, runs, span
from meshwright.cli.tables import facts, grid
from meshwright.hardware.spec import Cluster
from meshwright.planner.plan import RECOMPUTE_MODES, Plan
from meshwright.planner.result import Estimate


def mesh(plan: Plan) -> str:
    """Return a plan's mesh in a few characters: ``tp4 pp2 dp8 mb1 z1``; only what is in use."""
    names = ("cp", "pp", "vpp", "dp", "ep", "etp")
    always = ("pp", "dp")
    degrees = [f"{name}{getattr(plan, name)}" for name in names if getattr(plan, name) > 1 or name in always]
    return f"tp{plan.tp} {' '.join(degrees)} mb{plan.micro_batch_size} z{plan.zero_stage}"


def plan_facts(plan: Plan, cluster: Cluster, more: Iterable[tuple[str, str]] = ()) -> Table:
    """Return what was decided, one decision a line, and ``more`` lines behind them."""
    idle = cluster.num_devices - plan.num_devices
    tuning = "" if plan.tuning == "full" else f", {plan.tuning}"
    return facts(
        [
            ("model", f"{plan.model}, {plan.precision}, {plan.optimizer}, {plan.loss} loss{tuning}"),
            (
                "cluster",
                f"{plan.cluster}, {plural(cluster.num_devices, 'device')}"
                + (f", {count(idle)} idle" if idle else ""),
            ),
            ("mesh", f"{_degrees(plan)} = {plural(plan.num_devices, 'device')}"),
            *_experts(plan),
            *_context(plan),
            ("layout", layout(plan, cluster)),
            ("batch", _batch(plan)),
            ("pipeline", _pipeline(plan)),
            ("sharding", _sharding(plan)),
            ("target", f"{plan.target}, profile {plan.profile}"),
            *more,
        ]
    )


def _degrees(plan: Plan) -> str:
    """Return the degrees of the dense mesh: ``tp 4 × pp 2 × dp 8``; a context degree only in use."""
    names = ("tp", "cp", "pp", "dp") if plan.cp > 1 else ("tp", "pp", "dp")
    return " × ".join(f"{name} {getattr(plan, name)}" for name in names)


def _experts(plan: Plan) -> list[tuple[str, str]]:
    """Say how experts are folded over the ranks of a stage."""
    if plan.ep * plan.etp == 1:
        return []
    copies = plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)
    tensor = f" × etp {plan.etp}" if plan.etp > 1 else ""
    load = f", busiest rank {plan.expert_load:g} × the mean" if plan.expert_load > 1 else ""
    return [("experts", f"ep {plan.ep}{tensor} × {plural(copies, 'data rank')}{load}")]


def _context(plan: Plan) -> list[tuple[str, str]]:
    """Say how context ranks see each other's keys and values."""
    if plan.cp == 1:
        return []
    rest = plan.cp // plan.ulysses
    ways = [f"{plan.ulysses} ranks exchange heads"] if plan.ulysses > 1 else []
    how = "pass keys and values round a ring" if plan.kv_exchange == "ring" else "gather keys and values"
    ways += [f"{rest} ranks {how}"] if rest > 1 else []
    each = plural(plan.sequence_length // plan.cp, "token")
    return [("context", f"{each} a rank, {listed(ways)}")]


def _batch(plan: Plan) -> str:
    """Return the batch in sequences, micro-batches and tokens."""
    lengths = [(plan.sequence_length, "tokens"), (plan.image_tokens, "image tokens")]
    lengths += [(plan.target_length, "target tokens")]
    sample = " + ".join(f"{count(n)} {what}" for n, what in lengths if n)
    tokens = plan.global_batch_size * sum(n for n, _ in lengths if n)
    return (
        f"{plural(plan.global_batch_size, 'sequence')} of {sample} = "
        f"{plural(plan.num_microbatches, 'micro-batch')} × {plan.micro_batch_size} × dp {plan.dp} "
        f"({count(tokens)} tokens)"
    )


def _sharding(plan: Plan) -> str:
    """Say what is sharded over which ranks, and what lies on the host."""
    split = "on" if plan.sequence_parallel else "off"
    parts = [f"ZeRO stage {plan.zero_stage}"]
    if plan.dp_replicate > 1:
        parts.append(f"{plan.dp_replicate} copies of {plan.dp // plan.dp_replicate * plan.cp} shards")
    parts += [f"secondary shards over {plan.hpz} ranks"] if plan.hpz > 1 else []
    what, _, drives = plan.offload.partition("-")
    parts += [f"{what} on {'drives of ' * bool(drives)}the host"] if plan.offload != "none" else []
    return ", ".join([*parts, f"sequence parallel {split}"])


def layout(plan: Plan, cluster: Cluster) -> str:
    """Say of each degree whether its groups stay inside a node, innermost first."""
    degrees = [(dim, getattr(plan, dim)) for dim in plan.placement]
    outer = list(accumulate((d for _, d in degrees), mul))
    places = [
        (f"{dim} {degree}", _place(size // degree, size, cluster))
        for (dim, degree), size in zip(degrees, outer, strict=True)
        if degree > 1
    ]
    shown = (
        f"{listed(name for name, _ in places[first : last + 1])} {places[first][1]}"
        for first, last in runs([where for _, where in places])
    )
    return ", ".join(shown) or "one device"


def _place(inside: int, size: int, cluster: Cluster) -> str:
    """Say where a group lies whose ranks are ``inside`` apart and which ends after ``size`` devices."""
    blocks = zip(cluster.tiers, cluster.block_sizes, strict=True)
    tier = next((t.name for t, block in blocks if size <= block), "")
    node = cluster.devices_per_host
    where = (
        "inside a node" if size <= node else "across nodes" if inside >= node else "inside and across nodes"
    )
    return f"{where} ({tier})" if tier else where


def _pipeline(plan: Plan) -> str:
    if plan.pp == 1:
        return "none"
    chunks = f", {plural(plan.vpp, 'chunk')} on each rank" if plan.vpp > 1 else ""
    return f"{plan.schedule}{chunks}"


def stages(plan: Plan, estimate: Estimate) -> Table:
    """Return the stages, neighbours that hold the same in one row."""
    rows: list[tuple[Any, ...]] = [(_layers(plan, rank), _recompute(plan, rank)) for rank in range(plan.pp)]
    table = grid("Stage", "Layers", "Recompute", "Peak GiB", right=(3,))
    for first, last in runs(rows):
        peaks = [
            gib(p)
            for p in (min(estimate.peak_bytes[first : last + 1]), max(estimate.peak_bytes[first : last + 1]))
        ]
        shown = peaks[0] if peaks[0] == peaks[1] else "–".join(peaks)
        table.add_row(span(first, last), *rows[first], shown)
    return table


def _layers(plan: Plan, rank: int) -> str:
    """Say which layers a rank holds; layer 0 is the embedding and the last one the head."""
    last = plan.num_layers - 1
    chunks = [range(c.start, c.stop) for c in plan.chunks if c.rank == rank]
    blocks = [sum(0 < layer < last for layer in chunk) for chunk in chunks]
    parts = [_blocks(blocks)] if sum(blocks) else []
    if any(0 in chunk for chunk in chunks):
        parts.insert(0, "embedding")
    if any(last in chunk for chunk in chunks):
        parts.append("head")
    return listed(parts)


def _blocks(sizes: list[int]) -> str:
    """Say how many layers the chunks of a rank hold: ``8 layers``, ``2 × 4 layers``, ``8 layers (3 + 5)``."""
    if len(sizes) == 1:
        return plural(sizes[0], "layer")
    if len(set(sizes)) == 1:
        return f"{len(sizes)} × {plural(sizes[0], 'layer')}"
    return f"{plural(sum(sizes), 'layer')} ({' + '.join(map(str, sizes))})"


def _recompute(plan: Plan, rank: int) -> str:
    """Say how many layers of a rank recompute what; the embedding and the head never do."""
    last = plan.num_layers - 1
    modes = Counter(plan.recompute[i] for i in plan.stage_layers(rank) if 0 < i < last)
    if len(modes) == 1:
        mode = next(iter(modes))
        return mode if mode == "none" else f"{mode}, every layer"
    return (
        listed(
            f"{mode} on {modes[mode]}" for mode in reversed(RECOMPUTE_MODES) if modes[mode] and mode != "none"
        )
        or "none"
    )
