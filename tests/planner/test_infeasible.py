"""Why nothing fits: the rule that binds, by how much, and remedies that were searched for."""

from dataclasses import replace
from typing import Any

import pytest

import meshwright
from meshwright.hardware.catalogue import load_cluster
from meshwright.planner import infeasible
from meshwright.planner.choice import choice
from meshwright.planner.infeasible import fits, grow, nearest_batches
from meshwright.planner.problem import Problem
from meshwright.planner.solve import solve_problem

SMALL = {"global_batch_size": 8, "sequence_length": 512}


def problem(model: str = "gpt2", cluster: str = "dgx-h100", **job: Any) -> Problem:
    return Problem.load(model, cluster, SMALL | job)


def why(asked: Problem) -> Any:
    result = solve_problem(asked, alternatives=0)
    assert result.status == "INFEASIBLE"
    assert result.plan is None
    assert result.lower_bound_s is None
    return result.infeasibility


def test_a_batch_that_no_data_degree_divides_names_the_nearest() -> None:
    asked = problem(target="fsdp", global_batch_size=12)
    told = why(asked)
    assert told.rule == "batch divisible"
    assert nearest_batches(asked) == (8, 16)
    assert "8, 16" in told.message
    for batch in (8, 16):
        assert fits(replace(asked, job=replace(asked.job, global_batch_size=batch)))
    assert "another target than fsdp" in told.remedies


@pytest.mark.parametrize(
    ("job", "rule", "told"),
    [
        ({"target": "fsdp", "pins": {"tp": 2}}, "pin tp", "has no other"),
        ({"pins": {"tp": 7}}, "pin tp", "possible here: 1, 2, 4"),
        ({"pins": {"pp": 3}}, "pin pp", "possible here: 1, 2, 4, 8"),
        ({"pins": {"dp": 5}}, "pin dp", "possible here"),
        ({"pins": {"tp": 2, "pp": 8}}, "device count", "exactly 8 devices"),
    ],
)
def test_a_pin_that_no_mesh_meets_is_named(job: dict[str, Any], rule: str, told: str) -> None:
    found = why(problem(**job))
    assert found.rule == rule
    assert told in found.message
    assert any("pin" in remedy for remedy in found.remedies)


def test_what_memory_lacks_is_measured_and_its_remedies_work() -> None:
    asked = problem("llama-3.1-8b", "rtx-4090-8", target="deepspeed", headroom=0.3, pins={"offload": "none"})
    found = why(asked)
    assert found.rule == "memory"
    closest = found.closest
    assert found.missing_bytes == pytest.approx(max(closest.peak_bytes) - closest.usable_bytes)
    assert found.missing_bytes > 0
    assert {"no memory headroom (risky)", "drop the pin on offload"} <= set(found.remedies)
    assert fits(replace(asked, job=replace(asked.job, headroom=0.0)))


def test_where_nothing_fits_states_go_to_the_host_unless_the_job_forbids_it() -> None:
    """What is found is the fastest plan with offloading: pinning the same finds the same."""
    asked = problem("llama-3.1-8b", "rtx-4090-8", target="deepspeed", headroom=0.3)
    found = solve_problem(asked, alternatives=0)
    assert found.status == "OPTIMAL"
    assert found.plan is not None
    assert found.plan.offload != "none"
    assert any("without offloading" in note for note in found.notes)
    assert found.record is not None
    assert found.record.discarded["nothing fits without offloading"] > 0
    assert not any("pin" in told for told in found.binding)
    same = solve_problem(asked.choosing(offload=choice(["optimizer", "parameters"])), alternatives=0)
    assert same.plan == found.plan


def test_a_host_that_is_too_small_is_what_binds() -> None:
    """12 bytes of masters and moments for each of 8.03e9 parameters do not go into a host of 50 GB."""
    asked = problem("llama-3.1-8b", "rtx-4090-8", target="deepspeed", pins={"offload": "optimizer"})
    small = replace(asked, cluster=replace(asked.cluster, host_memory_bytes=50e9))
    found = why(small)
    assert found.rule == "host memory"
    assert found.closest.fits_device
    assert not found.closest.fits_host
    assert not found.closest.fits
    share = 50e9 / asked.cluster.devices_per_host
    assert found.missing_bytes == pytest.approx(max(found.closest.host_bytes) - share)
    assert "host memory" in found.message
    assert found.missing_bytes > 0


