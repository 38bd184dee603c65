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
    from_lines,
    grid,
    to_lines,
)

COUNTS = st.integers(1, 10_000)
CASES = st.one_of(
    st.builds(Product, st.sampled_from(["fp32", "bf16"]), COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(Core, st.just("bf16"), COUNTS, COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(Stream, st.just("fp32"), COUNTS),
    st.builds(Exchange, st.sampled_from(["all_reduce", "send_recv"]), COUNTS, COUNTS, COUNTS),
    st.builds(Host, st.sampled_from(["operator", "forward"])),
)


@given(st.lists(st.builds(Sample, CASES, st.floats(1e-9, 1e3))))
def test_samples_come_back_as_they_were_written(samples):
    assert from_lines(to_lines(samples), "file") == samples


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
    ],
)
def test_a_wrong_line_is_told_by_number_and_field(row, told):
    good = to_lines([Sample(Stream("fp32", 4), 1.0)])
    line = row if isinstance(row, str) else json.dumps(row)
    with pytest.raises(MeshwrightError, match=rf"file: line 2.*{told}"):
        from_lines(good + line + "\n", "file")
