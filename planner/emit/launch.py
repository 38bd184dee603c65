"""Scripts that start the training processes: with torchrun, Accelerate or DeepSpeed's own launcher.

Every user string is one quoted shell word. Ranks follow the order of the hosts, on which the plan's
placement counts: hence the static rendezvous, which numbers hosts by ``NODE_RANK``, and not an elastic one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

PORT: Final = 29500
HEAD: Final = """\
#!/usr/bin/env bash
# {title}
# Arguments are handed on to the training script.
set -euo pipefail

HERE="$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
DEFAULT_SCRIPT={script}
TRAIN_SCRIPT="${{TRAIN_SCRIPT:-$DEFAULT_SCRIPT}}"
MASTER_ADDR="${{MASTER_ADDR:-{master}}}"
MASTER_PORT="${{MASTER_PORT:-{port}}}"
"""
PROCESSES: Final = """
NNODES={hosts}
NPROC_PER_NODE={per_host}
"""
LAST_PROCESSES: Final = """\
if (( NODE_RANK == NNODES - 1 )); then NPROC_PER_NODE={last}; fi # the plan ends within the last host
"""
EXPORTS: Final = """\
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

export MESHWRIGHT_PLAN="$HERE/plan.json"
export MESHWRIGHT_TP={tp} MESHWRIGHT_PP={pp} MESHWRIGHT_DP={dp}
"""
TORCHRUN: Final = """
exec torchrun \\
  --nnodes="$NNODES" --nproc-per-node="$NPROC_PER_NODE" --node-rank="$NODE_RANK" \\
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\
  "$TRAIN_SCRIPT" {arguments}"$@"
"""
ACCELERATE: Final = """
exec accelerate launch --config_file "$HERE/accelerate.yaml" \\
  --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\
  {options}"$TRAIN_SCRIPT" {arguments}"$@"
"""
DEEPSPEED_ONE_HOST: Final = """
exec deepspeed --num_gpus={per_host} --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
  "$TRAIN_SCRIPT" {arguments}"$@"
"""
DEEPSPEED_HOSTS: Final = """
# DeepSpeed hands the command to a shell on each host without quoting it.
case "$HERE$TRAIN_SCRIPT" in
  *[!A-Za-z0-9_./=+@%:,-]*)
    echo "a path with special characters: start each host with another launcher" >&2
    exit 2
    ;;
esac

exec deepspeed --hostfile "$HERE/hostfile" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
  "$TRAIN_SCRIPT" {arguments}"$@"
"""


@dataclass(frozen=True)
class Hosts:
    """How processes are dealt to hosts: ``per_host`` on each but the last, ``last`` there."""

    count: int
    per_host: int
    last: int


@dataclass(frozen=True)
class Command:
    """What the processes run.

    Attributes
    ----------
    script
        The training script as a word of bash.
    arguments
        Words of bash between the script and the user's own arguments, each followed by a space.
    before
        Lines of bash that must run on each host before the processes start.
    options
        Words of bash for a launcher itself, by its name.
    """

    script: str
    arguments: str = ""
    before: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def lay_out(problem: Problem, plan: Plan) -> Hosts:
    """Return the hosts that the plan fills, in order; only the last one may be partly used."""
    size = problem.cluster.devices_per_host
    count = -(-plan.num_devices // size)
    last = plan.num_devices - (count - 1) * size
    return Hosts(count, size if count > 1 else last, last)


def torchrun(problem: Problem, plan: Plan, command: Command) -> str:
    """Return the script that starts one host's processes with torchrun; run it on every host."""
    title = "Starts this host's processes with torchrun; run it on every host with its NODE_RANK."
    hosts = lay_out(problem, plan)
    processes = PROCESSES.format(hosts=hosts.count, per_host=hosts.per_host)
    if hosts.last != hosts.per_host:
        processes += LAST_PROCESSES.format(last=hosts.last)
    start = TORCHRUN.format(arguments=command.arguments)
    return _node_head(hosts, plan, command, title) + processes + _before(command) + start


def accelerate(problem: Problem, plan: Plan, command: Command) -> str:
    """Return the script that starts one host's processes with ``accelerate launch``."""
    title = "Starts this host's processes with Accelerate; run it on every host with its NODE_RANK."
    head = _node_head(lay_out(problem, plan), plan, command, title)
    options = command.options.get("accelerate", "")
    return head + _before(command) + ACCELERATE.format(options=options, arguments=command.arguments)


def deepspeed(problem: Problem, plan: Plan, command: Command) -> str:
    """Return the script that starts all hosts from the first one with DeepSpeed's launcher."""
    hosts = lay_out(problem, plan)
    title = "Starts all processes with DeepSpeed's launcher; run it once, on the first host."
    start = DEEPSPEED_ONE_HOST if hosts.count == 1 else DEEPSPEED_HOSTS
    filled = start.format(per_host=hosts.per_host, arguments=command.arguments)
    return _head(hosts, command.script, title) + _before(command) + filled


def hostfile(problem: Problem, plan: Plan) -> str:
    """Return DeepSpeed's hostfile with placeholder names, in rank order."""
    hosts = lay_out(problem, plan)
    slots = [hosts.per_host] * (hosts.count - 1) + [hosts.last]
    lines = [f"node{i} slots={n}" for i, n in enumerate(slots)]
    return "\n".join(["# Put your hosts' names here, in the order of the ranks.", *lines]) + "\n"


def _before(command: Command) -> str:
    return "".join(f"{line}\n" for line in ("", *command.before)) if command.before else ""


def _head(hosts: Hosts, script: str, title: str) -> str:
    master = "node0" if hosts.count > 1 else "127.0.0.1"
    return HEAD.format(title=title, script=script, master=master, port=PORT)


def _node_head(hosts: Hosts, plan: Plan, command: Command, title: str) -> str:
    exports = EXPORTS.format(tp=plan.tp, pp=plan.pp, dp=plan.dp)
    return _head(hosts, command.script, title) + exports + _more_exports(plan)


def _more_exports(plan: Plan) -> str:
    """Return the degrees that few plans use, where this one does."""
    names = ("cp", "ep", "etp", "dp_replicate", "hpz", "ulysses")
    used = [f"MESHWRIGHT_{n.upper()}={getattr(plan, n)}" for n in names if getattr(plan, n) > 1]
    return f"export {' '.join(used)}\n" if used else ""