def test_a_clock_that_ran_out_tries_no_remedies() -> None:
    result = solve_problem(problem("llama-3.1-70b", "dgx-h100:1", pins={"pp": 1}), time_limit_s=1e-9)
    assert result.status in ("INFEASIBLE", "UNKNOWN")
    assert result.infeasibility is None or result.infeasibility.remedies == ()


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-h100:2", "h100:2"])
def test_a_grown_cluster_has_as_many_times_the_devices(name: str) -> None:
    cluster = load_cluster(name)
    assert grow(cluster, 4).num_devices == 4 * cluster.num_devices


def test_sequences_beyond_the_positions_are_remarked() -> None:
    told = meshwright.estimate("llama-2-7b", "dgx-h100", SMALL | {"sequence_length": 8192}, {"tp": 8})
    assert any("exceed the 4096 positions" in note for note in told.notes)


def test_where_no_mesh_passes_only_what_restricts_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither larger clusters nor what saves memory can lift a rule that a pin breaks."""

    def never(*_: Any) -> Any:
        raise AssertionError("not to be searched")

    monkeypatch.setattr(infeasible, "grow", never)
    monkeypatch.setattr(infeasible, "_lighter_jobs", never)
    found = why(problem(pins={"offload": "parameters", "zero_stage": 0}))
    assert found.rule == "offloaded states are split"
    assert found.remedies == ("drop the pin on offload", "drop the pin on zero_stage")


def test_drives_that_hold_what_the_host_does_not_are_a_remedy() -> None:
    """16 bytes for each of 70.6e9 parameters: a share of 2.3 TB a device goes on drives, not into 100 GB."""
    asked = problem("llama-3.1-70b", "dgx-a100", target="deepspeed")
    small = replace(asked, cluster=replace(asked.cluster, host_memory_bytes=100e9))
    found = why(small)
    remedy = next(text for text in found.remedies if "drives" in text)
    pin = remedy.partition("--pin offload=")[2].rstrip(")")
    told = solve_problem(small.choosing(offload=choice(pin)), alternatives=0)
    assert told.plan is not None
    assert told.plan.offload.endswith("nvme")
    assert found.untried == ()


def test_drives_that_are_not_known_are_asked_for() -> None:
    asked = problem("llama-3.1-70b", "dgx-h100", target="deepspeed")
    small = replace(asked, cluster=replace(asked.cluster, host_memory_bytes=100e9))
    (text,) = why(small).untried
    assert text.startswith("drives unknown for dgx-h100: state nvme_gb_per_s and nvme_tb")
    assert why(small.choosing(offload=choice("none"))).untried == ()


@pytest.mark.parametrize("what", ["optimizer-nvme", "parameters-nvme"])
def test_a_pin_on_drives_that_nobody_described_names_the_two_keys(what: str) -> None:
    (told,) = why(problem(pins={"offload": what})).untried
    assert "nvme_gb_per_s and nvme_tb" in told
    assert why(problem(pins={"offload": what}, target="megatron")).untried == ()


def test_a_pin_on_heads_that_needs_shorter_parts_says_what_else_to_pin() -> None:
    long = {"model": "llama-3.1-8b", "sequence_length": 8192}
    assert "pin cp too" in why(problem(**long, pins={"ulysses": 4})).message
    assert "pin cp too" not in why(problem(**long, pins={"ulysses": 4, "cp": 2})).message
    assert solve_problem(problem(**long, pins={"ulysses": 4, "cp": 4}), alternatives=0).plan is not None


def test_a_batch_of_more_samples_than_steps_have_micro_batches_is_told_what_to_make_of_it() -> None:
    """A step is simulated micro-batch by micro-batch: 8,192 of them at most."""
    told = why(problem("gpt2", global_batch_size=866_421_317_361_600))
    assert any("at most 65,536 sequences" in remedy for remedy in told.remedies)
    assert fits(problem("gpt2", global_batch_size=65_536))


@pytest.mark.parametrize("name", ["dgx-a100:1@100GbE", "dgx-a100:1"])
def test_a_node_that_gains_others_has_the_network_that_was_named(name: str) -> None:
    one, two = (load_cluster(name.replace(":1", f":{count}")) for count in (1, 2))
    assert grow(one, 2).tiers == two.tiers
