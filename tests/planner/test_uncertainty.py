"""How far a measured step time may lie from its prediction, and by which runs that is known."""

import pytest

from meshwright.costmodels.residuals import measured_accelerators
from meshwright.hardware.catalogue import accelerator_names, load_cluster
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.uncertainty import Uncertainty, group_words, kind_of, uncertainty_of
from tests.planner.emit.cases import model


def problem(machines: str = "dgx-h100", name: str = "llama-3.1-8b", **job: object) -> Problem:
    return Problem(model(name), load_cluster(machines), Job(8, 128, **job))  # type: ignore[arg-type]


def test_kinds_are_what_is_trained() -> None:
    assert kind_of(problem()) == "dense"
    assert kind_of(problem(name="mixtral-8x7b")) == "moe"
    assert kind_of(problem(name="mixtral-8x7b", tuning="lora:r=8")) == "tuned"


@pytest.mark.parametrize("machines", ["dgx-h100", "dgx-a100-80gb"])
def test_a_measured_accelerator_is_no_extrapolation(machines: str) -> None:
    found = uncertainty_of(problem(machines))
    assert found is not None
    assert not found.extrapolated
    assert 0 < found.typical <= found.wide
    assert str(found).startswith("± ")


def test_an_accelerator_that_nobody_measured_is_said_to_be_extrapolated() -> None:
    from dataclasses import replace

    new = sorted(set(accelerator_names()) - measured_accelerators())[0]
    machine = load_cluster("dgx-h100")
    other = replace(machine, accelerator=replace(machine.accelerator, name=new))
    found = uncertainty_of(Problem(model(), other, Job(8, 128)))
    assert found is not None
    assert found.extrapolated
    assert str(found).startswith("extrapolated: no measured run on this accelerator; ± ")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({}, "all stacks"),
        ({"kind": "moe"}, "all stacks, mixture of experts"),
        ({"profile": "fsdp2", "kind": "dense"}, "fsdp2, dense"),
        (
            {"profile": "fsdp2", "accelerator": "h100-sxm", "kind": "dense"},
            "fsdp2 on h100-sxm, dense",
        ),
        ({"architecture": "hopper", "kind": "tuned"}, "all stacks on hopper, adapters"),
        ({"accelerator": "unseen"}, "all stacks on accelerators that nothing was fitted to"),
    ],
)
def test_groups_are_told_in_words(group: dict[str, str], words: str) -> None:
    assert group_words(group) == words


def test_the_sentence_has_the_runs_and_the_group() -> None:
    said = str(Uncertainty(0.093, 0.2, 1042, "fsdp2 on h100-sxm, dense", extrapolated=False))
    assert said == "± 9% (two of three of 1,042 runs: fsdp2 on h100-sxm, dense)"
