"""``meshwright targets``: the frameworks that a plan can be written for."""

from meshwright.cli.errors import ExitCode
from meshwright.cli.render import show
from meshwright.cli.tables import grid, screen, write_json
from meshwright.planner.target import TARGETS


def run(*, as_json: bool) -> ExitCode:
    """List every target, its profile and what it loses."""
    if as_json:
        write_json(
            {t.name: {"title": t.title, "profile": t.profile, "loses": t.loses} for t in TARGETS.values()}
        )
        return ExitCode.FOUND
    table = grid("Target", "Framework", "Profile", "What a plan loses there")
    for target in TARGETS.values():
        table.add_row(target.name, target.title, target.profile, "; ".join(target.loses) or "nothing")
    show(screen(), table)
    return ExitCode.FOUND
