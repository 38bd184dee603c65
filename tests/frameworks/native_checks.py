"""Whether ranks are made of what a plan says: each expectation comes from the plan, in torch's words."""

from math import prod
from typing import Any

from meshwright.planner.plan import Plan

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens")
ROWS = ("o_proj", "down_proj")
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb1p": "ScheduleInterleavedZeroBubble",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def check_applied(plan: Plan, seen: list[dict[str, Any]]) -> None:
    """Assert that rank by rank the plan was applied; ``seen`` is what ``native_ranks.observe`` saw."""
    assert len(seen) == plan.tp * plan.cp * plan.pp * plan.dp
    for rank, own in enumerate(seen):
        place = coordinate(plan, rank)
        copies = plan.dp if plan.zero_stage == 0 else plan.dp_replicate
        shards = plan.dp // copies
        degrees = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp}
        assert own["mesh"] == {**degrees, "dp_replicate": copies, "dp_shard": shards}
        replica, shard = divmod(place["dp"], shards)
        assert own["coordinate"] == {
            "tp": place["tp"],
            "cp": place["cp"],
            "pp": place["pp"],
            "dp_replicate": replica,
            "dp_shard": shard,
        }
        assert own["data"] == [place["dp"], plan.dp]
        assert own["schedule"] == (SCHEDULES[plan.schedule] if plan.pp > 1 else "NoneType")
        chunks = [c for c in plan.chunks if c.rank == place["pp"]]
        assert len(own["parts"]) == len(chunks) == plan.vpp
        for chunk, part in zip(chunks, own["parts"], strict=True):
            check_part(plan, range(chunk.start, chunk.stop), part)
        assert own["rows"] == [[plan.micro_batch_size] * plan.num_microbatches] * plan.vpp
        split = plan.cp * (plan.tp if plan.sequence_parallel else 1)
        assert own["tokens"] in ([plan.sequence_length // split], [])


def coordinate(plan: Plan, rank: int) -> dict[str, int]:
    """Return a rank's place along each dimension: the placement lists them innermost first."""
    place = {}
    for dim in plan.placement:
        size = getattr(plan, dim)
        place[dim] = rank % size
        rank //= size
    return place


def check_part(plan: Plan, layers: range, part: dict[str, Any]) -> None:
    """Assert that a part has a chunk's layers (0 is the embedding) with their modes, shards and groups."""
    last = plan.num_layers - 1
    blocks = [i - 1 for i in layers if 0 < i < last]
    assert part["blocks"] == blocks
    assert part["ends"] == [0 in layers, last in layers]
    assert part["checkpointed"] == [i for i in blocks if plan.recompute[i + 1] == "full"]
    for name, found in part["placements"].items():
        assert found == placement(plan, name), name
        assert prod(part["held"][name]) * shares(plan, name) == prod(part["whole"][name]), name
    sharded = plan.dp * plan.cp > 1 and plan.zero_stage > 0
    named = [f"model.layers.{i}" for i in blocks]
    named += ["model.embed_tokens"] if 0 in layers else []
    named += ["model.norm", "lm_head"] if last in layers else []
    assert part["groups"] == (dict.fromkeys(named, plan.zero_stage == 3) if sharded else {})


def placement(plan: Plan, name: str) -> dict[str, str]:
    """Return how torch must say where a parameter's elements are."""
    along = (
        "S(1)" if kind(name) == ROWS and name.endswith("weight") else "S(0)" if kind(name) == COLUMNS else "R"
    )
    tensor = {"tp": along} if plan.tp > 1 else {}
    if plan.dp * plan.cp == 1 or plan.zero_stage == 0:
        return tensor
    # Elements that the tensor ranks dealt out first along the same axis are told so.
    shard = f"_S(0, {plan.tp})" if tensor.get("tp") == "S(0)" else "S(0)"
    return {
        **({"dp_replicate": "R"} if plan.dp_replicate > 1 else {}),
        "dp_shard" if plan.cp == 1 else "dp_shard_cp": shard,
        **tensor,
    }


def kind(name: str) -> tuple[str, ...]:
    """Return which kind of layer a parameter belongs to, none for norms."""
    module = name.split(".")[-2]
    return COLUMNS if module in COLUMNS else ROWS if module in ROWS else ()


def shares(plan: Plan, name: str) -> int:
    """Return over how many ranks a parameter is dealt out."""
    found = placement(plan, name)
    dealt = plan.dp // plan.dp_replicate * plan.cp
    sizes = {"tp": plan.tp, "dp_shard": dealt, "dp_shard_cp": dealt, "dp_replicate": 1}
    return prod(sizes[dim] for dim, word in found.items() if word != "R")
