"""The names in a plan: those of things that were files are in no catalogue."""

from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from meshwright.planner.plan import Plan


@contextmanager
def names_of(plan: Plan | None) -> Iterator[None]:
    """Say what to do where a name of ``plan`` is unknown: what was a file must be given again."""
    try:
        yield
    except UnknownNameError as error:
        own = (
            {
                "--model": (plan.model,),
                "--cluster": (plan.cluster, plan.cluster.partition(":")[0]),
                "--profile": (plan.profile,),
            }
            if plan
            else {}
        )
        flag = next((f for f, names in own.items() if error.name.lower() in map(str.lower, names)), None)
        if flag is None:
            raise
        raise MeshwrightError(
            f"{error}; the plan says so: what was a file then must be given again ({flag} FILE)"
        ) from error
