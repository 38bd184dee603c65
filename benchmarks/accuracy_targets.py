"""What the predictions should reach: each target beside the figure reached, and the best known elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy_groups import (
    Sweep,
    errors_of,
    kind_of,
    mean_over_families,
    packed,
    ranking,
    sweeps,
)
from benchmarks.accuracy_memory import fit_confusion, memory_errors
from benchmarks.accuracy_stats import mean, summary
from benchmarks.measured_prices import Priced

Runs = Sequence[Priced]


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach.

    Attributes
    ----------
    what
        In words.
    limit
        Errors must not exceed it, agreements (``at_least``) not fall below it.
    figure
        The figure of priced rows; None where no row tells.
    elsewhere
        Best published figure, in words.
    percent
        Whether the figure is a share, to be shown in percent.
    """

    what: str
    limit: float
    figure: Callable[[Runs], float | None]
    at_least: bool = False
    elsewhere: str = ""
    percent: bool = True

    def met(self, reached: float | None) -> bool | None:
        """Return whether a figure meets the target; None without a figure."""
        if reached is None:
            return None
        return reached >= self.limit if self.at_least else reached <= self.limit


def _kind(name: str, runs: Runs) -> list[Priced]:
    return [p for p in runs if kind_of(p.row) == name]


def _from(word: str, runs: Runs) -> list[Priced]:
    return [p for p in runs if word in p.row.source.lower()]


def _families_mean(kind: str) -> Callable[[Runs], float | None]:
    return lambda runs: mean_over_families(_kind(kind, runs))[0]


def _of(figure: str, pick: Callable[[Runs], Runs]) -> Callable[[Runs], float | None]:
    """Return a figure of the step times' errors of some rows."""

    def reached(runs: Runs) -> float | None:
        """Return the figure of the picked runs."""
        got = summary(errors_of(pick(runs)))
        return None if got is None else float(getattr(got, figure))

    return reached


def _rank(which: int, pick: Callable[[Sweep], bool], apart: bool = False) -> Callable[[Runs], float | None]:
    """Return the mean over families of the mean over sweeps: tau (0) or regret (1)."""

    def reached(runs: Runs) -> float | None:
        """Return the mean over families of their sweeps."""
        families: dict[str, list[float]] = {}
        for sweep in sweeps(runs, apart):
            figure = ranking(sweep)[which]
            if figure is not None and pick(sweep):
                families.setdefault(sweep[0].family, []).append(figure)
        return mean(v for figures in families.values() if (v := mean(figures)) is not None)

    return reached


def _memory(mode: str) -> Callable[[Runs], float | None]:
    return lambda runs: mean(map(abs, memory_errors(runs, mode)))


def _b200_memory(runs: Runs) -> float | None:
    return mean(map(abs, memory_errors(_from("simumax v1.2 b200", runs), "full")))


def _priced(runs: Runs) -> float | None:
    return mean(float(p.reason is None) for p in runs if p.row.trusted)


def _family(name: str) -> Callable[[Runs], list[Priced]]:
    return lambda runs: [p for p in runs if p.row.family == name]


def _small(runs: Runs) -> list[Priced]:
    return _family("vtrain")(runs)


def _table5(runs: Runs) -> list[Priced]:
    return _from("tables 3+5", runs)


def _packed(runs: Runs) -> list[Priced]:
    return [p for p in _kind("tuned", runs) if packed(p.row)]


def _is_small(sweep: Sweep) -> bool:
    return sweep[0].family == "vtrain"


def _is_not_small(sweep: Sweep) -> bool:
    return not _is_small(sweep)


TARGETS: Final = (
    Target("rows of trust A and B that are priced", 0.98, _priced, at_least=True),
    Target(
        "step time, dense full training: mean over families",
        0.05,
        _families_mean("dense"),
        elsewhere="Calculon 3.65 % on 8 runs; learned models 5-9 % on their own cluster",
    ),
    Target(
        "step time, dense full training: median row", 0.04, _of("median", lambda runs: _kind("dense", runs))
    ),
    Target("step time, mixture of experts: mean over families", 0.08, _families_mean("moe")),
    Target("step time, fine-tuning of adapters, full sequences", 0.15, _of("mape", _packed)),
    Target("Korthikanti Table 5: mean", 0.03, _of("mape", _table5), elsewhere="Calculon 3.65 %"),
    Target("Korthikanti Table 5: maximum", 0.06, _of("maximum", _table5), elsewhere="Calculon 8.87 %"),
    Target(
        "vTrain single node: mean",
        0.10,
        _of("mape", _small),
        elsewhere="Calculon 38.9 %; vTrain, profiled on the same GPU, 8.4 %",
    ),
    Target("vTrain single node: regret", 0.04, _rank(1, _is_small), elsewhere="Calculon 9.99 %"),
    Target(
        "vTrain single node: tau",
        0.7,
        _rank(0, _is_small),
        at_least=True,
        elsewhere="Calculon 0.48",
        percent=False,
    ),
    Target(
        "SimuMax B200: step time",
        0.04,
        _of("mape", lambda runs: _from("simumax v1.2 b200", runs)),
        elsewhere="SimuMax, profiled on that machine, 5.6 %",
    ),
    Target(
        "SimuMax B200: peak memory", 0.02, _b200_memory, elsewhere="SimuMax, profiled on that machine, 0.46 %"
    ),
    Target(
        "sweeps, mean over families other than vTrain: tau",
        0.85,
        _rank(0, _is_not_small),
        at_least=True,
        percent=False,
    ),
    Target("sweeps, mean over families other than vTrain: regret", 0.01, _rank(1, _is_not_small)),
    Target(
        "the same, runs of one layout counted one by one: tau",
        0.85,
        _rank(0, _is_not_small, apart=True),
        at_least=True,
        percent=False,
    ),
    Target(
        "the same, runs of one layout counted one by one: regret", 0.01, _rank(1, _is_not_small, apart=True)
    ),
    Target("peak memory by a stated counter, full training", 0.08, _memory("full")),
    Target("peak memory by a stated counter, adapters", 0.12, _memory("tuned")),
    Target(
        "Hagemann: runs out of memory called fits",
        0.02,
        lambda runs: fit_confusion(_family("hagemann")(runs)).missed,
    ),
    Target(
        "Hagemann: fitting runs called out of memory",
        0.05,
        lambda runs: fit_confusion(_family("hagemann")(runs)).refused,
    ),
)
"""The named tables are published validation sets, whose errors under other predictors are known."""
LEFT_OUT: Final = Target(
    "dense, each family left out of the fit: mean over families", 0.10, _families_mean("dense")
)
"""For prices with constants fitted without the row's own family."""
