"""Cases as data: grids that reach every kind early, and files of samples that nobody has to trust."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.cases import (
    CPU,
    GPU,
    KINDS,
    Beside,
    Case,
    Core,
    Exchange,
    Host,
    Product,
    Sample,
    Stream,
    Tokens,
    Unit,
    Update,
    grid,
)
from meshwright.planner.calibrate.plausible import plausible_s
from meshwright.planner.calibrate.samples import from_lines, to_lines

COUNTS = st.integers(1, 10_000)
CASES = st.one_of(
    st.builds(Product, st.sampled_from(["fp32", "bf16"]), COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(Core, st.just("bf16"), COUNTS, COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(Stream, st.just("fp32"), COUNTS),
    st.builds(Exchange, st.sampled_from(["all_reduce", "send_recv"]), COUNTS, COUNTS, COUNTS),
    st.builds(Host, st.sampled_from(["operator", "forward"])),
)


def between(case: Case) -> st.SearchStrategy[Sample]:
    least, most = plausible_s(case)
    return st.builds(Sample, st.just(case), st.floats(least, most))


@given(st.lists(CASES.flatmap(between)))
def test_samples_come_back_as_they_were_written(samples):
    assert from_lines(to_lines(samples), "file") == samples


@given(CASES)
def test_no_machine_is_faster_than_the_fastest_or_slower_than_the_slowest(case):
    least, most = plausible_s(case)
    assert 1e-9 <= least < most <= 1e4
    for seconds in (0.5 * least, 2 * most, 9999.0 if isinstance(case, Host) else 1e5):
        with pytest.raises(MeshwrightError, match="line 1: seconds is"):
            from_lines(to_lines([Sample(case, seconds)]), "file")


@pytest.mark.parametrize("scale", [CPU, GPU])
def test_what_machines_take_for_the_grid_is_far_inside(scale):
    """A second a case is slow for the smallest, and fast for the largest on a processor."""
    for case in grid(scale, ("bf16",), 8, 4, graphs=True):
        least, most = plausible_s(case)
        assert least <= 1e-4
        assert most >= 1.0


@pytest.mark.parametrize("ranks", [(1, 1), (4, 1), (1, 2), (8, 4)])
@pytest.mark.parametrize("scale", [CPU, GPU])
def test_a_grid_has_each_kind_among_its_first_cases(scale, ranks):
    cases = grid(scale, ("bf16", "fp32"), *ranks, graphs=True)
    alone = ranks == (1, 1)
    kinds = {Host, Product, Core, Stream, Update} | (set() if alone else {Exchange, Unit, Beside})
    kinds |= {Tokens} if ranks[0] > 1 else set()
    assert {type(case) for case in cases[: len(kinds)]} == kinds
    assert len(set(cases)) == len(cases)


def test_collectives_are_measured_within_a_host_and_between_hosts():
    cases = [c for c in grid(CPU, ("fp32",), 4, 2, graphs=False) if isinstance(c, Exchange)]
    assert {(c.inside, c.across) for c in cases} == {(4, 1), (4, 2)}
    assert {c.collective for c in cases if c.across == 1} == {c.collective for c in cases if c.across == 2}


def test_every_kind_of_case_can_be_written():
    assert set(KINDS.values()) == set(get_args(Case))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("nothing", "no JSON"),
        ("[" * 5000, "no JSON"),
        ("[]", "kind"),
        ('{"kind": "host", "what": "launch", "seconds": 1, "seconds": 2}', "'seconds' is given twice"),
        ({"kind": "rumour", "seconds": 1}, "kind"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4}, "seconds"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4, "seconds": -1}, "seconds"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4, "seconds": float("nan")}, "seconds"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4, "seconds": 10**400}, "seconds"),
        ({"kind": "stream", "dtype": "fp32", "elements": float("inf"), "seconds": 1}, "elements"),
        ({"kind": [], "seconds": 1}, "kind"),
        ({"kind": "stream", "dtype": "fp32", "seconds": 1}, "elements"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4, "seconds": 1, "more": 1}, "more"),
        ({"kind": "stream", "dtype": "fp32", "elements": 4.5, "seconds": 1}, "elements"),
        ({"kind": "stream", "dtype": 3, "elements": 4, "seconds": 1}, "dtype"),
        (
            {"kind": "stream", "dtype": "fp99", "elements": 4, "seconds": 1},
            "dtype is .fp99.; one of fp32",
        ),
        ({"kind": "host", "what": "all", "seconds": 1}, "what"),
        ({"kind": "host", "what": "forward", "seconds": 9999}, "seconds is 9999; a number from 1e-09 to 30"),
        (
            {"kind": "exchange", "collective": "all_reduce", "tensor_bytes": 4, "inside": 10**9, "across": 1},
            "inside is 1000000000; a whole number from 1 to 10,000",
        ),
    ],
)
def test_a_wrong_line_is_told_by_number_and_field(row, told):
    good = to_lines([Sample(Stream("fp32", 4), 1.0)])
    line = row if isinstance(row, str) else json.dumps(row)
    with pytest.raises(MeshwrightError, match=rf"file: line 2.*{told}"):
        from_lines(good + line + "\n", "file")
