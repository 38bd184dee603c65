"""Cold start of the command line against a bare ``import typer``, taken in turn in one run.

``python -m benchmarks.startup`` prints the best of several of each, and their ratio (target: at most 3).
"""

import subprocess
import sys
import time

from meshwright.cli.errors import reader_may_leave

COMMANDS = {"typer": ("-c", "import typer"), "help": ("-m", "meshwright.cli.main", "--help")}
REPEATS = 9


def seconds(arguments: tuple[str, ...]) -> float:
    """Return the wall time of one cold interpreter."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - begin


def main() -> None:
    """Print both best times and their ratio."""
    rounds = [{name: seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(REPEATS)]
    best = {name: min(times[name] for times in rounds) for name in COMMANDS}
    ratio = best["help"] / best["typer"]
    print(f"import typer {best['typer']:.3f} s, meshwright --help {best['help']:.3f} s: {ratio:.2f} x")


if __name__ == "__main__":
    with reader_may_leave():
        main()
