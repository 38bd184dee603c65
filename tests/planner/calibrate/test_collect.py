"""Measuring within a budget, with a clock that the test moves."""

from meshwright.planner.calibrate.cases import Sample, Stream
from meshwright.planner.calibrate.collect import ROUNDS, Collected, collect, merged

CASES = tuple(Stream("fp32", n) for n in (1, 2, 3))


class Machine:
    """Takes one second a timing, whatever it says of it."""

    def __init__(self, says):
        self.now, self.order, self.says = 0.0, [], says

    def __call__(self, case):
        self.now += 1.0
        self.order.append(case)
        return self.says(case, self.order.count(case))

    def clock(self):
        return self.now


def run(says, budget_s):
    machine = Machine(says)
    return machine, collect(CASES, machine, budget_s, machine.clock)


def test_rounds_go_over_all_cases_until_the_time_is_up():
    machine, _ = run(lambda case, turn: 1.0, budget_s=4.5)
    assert machine.order == [*CASES, *CASES[:2]]


def test_the_median_of_a_case_s_timings_counts():
    _, got = run(lambda case, turn: 100.0 if turn == 2 else float(turn), budget_s=8.5)
    assert got.samples == tuple(Sample(case, 3.0) for case in CASES)  # of 1, 100 and 3


def test_what_the_budget_does_not_reach_is_left_out_and_told():
    _, got = run(lambda case, turn: 1.0, budget_s=0.5)
    assert got == Collected((Sample(CASES[0], 1.0),), CASES[1:])


def test_a_case_that_the_machine_cannot_run_is_tried_once():
    machine, got = run(lambda case, turn: None if case == CASES[1] else 1.0, budget_s=1e6)
    assert machine.order.count(CASES[1]) == 1
    assert machine.order.count(CASES[0]) == ROUNDS
    assert {s.case for s in got.samples} == {CASES[0], CASES[2]}
    assert got.left_out == ()


def test_runs_are_merged_case_by_case():
    first, second = [Sample(CASES[0], 1.0), Sample(CASES[1], 5.0)], [Sample(CASES[0], 3.0)]
    assert merged([first, second]) == (Sample(CASES[0], 2.0), Sample(CASES[1], 5.0))
