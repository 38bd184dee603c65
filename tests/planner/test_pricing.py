"""Prices of plans add up: seconds by cause, bytes by item, FLOPs by layer, money by hour."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.costmodels.memory import ITEMS
from meshwright.costmodels.tables import build_tables
from meshwright.planner.batch import joined
from meshwright.planner.graph import Stream
from meshwright.planner.meshes import mesh_of, one_mesh
from meshwright.planner.pricing import counts, loss_name, model_flops, peak_flops_per_s, price_plan, setting
from meshwright.planner.problem import Problem
from tests.planner.emit.cases import case
from tests.strategies import launchable


@settings(max_examples=25, deadline=None)
@given(launchable())
def test_causes_items_and_layers_add_up(drawn: Any) -> None:
    problem, plan = drawn
    got = price_plan(problem, plan)
    assert sum(got.breakdown.values()) == pytest.approx(got.step_time_s)
    assert set(got.memory[0]) == set(ITEMS)
    for items, peak in zip(got.memory, got.peak_bytes, strict=True):
        assert sum(items.values()) == pytest.approx(peak)
    assert counts(problem, plan).sum(axis=(0, 1, 3)).tolist() == problem.model.kind_counts.tolist()
    assert got.fits_device == (max(got.peak_bytes) <= got.usable_bytes)
    assert max(got.host_bytes) == 0 or plan.offload != "none" or "offload" in plan.recompute
    assert got.fits == (got.fits_device and max(got.host_bytes) <= (got.host_share_bytes or np.inf))
    assert 0 < got.mfu < 1
    assert got.hardware_flops >= got.model_flops * (1 - 1e-9)


def test_model_flops_are_about_six_a_parameter_and_token() -> None:
    """6 N D and attention on top (arXiv 2001.08361): 8.03e9 parameters, of which the embedding adds none."""
    problem, _ = case(tp=4, pp=2)
    tokens = 128 * 8192
    products = problem.model.parameters - 128256 * 4096
    attention = 32 * 6 * 8192 * 4096  # 12 s h a layer and token, causal half
    assert model_flops(problem) == pytest.approx(tokens * (6 * products + attention), rel=0.01)


def test_frozen_weights_count_no_gradient_of_their_own() -> None:
    """4 N D forward and backward through frozen products (LoRA), 6 a trained parameter, attention as ever."""
    full, _ = case(tp=4, pp=2)
    lora, _ = case(tp=4, pp=2, job={"tuning": "lora:r=16"})
    tokens = 128 * 8192
    products = full.model.parameters - 128256 * 4096
    saved = model_flops(full) - model_flops(lora)
    assert saved == pytest.approx(tokens * (2 * products - 6 * 41_943_040), rel=1e-3)


def test_layers_without_a_backward_pass_count_once() -> None:
    full, _ = case(tp=4, pp=2)
    head = case(tp=4, pp=2, job={"tuning": "freeze:layers=32"})[0]
    only = 128 * 8192 * 4 * 128256 * 4096  # what the head adds to one forward pass
    assert model_flops(head) == pytest.approx(model_flops(full) / 3 + only, rel=1e-3)


def test_an_estimate_tells_what_is_trained() -> None:
    got = price_plan(*case(tp=4, pp=2, job={"tuning": "lora:r=16"}))
    assert got.trainable_parameters == 41_943_040
    assert got.parameters == 8_030_261_248 + 41_943_040
    whole = price_plan(*case(tp=4, pp=2))
    assert whole.trainable_parameters == whole.parameters == 8_030_261_248


def test_utilisation_is_told_against_the_fastest_products_of_the_recipe() -> None:
    bf16, fp8 = (case(tp=4, pp=2, job={"precision": p})[0] for p in ("bf16", "fp8"))
    peaks = fp8.cluster.accelerator.peak_flops_per_s
    assert (peak_flops_per_s(bf16), peak_flops_per_s(fp8)) == (peaks["bf16"], peaks["fp8"])


def test_the_setting_has_the_jobs_lengths_and_load() -> None:
    problem, _ = case(job={"expert_load": 1.5})
    towered = replace(problem, base=replace(problem.base, streams=(Stream("vision", "image", 4.0),)))
    seen = setting(replace(towered, job=replace(problem.job, image_tokens=100)))
    assert (seen.sequence_length, seen.expert_load) == (8192 + 100, 1.5)
    assert seen.lengths("vision").sequence_length == 400


def test_the_bill_is_devices_times_hours_times_price() -> None:
    problem, plan = case(tp=4, pp=2, job={"tokens": 10**12})
    got = price_plan(problem, plan)
    assert got.usd_per_hour is not None
    assert got.usd_per_step == pytest.approx(got.usd_per_hour * got.step_time_s / 3600)
    assert got.total_hours == pytest.approx(1e12 / got.tokens_per_s / 3600)
    assert got.total_usd == pytest.approx(got.total_hours * got.usd_per_hour)


def test_idle_devices_are_paid_for() -> None:
    whole, full = case(tp=4, pp=2)
    spare, part = case(tp=4, pp=2, dp=1, job={"allow_idle": True})
    assert price_plan(whole, full).usd_per_hour == price_plan(spare, part).usd_per_hour


def test_without_a_price_there_is_no_bill() -> None:
    problem, plan = case(tp=4, pp=2)
    device = replace(problem.cluster.accelerator, prices=())
    free = replace(problem, cluster=replace(problem.cluster, accelerator=device, usd_per_device_hour=None))
    got = price_plan(free, plan)
    assert (got.usd_per_hour, got.usd_per_step, got.total_usd) == (None, None, None)


def test_the_loss_is_the_jobs_or_the_profiles() -> None:
    problem, _ = case()
    assert loss_name(problem) == problem.profile.loss
    assert loss_name(case(job={"loss": "fused"})[0]) == "fused"


def test_a_pipeline_of_deepspeed_is_priced_with_the_loss_that_its_engine_calls() -> None:
    """Whichever way it is asked for: chosen by the profile, told in the plan, or side by side with others."""
    own = {"target": "deepspeed", "sequence_length": 1024}
    places = {"sequence_parallel": False, "schedule": "1f1b", "placement": ("tp", "cp", "dp", "pp")}
    (problem, piped), (_, flat) = (
        case(tp=1, pp=pp, zero_stage=1, recompute="full", job=own, **places) for pp in (2, 1)
    )
    assert (piped.loss, flat.loss) == ("torch", "eager")
    told = replace(problem, job=replace(problem.job, loss="torch"))
    assert price_plan(told, piped) == price_plan(problem, piped)
    other = replace(problem, job=replace(problem.job, loss="eager"))
    slower = price_plan(other, replace(piped, loss="eager"))
    assert slower.step_time_s > price_plan(problem, piped).step_time_s
    mixed = joined([mesh_of(plan) for plan in (flat, piped)]).strategies()
    together = build_tables(setting(problem), mixed)
    for row, plan in enumerate((flat, piped)):
        alone = build_tables(setting(problem), mesh_of(plan).strategies())
        assert np.array_equal(together.backward_parts[row], alone.backward_parts[0])
        assert np.array_equal(together.saved_bytes[row], alone.saved_bytes[0])


@pytest.mark.parametrize(
    ("name", "lengths", "mtp"),
    [
        ("bart-large", {"target_length": 128}, False),
        ("whisper-large-v3", {"target_length": 128}, False),
        ("qwen2.5-0.5b", {}, False),
        ("deepseek-v3", {}, True),
    ],
)
def test_one_device_holds_every_parameter_once(name: str, lengths: dict[str, int], mtp: bool) -> None:
    """Heads, decoders' embeddings and those of prediction layers are copies where a pipeline parts them."""
    job = {"global_batch_size": 4, "sequence_length": 512, "mtp": mtp, **lengths}
    problem = Problem.load(name, "dgx-h100", job)
    alone = replace(setting(problem), vocab_multiple=1)
    plain = {
        "micro_batch_size": 1,
        "num_microbatches": 4,
        "placement": ("tp", "cp", "dp", "pp"),
        "schedule": "1f1b",
    }
    whole = {"tp": 1, "dp": 1, "vpp": 1, "zero_stage": 0, "sequence_parallel": False, **plain}
    both = [one_mesh(pp=pp, **whole).strategies() for pp in (1, 2)]
    held = [float(build_tables(alone, s).parameters[0] @ problem.model.kind_counts) for s in both]
    assert held[0] == problem.model.parameters
    assert held[1] == problem.model.parameters + problem.model.copied_parameters
    assert problem.model.copied_parameters > 0
