"""Pages on hand-made answers: what is said, at 80 columns, and that nothing steers the terminal."""

import io
import unicodedata
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from rich.console import Console

from meshwright.cli import render
from meshwright.cli.plan_page import layout, mesh
from meshwright.hardware.catalogue import load_cluster
from meshwright.planner.headroom import Headroom
from meshwright.planner.lighter import Lighter
from meshwright.planner.result import Estimate, Result
from meshwright.planner.schedule_prices import SchedulePrice
from meshwright.planner.uncertainty import Uncertainty
from tests.cli import examples


def page(answer: Result | Estimate, width: int = 80, **more: Any) -> str:
    """Return a page as it is piped."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    console = Console(file=file, width=width, markup=False, highlight=False, emoji=False)
    make = render.result_page if isinstance(answer, Result) else render.estimate_page
    render.show(console, make(answer, examples.cluster(), width, **more))  # type: ignore[arg-type]
    file.seek(0)
    return file.read()


def section(text: str, title: str) -> str:
    """Return what stands below a heading, with single blanks."""
    below = text.split(f"\n{title}\n", 1)[1]
    return " ".join(below.split())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize(
    "answer",
    [
        examples.result(),
        examples.infeasible(),
        examples.unknown(),
        examples.estimate(8, activations_gib=tuple(range(20, 12, -1))),
    ],
    ids=["result", "infeasible", "unknown", "estimate"],
)
def test_no_line_is_wider_than_the_page_and_none_ends_in_blanks(
    answer: Result | Estimate, width: int
) -> None:
    lines = page(answer, width).splitlines()
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []
    assert "…" not in "".join(lines)


def test_pages_when_piped_have_no_colours() -> None:
    assert "\x1b" not in page(examples.result())


def test_result_says_what_was_found_and_proves_it() -> None:
    text = page(examples.result())
    assert text.startswith("OPTIMAL  10.000 s a step, 41.0 % MFU, 26,214 tokens/s\n")
    proof = section(text, "Proof")
    assert "no plan in 1,234 meshes is faster than 10.000 s; bound 9.999 s, gap 0.01 %" in proof
    assert "1,000 by 'cannot fit' and 200 by 'cannot win'" in proof
    assert "34 meshes solved with 1 lazy cut in 1.500 s" in proof
    assert "the same input gives the same plan" in proof
    assert "not searched unless pinned: the schedule gpipe; etp of 3" in proof
    assert "16.00 GiB are left" in section(text, "What binds")
    assert "tp2 pp4 dp2 mb2 z1 11.000 s 10.0 % 60.00 a longer bubble" in section(
        text, "Alternatives (≤ where the best of a mesh is not proven)"
    )
    notes = section(text, "Notes")
    assert notes == "• found fast • the price is of a made-up machine"


def test_the_spread_of_measured_runs_stands_below_the_step_time() -> None:
    known = Uncertainty(0.093, 0.21, 42, "megatron-core on h100-sxm, dense", extrapolated=False)
    told = "10.000 s ± 9% (two of three of 42 runs: megatron-core on h100-sxm, dense)"
    best = replace(examples.estimate(), uncertainty=known)
    for answer in (best, replace(examples.result(), estimate=best)):
        assert page(answer, 100).splitlines()[1] == told
    beyond = replace(best, uncertainty=replace(known, extrapolated=True))
    assert "10.000 s extrapolated: no measured run on this accelerator; ± 9%" in page(beyond, 120)


def test_the_headroom_says_where_it_comes_from() -> None:
    room = Headroom(0.05, "0.95 of 76 measured peaks (reserved memory) stay within 5.0%", 0.05)
    text = " ".join(page(replace(examples.estimate(), headroom=room)).split())
    assert "headroom 5.0 %: 0.95 of 76 measured peaks (reserved memory) stay within 5.0%" in text


def test_plan_is_told_in_words() -> None:
    text = " ".join(page(examples.result()).split())
    assert "tp 2 × pp 2 × dp 4 = 16 devices" in text
    assert "tp 2 and dp 4 inside a node (nvlink), pp 2 across nodes" in text
    assert "64 sequences of 4,096 tokens = 8 micro-batches × 2 × dp 4 (262,144 tokens)" in text
    assert "ZeRO stage 1, sequence parallel on" in text
    assert "0 embedding and 8 layers full on 1 60.00" in text
    assert "1 8 layers and head full on 1 59.00" in text


def test_equal_stages_share_a_row_and_show_the_range_of_their_peaks() -> None:
    text = " ".join(page(examples.estimate(8)).split())
    assert "1–6 2 layers full on 1 54.00–59.00" in text


def test_chunks_of_a_rank_are_told_apart() -> None:
    best = examples.estimate()
    virtual = replace(best, plan=examples.plan(2, vpp=4), hidden={})
    text = " ".join(page(virtual).split())
    assert "interleaved, 4 chunks on each rank" in text
    assert "0 embedding and 4 × 2 layers full on 4" in text
    uneven = [
        replace(c, stop=c.stop + (i == 0), start=c.start + (i == 1))
        for i, c in enumerate(virtual.plan.chunks)
    ]
    text = " ".join(page(replace(virtual, plan=replace(virtual.plan, chunks=tuple(uneven)))).split())
    assert "0 embedding and 9 layers (3 + 2 + 2 + 2)" in text
    assert "1 7 layers (1 + 2 + 2 + 2) and head" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("modes", "says"),
    [
        (["none"] * 16, "8 layers and head none"),
        (["full"] * 16, "8 layers and head full, every layer"),
        (["none"] * 8 + ["full", "selective", "selective", *["none"] * 5], "full on 1 and selective on 2"),
    ],
)
def test_recomputation_is_counted_by_mode(modes: list[str], says: str) -> None:
    best = examples.estimate()
    changed = replace(best, plan=replace(best.plan, recompute=("none", *modes, "none")))
    assert says in " ".join(page(changed).split())


def test_a_head_alone_on_the_last_stage_is_a_head() -> None:
    best = examples.estimate()
    first, last = best.plan.chunks
    moved = replace(best.plan, chunks=(replace(first, stop=17), replace(last, start=17)))
    assert "1 head none 59.00" in " ".join(page(replace(best, plan=moved)).split())


def test_layout_says_which_groups_leave_the_node() -> None:
    plan = examples.plan()
    assert layout(replace(plan, tp=1, pp=1, dp=1), examples.cluster()) == "one device"
    wide = replace(plan, tp=4, pp=1, dp=4)
    assert layout(wide, load_cluster("dgx-h100:2")).startswith(
        "tp 4 inside a node (nvlink), dp 4 inside and across"
    )


def test_idle_devices_are_named() -> None:
    best = examples.estimate()
    fewer = replace(best, plan=replace(best.plan, dp=2))
    assert "dgx-h100:2, 16 devices, 8 idle" in page(fewer)


def test_breakdown_adds_up_and_leaves_out_what_costs_nothing() -> None:
    text = section(page(examples.estimate()), "Where the time goes")
    assert "forward 3.000 s 30.0 %" in text
    assert "step 10.000 s 100.0 %" in text
    assert "pipeline transfer" not in text
    assert "hidden gradient reduction 250.00 ms behind compute, not part of the step" in text


def test_memory_is_told_item_by_item_with_what_is_left() -> None:
    text = section(page(examples.estimate()), "Memory of a device, GiB")
    assert "Item stage 0 stage 1" in text
    assert "weights 40.00 40.00 activations 20.00 19.00 peak 60.00 59.00 left 16.00 17.00" in text
    assert "buckets" not in text
    assert "usable 76.00 of 80.00 GiB after headroom" in text


def test_too_many_stages_show_first_fullest_and_last() -> None:
    kept = (20.0, 30.0, 25.0, 25.0, 12.0, 11.0, 10.0, 9.0)
    text = section(page(examples.estimate(8, activations_gib=kept)), "Memory of a device, GiB")
    assert "Item stage 0 stage 1 stage 7" in text
    wide = section(page(examples.estimate(8, activations_gib=kept), 120), "Memory of a device, GiB")
    assert "Item stage 0 stage 1 stage 2–3 stage 4 stage 5 stage 6 stage 7" in wide


def test_what_does_not_fit_says_where_and_by_how_much() -> None:
    text = page(examples.estimate(4, activations_gib=(41.0, 38.0, 2.0, 37.0)))
    assert text.startswith("DOES NOT FIT  10.000 s a step")
    assert "too much  stages 0–1 and 3, by 5.00 GiB at most" in text
    assert "too much  stage 0, by 5.00 GiB" in page(examples.estimate(2, activations_gib=(41.0, 2.0)))
    assert page(examples.estimate()).startswith("FITS  ")


def test_what_would_make_a_plan_fit_is_a_table_or_said_to_be_nothing() -> None:
    title, short = "What would make it fit, all else equal", examples.estimate(2, activations_gib=(41.0, 2.0))
    found = [Lighter({"recompute": "full", "micro_batch_size": 1}, examples.estimate())]
    assert "recompute full and micro_batch_size 1 10.000 s 60.00" in section(
        page(short, lighter=found), title
    )
    assert section(page(short, lighter=[]), title).startswith("• no change of one or two decisions")
    assert title not in page(short)


def test_bill_shows_what_is_priced() -> None:
    best = examples.estimate()
    whole = section(page(replace(best, total_hours=200.0, total_usd=11000.0)), "Bill")
    assert "$55.00 an hour, $0.153 a step whole run 200 h (8.3 days), $11,000" in whole
    unpriced = replace(best, usd_per_hour=None, usd_per_step=None, notes=())
    assert "Bill" not in page(unpriced)
    assert section(page(replace(unpriced, total_hours=2.0)), "Bill") == "whole run 2.0 h"


def test_infeasible_names_the_limit_and_what_lifts_it() -> None:
    text = page(examples.infeasible())
    assert text.startswith("INFEASIBLE  nothing fits; searched for 500.00 ms\n")
    why = section(text, "Why nothing fits")
    assert "needs 81.00 GiB on stage 0, usable are 76.00" in why
    assert "missing 5.00 GiB on the fullest device" in why
    assert "closest tp2 pp2 dp4 mb2 z1: 81.00 of 76.00 GiB" in why
    assert "• --precision pure-bf16 • 24 devices" in section(text, "What would lift it")
    assert "no plan keeps every rule" in text


def test_unknown_does_not_claim_that_there_is_none() -> None:
    text = page(examples.unknown())
    assert text.startswith("UNKNOWN  no plan found within the limit; searched for 1.000 s\n")
    assert "a plan may exist" in text


def test_feasible_says_what_may_remain_and_that_the_clock_decided() -> None:
    whole = examples.result()
    assert whole.record is not None
    record = replace(whole.record, reproducible=False, discarded={})
    text = " ".join(page(replace(whole, status="FEASIBLE", lower_bound_s=9.0, record=record)).split())
    assert "no plan in 1,234 meshes can beat 9.000 s, so at most 10.00 % remains to be gained" in text
    assert "not reproducible" in text
    assert "set aside" not in text


def test_meshes_set_aside_are_told_apart_from_those_that_no_count_holds() -> None:
    whole = examples.result()
    assert whole.record is not None
    discarded = {"placement laid alike": 5_000, "memory floor": 34}
    told = " ".join(page(replace(whole, record=replace(whole.record, discarded=discarded))).split())
    assert "of these set aside without solving: 34 by 'memory floor'" in told
    assert "not among these: 5,000 by 'placement laid alike'" in told


def test_feasible_without_a_clock_says_what_ended_the_search() -> None:
    whole, told = examples.result(), "the work that a mesh is given ended it, not the clock"
    assert whole.record is not None
    late = replace(whole.record, reproducible=False)
    unproven = replace(whole, status="FEASIBLE", lower_bound_s=9.0)
    assert told in " ".join(page(unproven).split())
    assert told not in " ".join(page(replace(unproven, record=late)).split())
    assert told not in " ".join(page(whole).split())


def test_unproven_gap_is_a_limit() -> None:
    whole = examples.result()
    other = replace(whole.alternatives[0], proven=False)
    assert "≤ 10.0 %" in page(replace(whole, alternatives=(other,)))


def test_mesh_names_virtual_stages_only_where_there_are_some() -> None:
    assert mesh(examples.plan()) == "tp2 pp2 dp4 mb2 z1"
    assert mesh(examples.plan(vpp=4)) == "tp2 pp2 vpp4 dp4 mb2 z1"


def test_foreign_names_are_shown_as_they_are_and_cannot_steer_the_terminal() -> None:
    text = page(examples.estimate(model="[bold red]x[/]\x1b[2J:smile:"))
    assert "[bold red]x[/]\N{REPLACEMENT CHARACTER}[2J:smile:" in text
    assert not any(unicodedata.category(c) == "Cc" and c != "\n" for c in text)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_plain_signs(encoding: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=80, markup=False)
    render.show(console, render.result_page(examples.result(), examples.cluster(), 80))
    file.seek(0)
    text = file.read()
    assert "tp 2 x pp 2 x dp 4 = 16 devices" in text
    assert "####" in text


def test_infinite_bound_is_not_shown_as_a_time() -> None:
    assert str(inf) not in page(examples.infeasible())


def test_schedules_tell_what_they_cost_and_whether_they_fit() -> None:
    best = examples.result().objective_s or 1.0
    found = [SchedulePrice("zb1p", 0.95 * best, True), SchedulePrice("zb2p", 1.1 * best, False)]
    told = section(page(examples.result(), schedules=found), "Schedules, all else equal")
    assert "zb1p" in told
    assert "-5.0 % fits zb2p" in told
    assert "10.0 % too much" in told
    assert "Schedules" not in page(examples.result(), schedules=found[:1])
