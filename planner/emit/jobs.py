"""Jobs that start one launch script on each host: Slurm, Kubernetes (Kubeflow Trainer), SkyPilot.

Sources: ``sbatch`` and ``srun`` manual pages; the ``TrainJob`` of Kubeflow Trainer 2
(``trainer.kubeflow.org/v1alpha1``; its runtime for torch sets ``PET_NODE_RANK``, ``PET_MASTER_ADDR`` and
``PET_MASTER_PORT``); SkyPilot's task YAML (``SKYPILOT_NODE_RANK``, ``SKYPILOT_NODE_IPS``).
"""

import re
from typing import Any, Final

from meshwright.planner.emit.launch import PORT, lay_out
from meshwright.planner.emit.text import job_name
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

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

MOUNT: Final = "/meshwright"
IMAGE: Final = "your-registry/your-training-image"
"""A placeholder: the image holds the framework and the training script."""
RESOURCES: Final = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Intel/Habana": "habana.ai/gaudi",
    "Google": "google.com/tpu",
    "AWS": "aws.amazon.com/neuron",
}
"""Names under which the vendors' device plugins offer devices to Kubernetes; CPUs need none."""
ON_NODE: Final = (
    'export NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"; '
    'exec bash "$0" "$@"'
)
CONTAINER: Final = "node"
"""The runtime ``torch-distributed`` calls its replicated job and its container so."""

SKY_DEVICES: Final = {
    "a100-40gb-sxm": "A100",
    "a100-80gb-sxm": "A100-80GB",
    "a100-80gb-pcie": "A100-80GB",
    "a10g": "A10G",
    "b200-sxm": "B200",
    "b300-sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100-sxm": "H100",
    "h100-pcie": "H100",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "rtx-5090": "RTX5090",
    "rtx-a6000": "RTXA6000",
    "v100-16gb": "V100",
    "v100-32gb": "V100-32GB",
}
"""SkyPilot's names of accelerators, as ``sky/utils/gpu_names.py`` and its clouds' tables have them."""
SKY_RUN: Final = """\
export NODE_RANK="$SKYPILOT_NODE_RANK"
MASTER_ADDR="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"
export MASTER_ADDR
exec bash {launcher}
"""


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


def train_job(problem: Problem, plan: Plan, launcher: str) -> dict[str, Any]:
    """Return a ``TrainJob``: the folder is a config map, mounted on each host, and ``launcher`` is run."""
    hosts, name = lay_out(problem, plan), dns_name(plan.model)
    resource = RESOURCES.get(problem.cluster.accelerator.vendor)
    devices = {resource: str(hosts.per_host)} if resource else {}
    trainer = {
        "image": IMAGE,
        "command": ["bash", "-c", ON_NODE, f"{MOUNT}/{launcher}"],
        "numNodes": hosts.count,
        "numProcPerNode": hosts.per_host,
        **({"resourcesPerNode": {"limits": devices}} if devices else {}),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
            "runtimePatches": [_volumes(name)],
        },
    }


def _volumes(name: str) -> dict[str, Any]:
    """Return the patch that mounts the plan's folder, and room for the ranks' shared memory."""
    volumes = [
        {"name": "meshwright", "configMap": {"name": name}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "meshwright", "mountPath": MOUNT, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    pod = {"spec": {"volumes": volumes, "containers": [{"name": CONTAINER, "volumeMounts": mounts}]}}
    jobs = [{"name": CONTAINER, "template": {"spec": {"template": pod}}}]
    return {
        "manager": "meshwright.dev/plan",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }


def sky_task(problem: Problem, plan: Plan, launcher: str) -> dict[str, Any]:
    """Return SkyPilot's task: this folder is copied to each host, where ``launcher`` is run."""
    hosts = lay_out(problem, plan)
    return {
        "name": dns_name(plan.model),
        "num_nodes": hosts.count,
        "resources": {"accelerators": f"{SKY_DEVICES[problem.cluster.accelerator.name]}:{hosts.per_host}"},
        "workdir": ".",
        "run": SKY_RUN.format(launcher=launcher),
    }


def sky_limits(problem: Problem, plan: Plan) -> list[str]:
    """Return why SkyPilot cannot grant the cluster's devices."""
    name = problem.cluster.accelerator.name
    if name in SKY_DEVICES:
        return []
    return [
        f"cluster={problem.cluster.name}: SkyPilot has no name for {name}; it has {', '.join(SKY_DEVICES)}"
    ]


def dns_name(text: str) -> str:
    """Return a name as Kubernetes takes it: lower-case letters, digits and dashes, at most 40."""
    return re.sub(r"[^a-z0-9]+", "-", job_name(text).lower())[:40].strip("-") or "meshwright"
