"""Independent calls in two processes that inherit what they work on."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, TypeVar

R = TypeVar("R")
WORKERS: Final = 2
_INHERITED: list[tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]] = []
"""What the children find in their copy of this process's memory: nothing large is sent to them."""


def in_processes(call: Callable[..., R], tasks: Sequence[tuple[Any, ...]], workers: int = WORKERS) -> list[R]:
    """Return ``call(*task)`` of each task, in their order; without processes where none can be forked."""
    if workers == 1 or len(tasks) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [call(*task) for task in tasks]
    _INHERITED.append((call, tasks))
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            return list(pool.map(_inherited, range(len(tasks))))
    finally:
        _INHERITED.pop()


def _inherited(at: int) -> Any:
    call, tasks = _INHERITED[-1]
    return call(*tasks[at])
