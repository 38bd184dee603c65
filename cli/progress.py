"""A line on the terminal that says how far the search is and what it has in hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshwright.cli.figures import percent, seconds

if TYPE_CHECKING:
    from meshwright.planner.events import SearchEvent


@contextmanager
def search_progress(*, quiet: bool = False) -> "Iterator[Callable[[SearchEvent], None] | None]":
    """Yield what the search should call, or None where nobody watches: no terminal, or ``quiet``."""
    from meshwright.cli.tables import screen

    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}", markup=False, table_column=one_line),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("listing meshes", total=None, found="")

        def show(event: "SearchEvent") -> None:
            """Move the bar."""
            progress.update(
                task, description=event.phase, completed=event.done, total=event.total, found=in_hand(event)
            )

        yield show


def in_hand(event: "SearchEvent") -> str:
    """Return the best step time so far and how far the bound is from it; before that, the mesh at work."""
    if event.incumbent_s is None:
        return event.mesh
    gap = None if event.bound_s is None else max(0.0, 1 - event.bound_s / event.incumbent_s)
    return f"{seconds(event.incumbent_s)}, gap {percent(gap, 2)}"
