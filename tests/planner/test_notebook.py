"""Answers at a Python prompt and in a notebook: the figures are there, foreign names are escaped."""

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from meshwright.planner.headroom import Headroom
from meshwright.planner.notebook import estimate_html, estimate_text, result_html, result_text
from meshwright.planner.uncertainty import Uncertainty
from tests.cli import examples


class Balanced(HTMLParser):
    """Checks that every tag that opens closes in order, and gathers the text of the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Open a tag."""
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the last one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text of a cell."""
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def read(fragment: str) -> list[str]:
    """Return the cells of a fragment that is well formed."""
    parser = Balanced()
    parser.feed(fragment)
    parser.close()
    assert parser.open == []
    return parser.cells


def test_result_text_has_the_proof_and_the_plan() -> None:
    lines = result_text(examples.result()).splitlines()
    assert lines[0] == "OPTIMAL: 10.000 s a step, bound 9.999 s (gap 0.01%), found in 1.500 s"
    assert lines[1] == "10.000 s a step, 41.0% MFU, 26,214 tokens/s"
    assert lines[2] == "tp 2, pp 2, vpp 1, dp 4, micro-batch 2, ZeRO 1"
    assert lines[3] == "memory 60.00 of 76.00 GiB: fits"
    assert lines[4] == "time: forward 30.0%, backward 60.0%, bubble 9.0%, optimizer 1.0%"


def test_text_has_the_spread_and_the_origin_of_the_headroom() -> None:
    spread = Uncertainty(0.093, 0.21, 42, "fsdp2, dense", extrapolated=False)
    told = estimate_text(
        replace(examples.estimate(), uncertainty=spread, headroom=Headroom(0.05, "as given"))
    )
    assert "step time ± 9% (two of three of 42 runs: fsdp2, dense)" in told.splitlines()
    assert "headroom 5.0%: as given" in told.splitlines()


def test_text_of_what_does_not_fit_says_so() -> None:
    assert "81.00 of 76.00 GiB: does not fit" in estimate_text(examples.estimate(activations_gib=(41.0, 2.0)))


def test_infeasible_says_why_and_what_to_try() -> None:
    assert result_text(examples.infeasible()).splitlines() == [
        "INFEASIBLE after 500.00 ms",
        "needs 81.00 GiB on stage 0, usable are 76.00",
        "try: --precision pure-bf16",
        "try: 24 devices",
    ]
    assert read(result_html(examples.infeasible())) == []


def test_html_tells_time_memory_and_alternatives() -> None:
    cells = read(result_html(examples.result()))
    assert cells[:6] == ["cause", "s", "share", "forward", "3", "30.0%"]
    stage_0 = cells.index("40.00") - 1
    assert cells[stage_0 : stage_0 + 5] == ["0", "40.00", "20.00", "0.00", "60.00"]
    assert cells[-4:] == ["tp 2, pp 4, vpp 1, dp 2, micro-batch 2, ZeRO 1", "11", "10.0%", "a longer bubble"]


def test_html_escapes_foreign_names() -> None:
    foreign = examples.estimate(model="<script>alert(1)</script>")
    for fragment in (estimate_html(foreign), result_html(replace(examples.result(), estimate=foreign))):
        read(fragment)
        assert "<script" not in fragment
        assert "&lt;script&gt;" in fragment


def test_unknown_has_a_text_and_a_fragment() -> None:
    assert result_text(examples.unknown()) == "UNKNOWN after 1.000 s"
    assert result_html(examples.unknown()) == "<p>UNKNOWN after 1.000 s</p>"
