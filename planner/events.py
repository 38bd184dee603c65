"""What the search reports while it runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchEvent:
    """One report: ``done`` of ``total`` meshes settled, the best time so far and the global bound."""

    phase: str
    done: int
    total: int
    incumbent_s: float | None
    bound_s: float | None
    mesh: str
