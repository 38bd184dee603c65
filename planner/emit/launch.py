"""Launchers: shell scripts for torchrun, DeepSpeed and Accelerate, DeepSpeed's hostfile, a Slurm job.

Every user string is one quoted shell word. Ranks follow the order of the hosts, on which the plan's
placement counts: hence the static rendezvous, which numbers hosts by ``NODE_RANK``, and not an elastic one.
"""

from dataclasses import dataclass
from typing import Final

from meshwright.planner.emit.text import job_name, quoted_script
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
  "$TRAIN_SCRIPT" "$@"
"""
DEEPSPEED_ONE_HOST: Final = """
exec deepspeed --num_gpus={per_host} --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
  "$TRAIN_SCRIPT" {arguments}"$@"
"""
DEEPSPEED_HOSTS: Final = """
# DeepSpeed hands the command to a shell on each host without quoting it.
case "$HERE$TRAIN_SCRIPT" in
  *[!A-Za-z0-9_./=+@%:,-]*)
    echo "launch.sh: a path with special characters; use launch_torchrun.sh on each host" >&2
    exit 2
    ;;
esac

exec deepspeed --hostfile "$HERE/hostfile" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
  "$TRAIN_SCRIPT" {arguments}"$@"
"""
SBATCH: Final = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
{devices}
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
# Submit from this folder, or set MESHWRIGHT_DIR to it. Add your account, partition and time limit.
set -euo pipefail

HERE="${{MESHWRIGHT_DIR:-$SLURM_SUBMIT_DIR}}"
if [[ ! -f "$HERE/{launcher}" ]]; then
  echo "job.sbatch: no {launcher} in $HERE; submit from its folder or set MESHWRIGHT_DIR" >&2
  exit 2
fi

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${{hosts[0]}}"
export MASTER_PORT="${{MASTER_PORT:-{port}}}"

# One launcher on each host; it takes its rank from SLURM_NODEID.
unset NODE_RANK
exec srun --kill-on-bad-exit=1 bash "$HERE/{launcher}" "$@"
"""
GPUS: Final = "#SBATCH --gpus-per-node={per_host}"
OTHER_DEVICES: Final = "# Add the option by which your site grants {per_host} {name} for each host."


@dataclass(frozen=True)
class Hosts:
    """How processes are dealt to hosts: ``per_host`` on each but the last, ``last`` there."""

    count: int
    per_host: int
    last: int


def lay_out(problem: Problem, plan: Plan) -> Hosts:
    """Return the hosts that the plan fills, in order; only the last one may be partly used."""
    size = problem.cluster.devices_per_host
    count = -(-plan.num_devices // size)
    last = plan.num_devices - (count - 1) * size
    return Hosts(count, size if count > 1 else last, last)


def torchrun(problem: Problem, plan: Plan, script: str, arguments: str = "") -> str:
    """Return the script that starts one host's processes with torchrun; run it on every host."""
    title = "Starts this host's processes with torchrun; run it on every host with its NODE_RANK."
    hosts = lay_out(problem, plan)
    processes = PROCESSES.format(hosts=hosts.count, per_host=hosts.per_host)
    if hosts.last != hosts.per_host:
        processes += LAST_PROCESSES.format(last=hosts.last)
    return _node_head(hosts, plan, script, title) + processes + TORCHRUN.format(arguments=arguments)


def accelerate(problem: Problem, plan: Plan, script: str) -> str:
    """Return the script that starts one host's processes with ``accelerate launch``."""
    title = "Starts this host's processes with Accelerate; run it on every host with its NODE_RANK."
    return _node_head(lay_out(problem, plan), plan, script, title) + ACCELERATE


def deepspeed(problem: Problem, plan: Plan, script: str, arguments: str = "") -> str:
    """Return the script that starts all hosts from the first one with DeepSpeed's launcher."""
    hosts = lay_out(problem, plan)
    title = "Starts all processes with DeepSpeed's launcher; run it once, on the first host."
    command = DEEPSPEED_ONE_HOST if hosts.count == 1 else DEEPSPEED_HOSTS
    return _head(hosts, script, title) + command.format(per_host=hosts.per_host, arguments=arguments)


def hostfile(problem: Problem, plan: Plan) -> str:
    """Return DeepSpeed's hostfile with placeholder names, in rank order."""
    hosts = lay_out(problem, plan)
    slots = [hosts.per_host] * (hosts.count - 1) + [hosts.last]
    lines = [f"node{i} slots={n}" for i, n in enumerate(slots)]
    return "\n".join(["# Put your hosts' names here, in the order of the ranks.", *lines]) + "\n"


def sbatch(problem: Problem, plan: Plan, launcher: str) -> str:
    """Return a Slurm job that starts ``launcher`` once on each host."""
    hosts, accelerator = lay_out(problem, plan), problem.cluster.accelerator
    grant = GPUS if accelerator.kind == "gpu" else OTHER_DEVICES
    return SBATCH.format(
        name=job_name(plan.model),
        hosts=hosts.count,
        devices=grant.format(per_host=hosts.per_host, name=job_name(accelerator.name)),
        port=PORT,
        launcher=launcher,
    )


def _head(hosts: Hosts, script: str, title: str) -> str:
    master = "node0" if hosts.count > 1 else "127.0.0.1"
    return HEAD.format(title=title, script=quoted_script(script), master=master, port=PORT)


def _node_head(hosts: Hosts, plan: Plan, script: str, title: str) -> str:
    exports = EXPORTS.format(tp=plan.tp, pp=plan.pp, dp=plan.dp)
    return _head(hosts, script, title) + exports + _more_exports(plan)


def start(hosts: int) -> list[str]:
    """Return how to start ``launch.sh`` and ``job.sbatch``, for the README beside them."""
    if hosts == 1:
        return ["`./launch.sh`"]
    return [
        "On every host `NODE_RANK=<0, 1, ...> MASTER_ADDR=<first host> ./launch.sh`, or",
        "under Slurm `sbatch job.sbatch` from this folder.",
    ]


def _more_exports(plan: Plan) -> str:
    """Return the degrees that few plans use, where this one does."""
    names = ("cp", "ep", "etp", "dp_replicate", "hpz", "ulysses")
    used = [f"MESHWRIGHT_{n.upper()}={getattr(plan, n)}" for n in names if getattr(plan, n) > 1]
    return f"export {' '.join(used)}\n" if used else ""
