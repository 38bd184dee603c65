"""Orders of passes against those that torch.distributed.pipelining generates for itself.

The schedules are constructed as a training script does, on stages that hold nothing.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="compares with torch.distributed.pipelining's own orders")

from torch.distributed.pipelining import schedules as theirs  # noqa: E402  # after the skip

from meshwright.costmodels.disciplines import DISCIPLINES  # noqa: E402  # after the skip
from meshwright.costmodels.schedule import build, legal, rank_of_chunk  # noqa: E402  # after the skip

CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
Passes = list[tuple[str, int, int]]


def torch_schedule(name: str, pp: int, vpp: int, m: int) -> Any:
    stages = [
        SimpleNamespace(num_stages=pp * vpp, group_size=pp, group_rank=0, submod=None) for _ in range(vpp)
    ]
    return getattr(theirs, CLASSES[name])(stages[0] if vpp == 1 else stages, m)


def told(action: Any) -> Passes:
    """Return a torch action as passes; a whole backward is "D"."""
    if action is None or action.computation_type == theirs.REDUCE_GRAD:
        return []
    if action.computation_type == theirs.OVERLAP_F_B:
        return [done for part in action.sub_actions for done in told(part)]
    words = {
        theirs.FORWARD: "F",
        theirs.BACKWARD_INPUT: "B",
        theirs.BACKWARD_WEIGHT: "W",
        theirs.FULL_BACKWARD: "D",
    }
    return [(words[action.computation_type], action.stage_index, action.microbatch_index)]


def ours(name: str, pp: int, vpp: int, m: int, rank: int) -> Passes:
    """Return our order of a rank in the same words."""
    order = DISCIPLINES[name].orders(pp, vpp, m)[rank]
    chunks = np.flatnonzero(rank_of_chunk(name, pp, vpp) == rank)[order.place].tolist()
    found: Passes = []
    for kind, chunk, microbatch, whole in zip(
        order.kind.tolist(), chunks, order.microbatch.tolist(), order.whole.tolist(), strict=True
    ):
        if found and kind == 2 and found[-1] == ("D", chunk, microbatch):
            continue  # its weight pass is part of a whole backward
        alone = whole or (kind == 1 and not DISCIPLINES[name].split)
        found.append(("D" if alone else "FBW"[kind], chunk, microbatch))
    return found


PIPELINES = [
    (name, pp, vpp)
    for name in CLASSES
    for pp in (2, 3, 4, 5, 8)
    for vpp in (1, 2, 3)
    if legal(name, pp, vpp, 2 * pp) is None
]


@pytest.mark.parametrize(("name", "pp", "vpp"), PIPELINES)
def test_ranks_run_their_passes_in_the_order_of_torch(name: str, pp: int, vpp: int) -> None:
    sizes = [m for m in range(1, 4 * pp + 1) if legal(name, pp, vpp, m) is None and _of_torch(name, pp, m)]
    for m in sorted({*sizes[:2], sizes[len(sizes) // 2], sizes[-1]}):
        theirs_by_rank = torch_schedule(name, pp, vpp, m).pipeline_order
        for rank in range(pp):
            expected = [done for action in theirs_by_rank[rank] for done in told(action)]
            if name == "1f1b" and rank == pp - 1:  # torch's own table counts these forwards from 1
                expected = [(word, chunk, b - (word == "F")) for word, chunk, b in expected]
            assert ours(name, pp, vpp, m, rank) == expected, (m, rank)


def _of_torch(name: str, pp: int, m: int) -> bool:
    """Whether torch's rule runs so many micro-batches in the same groups: 1F1B at least a stage each."""
    return {"1f1b": m >= pp, "interleaved": m >= pp and m % (m // pp or 1) == 0}.get(name, True)


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in ("gpipe", "1f1b", "interleaved")])
def test_torch_refuses_what_we_refuse(name: str) -> None:
    """Of pipelines with enough micro-batches to fill them; fewer are for torch's own checks."""
    for m in range(4, 20):
        try:
            torch_schedule(name, 4, 2, m)
            runs = True
        except ValueError:
            runs = False
        assert runs == (legal(name, 4, 2, m) is None), m


def test_chunks_live_where_torch_puts_them() -> None:
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping as mapping

    for style, name in (("v", "zbv"), ("v", "dualpipev"), ("loop", "interleaved")):
        expected = mapping(4, 8, style=style)
        assert build(name, 4, 2, 8).rank_of_chunk.tolist() == [expected[c] for c in range(8)]
