"""Figures by which predictions are judged mean what they say."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy_stats import confusion, kendall_tau, mean, regret, summary

TIMES = st.lists(st.floats(0.01, 1e3), min_size=2, max_size=12)


def swaps(order: tuple[int, ...]) -> int:
    """Neighbours that a bubble sort exchanges."""
    items, count = list(order), 0
    for _ in items:
        for i in range(len(items) - 1):
            if items[i] > items[i + 1]:
                items[i], items[i + 1] = items[i + 1], items[i]
                count += 1
    return count


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_tau_counts_the_swaps_that_sort_one_ranking_into_the_other(n: int) -> None:
    for order in permutations(range(n)):
        assert kendall_tau(range(n), order) == pytest.approx(1 - 4 * swaps(order) / (n * (n - 1)))


def test_tau_with_ties_is_that_of_a_worked_example() -> None:
    """Six pairs: 4 agree, 1 disagrees, 1 is tied in the second alone: 3 / sqrt(6 x 5)."""
    assert kendall_tau([1, 2, 3, 4], [1, 3, 3, 2.5]) == pytest.approx((3 - 2) / 30**0.5)
    assert kendall_tau([1, 2, 3, 4], [1, 1, 2, 3]) == pytest.approx(5 / 30**0.5)


@given(first=TIMES, data=st.data())
def test_tau_is_symmetric_and_sees_only_order(first: list[float], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(1, 9), min_size=len(first), max_size=len(first)))
    tau = kendall_tau(first, second)
    assert tau == kendall_tau(second, first)
    assert tau == kendall_tau(first, [2**s for s in second])
    turned = kendall_tau(first, [-s for s in second])
    assert turned == (None if tau is None else -tau)
    assert tau is None or -1 - 1e-12 <= tau <= 1 + 1e-12


@given(first=TIMES)
def test_tau_of_a_ranking_with_itself_is_one_and_with_a_constant_is_none(first: list[float]) -> None:
    assert kendall_tau(first, [1.0] * len(first)) is None
    assert kendall_tau(first, first) in (None, pytest.approx(1.0))


def test_rankings_of_different_lengths_have_no_tau() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        kendall_tau([1.0, 2.0], [1.0])


def test_regret_is_what_the_choice_costs() -> None:
    assert regret([2.0, 1.0, 3.0], [5.0, 9.0, 8.0]) == pytest.approx(1.0)
    assert regret([2.0, 1.0, 3.0], [5.0, 5.0, 8.0]) == pytest.approx(0.5)


@given(measured=TIMES, data=st.data())
def test_regret_is_never_negative_and_zero_for_a_perfect_order(
    measured: list[float], data: st.DataObject
) -> None:
    predicted = data.draw(st.lists(st.floats(0.1, 10), min_size=len(measured), max_size=len(measured)))
    assert regret(measured, predicted) >= -1e-12
    assert regret(measured, [3 * m for m in measured]) == pytest.approx(0.0)


def test_a_summary_tells_size_and_direction_apart() -> None:
    got = summary([0.1, -0.3, 0.2, -0.4])
    assert got is not None
    assert (got.count, got.maximum) == (4, 0.4)
    assert (got.mape, got.median, got.bias) == pytest.approx((0.25, 0.25, -0.1))
    assert got.p90 == pytest.approx(0.37)
    assert summary([]) is None
    assert mean([]) is None


@given(errors=st.lists(st.floats(-1, 10), min_size=1))
def test_a_bias_is_never_larger_than_the_mean_error(errors: list[float]) -> None:
    got = summary(errors)
    assert got is not None
    assert abs(got.bias) <= got.mape + 1e-12
    assert got.median <= got.p90 + 1e-12 <= got.maximum + 2e-12


@given(outcomes=st.lists(st.tuples(st.booleans(), st.booleans())))
def test_every_run_is_in_one_cell(outcomes: list[tuple[bool, bool]]) -> None:
    got = confusion(outcomes)
    fitted = sum(fits for fits, _ in outcomes)
    assert got.fit_called_fit + got.fit_called_oom == fitted
    assert got.oom_called_fit + got.oom_called_oom == len(outcomes) - fitted
    assert (got.refused is None) == (fitted == 0)


def test_shares_are_of_what_happened() -> None:
    got = confusion([(True, True)] * 3 + [(True, False)] + [(False, True)] * 2 + [(False, False)] * 8)
    assert (got.missed, got.refused) == (0.2, 0.25)
