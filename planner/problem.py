"""A planning problem: a model, a cluster and a job, loaded and checked together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.precision import Optimizer, Precision, find_optimizer, find_precision
from meshwright.costmodels.profile import Profile, find_profile
from meshwright.hardware.spec import Cluster
from meshwright.planner.graph import ModelGraph
from meshwright.planner.job import Job
from meshwright.planner.target import Target, find_target


@dataclass(frozen=True)
class Problem:
    """What ``solve`` solves and ``estimate`` prices against."""

    model: ModelGraph
    cluster: Cluster
    job: Job

    @cached_property
    def target(self) -> Target:
        """The target framework."""
        return find_target(self.job.target)

    @cached_property
    def profile(self) -> Profile:
        """The software profile: the job's, or its target's."""
        return find_profile(self.target.profile if self.job.profile is None else self.job.profile)

    @cached_property
    def precision(self) -> Precision:
        """The precision recipe."""
        return find_precision(self.job.precision)

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return find_optimizer(self.job.optimizer)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed about the model, and a warning where sequences exceed its positions."""
        limit, length = self.model.max_sequence_length, self.job.sequence_length
        beyond = (
            f"sequences of {length} tokens exceed the {limit} positions that {self.model.name} was made for"
        )
        return (*self.model.notes, *([beyond] if limit is not None and length > limit else []))

    @classmethod
    def load(
        cls,
        model: "ModelGraph | str | PathLike[str]",
        cluster: "Cluster | str | PathLike[str]",
        job: "Job | Mapping[str, Any]",
    ) -> "Problem":
        """Load names and paths into a problem, and look every name up.

        Raises
        ------
        MeshwrightError
            If a name is unknown, a file is bad, or a number is out of range.
        """
        from meshwright.hardware.catalogue import load_cluster
        from meshwright.planner.importers import load_model

        graph = model if isinstance(model, ModelGraph) else load_model(str(model))
        machine = cluster if isinstance(cluster, Cluster) else load_cluster(str(cluster))
        work = job if isinstance(job, Job) else Job.from_mapping(job)
        problem = cls(graph, machine, work)
        _ = problem.target, problem.profile, problem.precision, problem.optimizer
        find_loss(problem.profile.loss if work.loss is None else work.loss)
        return problem
