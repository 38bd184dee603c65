"""``meshwright targets``: the frameworks that a plan can be written for, and how the files are verified."""

from rich.console import Group

from meshwright.cli.errors import ExitCode
from meshwright.cli.render import show
from meshwright.cli.tables import bullets, grid, screen, section, write_json
from meshwright.planner.emit.launchers import LAUNCHERS
from meshwright.planner.emit.registry import EMITTERS
from meshwright.planner.targets import TARGETS


def run(*, as_json: bool) -> ExitCode:
    """List every target with its profile, what it loses and how it is verified, then the launchers."""
    if as_json:
        write_json({name: _told(name) for name in TARGETS})
        return ExitCode.FOUND
    table = grid("Target", "Framework", "Profile", "Verified", whole=(0, 2, 3))
    for name, target in TARGETS.items():
        table.add_row(name, target.title, target.profile, EMITTERS[name].level)
    loses = [f"{name}: {'; '.join(target.loses) or 'nothing'}" for name, target in TARGETS.items()]
    launchers = grid("Launcher", "Starts", "Verified", whole=(0, 2))
    for tool in LAUNCHERS.values():
        able = [name for name, e in EMITTERS.items() if tool.kind == "job" or tool.name in e.launchers]
        launchers.add_row(tool.name, ", ".join(able), tool.level)
    checked = [f"{name} ({e.level}): {e.checked}" for name, e in EMITTERS.items()]
    checked += [f"{name} ({tool.level}): {tool.checked}" for name, tool in LAUNCHERS.items()]
    parts = [table, *section("What a plan loses there", bullets(loses)), *section("Launchers", launchers)]
    show(screen(), Group(*parts, *section("How it was verified", bullets(checked))))
    return ExitCode.FOUND


def _told(name: str) -> dict[str, object]:
    target, emitter = TARGETS[name], EMITTERS[name]
    return {
        "title": target.title,
        "profile": target.profile,
        "loses": target.loses,
        "level": emitter.level,
        "checked": emitter.checked,
        "launchers": [e.name for e in LAUNCHERS.values() if e.kind == "job" or e.name in emitter.launchers],
    }
