"""Ranks as forks of one process, so that what they all import is imported once."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def fork(world: int, folder: Path, run: Callable[[int], None]) -> None:
    """Run a function of the rank in ``world`` processes that form a gloo group, then exit.

    Nothing of torch may run before: its threads do not survive a fork.
    """
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os._exit(_rank(rank, world, folder, run))
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def _rank(rank: int, world: int, folder: Path, run: Callable[[int], None]) -> int:
    """Join the others and run; return the exit code."""
    import torch
    from torch import distributed

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    try:
        store = distributed.FileStore(str(folder / "store"), world)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
        run(rank)
        distributed.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
