"""Where the ranks of a plan stand: the device mesh, the data that a rank reads, the layers that it holds."""

from meshwright.planner.plan import Plan

REPLICATE, SHARD, PIPELINE, CONTEXT, TENSOR = "dp_replicate", "dp_shard", "pp", "cp", "tp"


def mesh_shape(plan: Plan) -> dict[str, int]:
    """Return the degrees of the device mesh by name, outermost first, as the plan's placement orders them.

    Without sharding (ZeRO stage 0) every data-parallel rank holds a copy.
    """
    copies = plan.dp if plan.zero_stage == 0 else plan.dp_replicate
    sizes = {
        "pp": {PIPELINE: plan.pp},
        "dp": {REPLICATE: copies, SHARD: plan.dp // copies},
        "cp": {CONTEXT: plan.cp},
        "tp": {TENSOR: plan.tp},
    }
    return {name: size for dim in reversed(plan.placement) for name, size in sizes[dim].items()}


def block_range(plan: Plan, start: int, stop: int) -> range:
    """Return the blocks (decoder layers, from 0) among the plan's layers ``start`` to ``stop``.

    The plan's first layer is the embedding, its last one norm and head.
    """
    return range(max(start, 1) - 1, min(stop, plan.num_layers - 1) - 1)
