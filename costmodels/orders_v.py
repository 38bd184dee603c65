"""V-shaped orders: rank ``r`` holds chunks ``r`` and ``2 pp - 1 - r``, so the first and last meet on rank 0.

ZB-V and DualPipe-V are the fixed orders of torch.distributed.pipelining (2.13). V-half and V-min repeat a
building block every six passes (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory",
arXiv 2405.15362): the passes of one micro-batch on every rank, whose lifespan is what is in flight.
"""

from meshwright.costmodels.orders import Order, repeated


def zbv(pp: int, rank: int, num_microbatches: int) -> Order:
    """Zero bubble if forward, input gradient and weight gradient take equally long; memory of 1F1B.

    Source: ``ScheduleZBVZeroBubble``; arXiv 2401.10241, section 6. Fewer than ``2 pp - 1`` micro-batches
    leave out what the rest would have run.
    """
    m, ahead = max(2 * pp - 1, num_microbatches), pp - rank
    return repeated(
        ("F0", 2 * ahead - 1),
        ("F1 F0", rank),
        ("F1 B1 W1", ahead),
        ("F0 B0 W0 F1 B1 W1", m - 2 * pp + 1 + rank),
        ("B0 W0 F1 B1 W1", ahead - 1),
        ("B0 B1", rank),
        ("B0 W0", ahead),
        ("W1", rank),
        ("W0", rank),
    ).until(num_microbatches)


def dualpipev(pp: int, rank: int, num_microbatches: int) -> Order:
    """DualPipe cut in half: forwards of one direction beside backwards of the other.

    Source: ``ScheduleDualPipeV``; github.com/deepseek-ai/DualPipe; DeepSeek-V3, arXiv 2412.19437, section
    3.2.1. Pairs that overlap (F0 with BW1, F1 with BW0) stand one after the other here: what their
    overlapped kernels save is left out.
    """
    ahead, whole = pp - rank - 1, (rank + 1) // 2
    middle = (("BW1 BW0", whole), ("BW1 B0", 1 - rank % 2), ("B1 B0", rank - whole + rank % 2))
    late = ["W0"] * (1 - rank % 2) + ["W1", "W0"] * (rank - whole + rank % 2) + ["W0"] * ahead
    return repeated(
        ("F0", 2 * ahead),
        ("F0 F1", rank + 1),
        ("B1 W1 F1", ahead),
        ("F0 BW1 F1 BW0", num_microbatches - 2 * pp + rank + 1),
        ("BW1 F1 BW0", ahead),
        *middle,
        *((f"{word} B0", 1) for word in late[:ahead]),
        *((word, 1) for word in late[ahead:]),
    )
