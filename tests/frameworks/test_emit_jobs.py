"""Kubeflow's own models read the emitted TrainJob."""

import json

import pytest
import yaml

from meshwright.planner.emit.registry import EMITTERS, emit
from tests.planner.emit.cases import case

STRATEGY = {"fsdp": {"zero_stage": 3}, "torchtitan": {"zero_stage": 3}, "native": {"zero_stage": 3}}


def document(target: str, launcher: str, file: str) -> dict:
    return yaml.safe_load(emit(*case(target, **STRATEGY.get(target, {})), launchers=[launcher])[file])


@pytest.mark.parametrize("target", EMITTERS)
def test_kubeflow_reads_the_train_job(target: str) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="kubeflow-trainer-api is not installed")
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    given = document(target, "kubernetes", "trainjob.yaml")
    job = TrainerV1alpha1TrainJob.from_dict(given)
    assert job is not None and job.spec is not None and job.spec.trainer is not None
    assert (job.spec.trainer.num_nodes, job.spec.trainer.num_proc_per_node) == (2, 8)
    # Unknown fields are dropped in silence: nothing may be lost on the way back.
    assert json.loads(job.to_json()) == given


def test_kubeflow_itself_refuses_a_wrong_type() -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="kubeflow-trainer-api is not installed")
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    given = document("any", "kubernetes", "trainjob.yaml")
    given["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(ValueError, match="numNodes"):
        TrainerV1alpha1TrainJob.from_dict(given)
