"""A planning problem: a model, a cluster and a job, loaded and checked together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from typing import Any

from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.precision import Optimizer, Precision, find_optimizer, find_precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import has_experts
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Cluster
from meshwright.planner.choice import Choice
from meshwright.planner.graph import ModelGraph
from meshwright.planner.headroom import Headroom, headroom_of
from meshwright.planner.job import Job
from meshwright.planner.lengths import check_lengths, length_notes
from meshwright.planner.target import Target
from meshwright.planner.target_job import fitted
from meshwright.planner.targets import find_target
from meshwright.planner.tuned import mixed, tuned
from meshwright.planner.whole import with_whole_embedding


@dataclass(frozen=True)
class Problem:
    """What ``solve`` solves and ``estimate`` prices against.

    Attributes
    ----------
    base
        The graph as its file describes it; :attr:`model` is what is trained of it.
    """

    base: ModelGraph
    cluster: Cluster
    job: Job

    @cached_property
    def model(self) -> ModelGraph:
        """The graph as it is trained: with adapters, frozen parts, and blocks that stay in 16 bits.

        Where the target splits no embedding, each tensor rank holds it whole.

        Raises
        ------
        MeshwrightError
            If the job's tuning names something that the model does not have.
        """
        graph = mixed(tuned(self.base, self.job.tuning), self.precision)
        return with_whole_embedding(graph) if self.target.whole_embedding else graph

    @cached_property
    def target(self) -> Target:
        """The target framework, with the recompute modes that it has for this model and recipe."""
        return fitted(find_target(self.job.target), self.base, self.job)

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

    @cached_property
    def headroom(self) -> Headroom:
        """What a plan must leave free of a device's memory: the job's, or what measured peaks ask for."""
        return headroom_of(self.job, self.profile.name, self.cluster.accelerator)

    def choosing(self, **choices: Choice) -> "Problem":
        """Return the problem with more choices of its job; what does not depend on them is kept."""
        return self._keeping(replace(self.job, choices={**self.job.choices, **choices}))

    def leaving(self, headroom: float) -> "Problem":
        """Return the problem with a given headroom; what does not depend on it is kept."""
        return self._keeping(replace(self.job, headroom=headroom), "headroom")

    def _keeping(self, job: Job, *but: str) -> "Problem":
        """Return the problem of another job with everything found already ``but`` some of it."""
        changed, given = replace(self, job=job), {f.name for f in fields(self)}
        found = {k: v for k, v in self.__dict__.items() if k not in given and k not in but}
        changed.__dict__.update(found)
        return changed

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed about the model and its lengths."""
        return (*self.model.notes, *length_notes(self.model, self.job), *self._idle_notes())

    def _idle_notes(self) -> tuple[str, ...]:
        """Return a note for what the job says about experts where no layer has any."""
        load, name = self.job.expert_load, self.base.name
        if load == 1 or any(map(has_experts, self.base.kinds)):
            return ()
        return (f"expert_load {load:g} has no effect: no layer of {name} has experts",)

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
            If a name is unknown, a file is bad, a number is out of range, or the job asks for something
            that the model does not have.
        """
        from meshwright.hardware.catalogue import load_cluster
        from meshwright.planner.importers import load_model

        machine = cluster if isinstance(cluster, Cluster) else load_cluster(str(cluster))
        work = job if isinstance(job, Job) else Job.from_mapping(job)
        graph = model if isinstance(model, ModelGraph) else load_model(str(model), mtp=work.mtp)
        check_lengths(graph, work)
        if work.mtp and graph.mtp_parameters and not graph.mtp_included:
            raise MeshwrightError(
                f"mtp: the graph of {graph.name} was built without its multi-token-prediction layers; give "
                "the model by name or path, or build it with load_model(..., mtp=True)"
            )
        problem = cls(graph, machine, work)
        _ = problem.target, problem.profile, problem.optimizer, problem.model
        find_loss(problem.profile.loss if work.loss is None else work.loss)
        return problem
