"""Step times in the logs of training frameworks, read as the untrusted text that they are.

==========  =======================================================================================
megatron    ``elapsed time per iteration (ms): 1234.5`` (Megatron-LM ``training_log``)
deepspeed   ``iter time (s): 0.345`` (pipeline engine) or ``CurrSamplesPerSec=12.3`` (throughput timer)
torchtitan  ``tps: 1,234``, tokens a second and device (``MetricsProcessor.log``), ``memory: 12.34GiB``
trainer     ``'train_steps_per_second': 0.5`` (transformers ``speed_metrics``), the mean over a run
==========  =======================================================================================

The first steps load, compile and allocate: the first tenth of a log, at least one step where there are
several, does not count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from statistics import median
from typing import Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import gib_to_bytes, ms_to_s
from meshwright.planner.plan import Plan

WARM_UP: Final = 0.1
"""Share of the steps that do not count."""
NUMBER: Final = r"([0-9][0-9,]{0,15}(?:\.[0-9]{1,12})?(?:[eE][-+]?[0-9]{1,3})?)"
COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a log tells of a run.

    Attributes
    ----------
    step_time_s
        The median of the steps that count.
    steps
        How many these are.
    peak_bytes
        Of a device, if the log tells it.
    """

    step_time_s: float
    steps: int
    peak_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """How one framework writes a step: a pattern, and from its number to seconds."""

    pattern: re.Pattern[str]
    seconds: Callable[[float, Plan], float]
    peak_gib: re.Pattern[str] | None = None


def _per_sample(rate: float, plan: Plan) -> float:
    return plan.global_batch_size / rate


def _per_device_token(rate: float, plan: Plan) -> float:
    return plan.global_batch_size * plan.sequence_length / (rate * plan.num_devices)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("NUMBER", NUMBER))


FORMATS: Final[dict[str, tuple[Format, ...]]] = {
    "megatron": (Format(_pattern(r"elapsed time per iteration \(ms\): NUMBER"), lambda ms, _: ms_to_s(ms)),),
    "deepspeed": (
        Format(_pattern(r"iter time \(s\): NUMBER"), lambda seconds, _: seconds),
        Format(_pattern(r"CurrSamplesPerSec=NUMBER"), _per_sample, _pattern(r"MaxMemAllocated=NUMBER ?GB")),
    ),
    "torchtitan": (
        Format(_pattern(r"\btps: NUMBER"), _per_device_token, _pattern(r"memory: {0,4}NUMBERGiB")),
    ),
    "trainer": (
        Format(_pattern(r"['\"]train_steps_per_second['\"]: ['\"]?NUMBER"), lambda rate, _: 1.0 / rate),
    ),
}


def read_log(text: str, plan: Plan, name: str | None, where: str) -> Measured:
    """Return what a framework's log tells of a plan's run.

    Parameters
    ----------
    name
        One of :data:`FORMATS`; None: the first whose lines the text has.

    Raises
    ------
    MeshwrightError
        If no line is of the format.
    """
    plain = COLOUR.sub("", text)
    for own in [FORMATS[name]] if name else FORMATS.values():
        for form in own:
            times = _times(form, plain, plan)
            if times:
                counted = steady(times)
                return Measured(median(counted), len(counted), _peak(form, plain))
    wanted = name or ", ".join(FORMATS)
    raise MeshwrightError(
        f"{where}: no line tells a step's time as {wanted} does; give --format or another log"
    )


def _times(form: Format, text: str, plan: Plan) -> list[float]:
    rates = (float(found.replace(",", "")) for found in form.pattern.findall(text))
    return [form.seconds(rate, plan) for rate in rates if rate > 0 and isfinite(rate)]


def _peak(form: Format, text: str) -> float | None:
    found = form.peak_gib.findall(text) if form.peak_gib else []
    # A CPU's memory is told as 0.
    largest = max((float(gib.replace(",", "")) for gib in found), default=0.0)
    return gib_to_bytes(largest) if largest > 0 else None


def steady(times: Sequence[float]) -> Sequence[float]:
    """Return the times without those of the first steps."""
    return times[ceil(WARM_UP * len(times)) :] if len(times) > 1 else times
