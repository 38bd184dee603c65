"""The table of launchers, and which files a choice of them makes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit import jobs, launch
from meshwright.planner.emit.launch import Command, lay_out
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

Level = Literal["run", "built", "parsed", "syntax"]
"""How emitted files are verified.

``run``: training steps ran from them; ``built``: the framework builds model or engine from them; ``parsed``:
its own parser or validator accepts them; ``syntax``: well-formed only.
"""


@dataclass(frozen=True)
class Launcher:
    """A way to start the processes.

    Attributes
    ----------
    file
        The name of its file; a script of processes is ``launch.sh`` where it is the first that was chosen.
    kind
        ``host`` starts one host's processes, ``hosts`` all hosts' from the first one, ``job`` is a
        scheduler's job, which starts a script of kind ``host`` on each host.
    about, start
        What the file is, and how it is used, where ``{file}`` stands for its name.
    level, checked
        How it is verified, in a word and in a sentence.
    limits
        What it cannot start, one line each.
    """

    name: str
    file: str
    kind: Literal["host", "hosts", "job"]
    about: str
    start: str
    level: Level
    checked: str
    limits: Callable[[Problem, Plan], list[str]] = lambda problem, plan: []


def even_hosts(problem: Problem, plan: Plan) -> list[str]:
    """Return why Accelerate cannot start the plan's processes: it starts equally many on each host."""
    hosts = lay_out(problem, plan)
    if hosts.last == hosts.per_host:
        return []
    return [
        f"dp={plan.dp}: Accelerate starts equally many processes on each host; "
        f"{hosts.last} of {hosts.per_host} are used on the last"
    ]


LAUNCHERS: Final[dict[str, Launcher]] = {
    e.name: e
    for e in (
        Launcher(
            "torchrun",
            "launch_torchrun.sh",
            "host",
            "starts one host's share with torchrun",
            "on every host `NODE_RANK=<0, 1, ...> MASTER_ADDR=<first host> ./{file}`",
            "run",
            "torchrun started processes from such a script",
        ),
        Launcher(
            "accelerate",
            "launch_accelerate.sh",
            "host",
            "starts one host's share with Accelerate",
            "on every host `NODE_RANK=<0, 1, ...> MASTER_ADDR=<first host> ./{file}`",
            "run",
            "`accelerate launch` started processes from such a script",
            even_hosts,
        ),
        Launcher(
            "deepspeed",
            "launch_deepspeed.sh",
            "hosts",
            "starts everything with DeepSpeed's launcher",
            "put your hosts' names into `hostfile`, then on the first host "
            "`MASTER_ADDR=<its address> ./{file}` (needs pdsh and password-free ssh)",
            "parsed",
            "DeepSpeed's launcher knows the options and reads the host file",
        ),
        Launcher(
            "slurm",
            "job.sbatch",
            "job",
            "a Slurm job",
            "under Slurm `sbatch {file}` from this folder",
            "syntax",
            "bash and shellcheck accept the job, and it ran with stand-ins for Slurm's commands",
        ),
        Launcher(
            "kubernetes",
            "trainjob.yaml",
            "job",
            "a TrainJob of Kubeflow Trainer 2: put your image into it",
            "under Kubernetes `kubectl create configmap {name} --from-file=. && kubectl apply -f {file}` "
            "from this folder, which every host finds at `/meshwright`",
            "parsed",
            "Kubeflow's own models (kubeflow-trainer-api 2.3.0) read the job",
        ),
        Launcher(
            "skypilot",
            "skypilot.yaml",
            "job",
            "a SkyPilot task",
            "on a cloud `sky launch {file}` from this folder, which is copied to every host",
            "parsed",
            "SkyPilot 0.14.1 itself reads and validates the task",
            jobs.sky_limits,
        ),
    )
}
_SCRIPTS: Final = {
    "torchrun": launch.torchrun,
    "accelerate": launch.accelerate,
    "deepspeed": launch.deepspeed,
}


def chosen(names: Sequence[str], able: Sequence[str], target: str) -> list[Launcher]:
    """Return the launchers of the given names, and one for each host where a job needs it.

    Raises
    ------
    MeshwrightError
        If a name is no launcher, or cannot start this target's processes (``able`` are those that can).
    """
    jobs_known = [e.name for e in LAUNCHERS.values() if e.kind == "job"]
    for name in names:
        if name not in (*able, *jobs_known):
            raise MeshwrightError(
                f"launcher: {name!r} does not start {target}; allowed: {', '.join((*able, *jobs_known))}"
            )
    found = [LAUNCHERS[name] for name in dict.fromkeys(names)]
    if not any(e.kind == "host" for e in found) and any(e.kind == "job" for e in found):
        found.append(next(LAUNCHERS[name] for name in able if LAUNCHERS[name].kind == "host"))
    return found


def named(launchers: Sequence[Launcher]) -> dict[str, str]:
    """Return the file of each launcher by its name; the first script of processes is ``launch.sh``."""
    first = next((e.name for e in launchers if e.kind != "job"), None)
    return {e.name: "launch.sh" if e.name == first else e.file for e in launchers}


def launch_files(
    problem: Problem, plan: Plan, command: Command, launchers: Sequence[Launcher]
) -> dict[str, str]:
    """Return the launchers' files, text by name."""
    files = named(launchers)
    on_host = next((files[e.name] for e in launchers if e.kind == "host"), "")
    found = {}
    for e in launchers:
        if e.kind == "job":
            found[files[e.name]] = _job(e.name, problem, plan, on_host)
        else:
            found[files[e.name]] = _SCRIPTS[e.name](problem, plan, command)
    return found


def _job(name: str, problem: Problem, plan: Plan, on_host: str) -> str:
    if name == "slurm":
        return jobs.sbatch(problem, plan, on_host)
    build = jobs.train_job if name == "kubernetes" else jobs.sky_task
    return _yaml(build(problem, plan, on_host))


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(data, sort_keys=False, width=10_000)


def start_lines(problem: Problem, plan: Plan, launchers: Sequence[Launcher]) -> list[str]:
    """Return how to start the files, one line for each launcher."""
    files, hosts = named(launchers), lay_out(problem, plan).count
    words = {"name": jobs.dns_name(plan.model)}
    lines = [
        f"`./{files[e.name]}`"
        if hosts == 1 and e.kind != "job"
        else e.start.format(file=files[e.name], **words)
        for e in launchers
    ]
    return [
        f"{line[:1].upper()}{line[1:]}{', or' if i + 1 < len(lines) else '.'}" for i, line in enumerate(lines)
    ]
