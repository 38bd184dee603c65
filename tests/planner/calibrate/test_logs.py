"""Logs as the frameworks write them, and what is no log."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import GIB
from meshwright.planner.calibrate.logs import FORMATS, read_log, steady
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 16, "sequence_length": 2048}
PROBLEM = Problem.load("llama-3.1-8b", "dgx-h100", JOB)
PLAN = make_plan(PROBLEM, tp=2, zero_stage=1)
# 16 sequences of 2048 tokens in 2 s: 8 sequences a second, 2048 tokens a second on each of 8 devices
LINES = {
    "megatron": " [2026-11-01 10:00:{n:02}] iteration {n}/ 10 | consumed samples: {n} | "
    "elapsed time per iteration (ms): {ms} | learning rate: 1.0E-04 | global batch size: 16 |",
    "deepspeed": "[Rank 0] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=7.0, "
    "CurrSamplesPerSec={rate}, MemAllocated=10.0GB, MaxMemAllocated=20.5GB",
    "torchtitan": "\x1b[31mstep: {n:2}  \x1b[32mloss:  7.1  \x1b[38;2;180;60;0mgrad_norm: 1.2  "
    "\x1b[34mmemory: 20.50GiB(25.6%)  \x1b[36mtps: {tps:,}  \x1b[35mtflops: 1.0  mfu: 1.0%\x1b[39m",
    "trainer": "{{'train_runtime': 20.0, 'train_samples_per_second': 8.0, "
    "'train_steps_per_second': {steps}, 'train_loss': 7.1}}",
}


def log(name, times):
    line = LINES[name]
    return "\n".join(
        line.format(n=n, ms=1000 * t, rate=16 / t, tps=round(4096 / t), steps=1 / t)
        for n, t in enumerate(times, start=1)
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("told", [True, False])
def test_each_framework_s_step_time_is_read_without_its_first_steps(name, told):
    found = read_log(log(name, [60.0, 2.0, 2.0, 2.0]), PLAN, name if told else None, "run.log")
    assert found.step_time_s == pytest.approx(2.0, rel=1e-3)
    assert found.steps == 3


def test_a_pipeline_s_iteration_time_is_read_before_its_rates():
    text = "steps: 10 loss: 5.7 iter time (s): 2.000 samples/sec: 8.000\n" * 3
    assert read_log(text, PLAN, "deepspeed", "run.log").step_time_s == 2.0


@pytest.mark.parametrize(("name", "gib"), [("deepspeed", 20.5), ("torchtitan", 20.5), ("megatron", None)])
def test_the_peak_is_read_where_a_log_tells_it(name, gib):
    peak = read_log(log(name, [2.0, 2.0]), PLAN, None, "run.log").peak_bytes
    assert peak == (None if gib is None else gib * GIB)


def test_a_text_without_steps_is_refused_by_name():
    with pytest.raises(MeshwrightError, match=r"run\.log.*megatron"):
        read_log("nothing here", PLAN, "megatron", "run.log")


@given(st.text())
def test_no_text_is_a_bug(text):
    with suppress(MeshwrightError):
        assert read_log(text, PLAN, None, "run.log").step_time_s > 0


@given(st.lists(st.floats(0.1, 10), min_size=1))
def test_some_step_always_counts(times):
    kept = steady(times)
    assert kept and len(kept) >= 0.9 * len(times) - 1
    assert len(times) == 1 or len(kept) < len(times)


def test_memory_of_zero_is_memory_that_was_not_told():
    assert read_log("memory: 0.00GiB(0.00%) tps: 1000", PLAN, None, "run.log").peak_bytes is None
