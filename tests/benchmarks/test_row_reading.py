"""Files that others wrote are read whole: a wrong value is told, a line without a row has a reason."""

import json
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import accuracy
from benchmarks.measured_prices import express, price_rows
from benchmarks.row_model import NotExpressibleError
from benchmarks.row_reading import MisreadRow, read_all, row_of_line
from benchmarks.rows import Row, read_rows
from tests.benchmarks.cases import PLAIN, line

WRITTEN: dict[str, Any] = json.loads(line(PLAIN))
SECONDS = 5.0
"""Far more than any row takes, and far less than a count to its largest number."""
JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just([1])
    | st.just({"a": 1})
)


def read(**changes: Any) -> Row:
    return row_of_line(json.dumps(WRITTEN | changes), "here:1")


def test_a_right_row_is_the_row_of_a_strict_reader(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{line(PLAIN)}\n\n{line(replace(PLAIN, id='b'))}\n", encoding="utf-8")
    assert read_all([file]) == read_rows(file)
    assert read_all([]) == read_rows()


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("tp", "8", 8),
        ("tp", 8.0, 8),
        ("num_gpus", "1,024", 1024),
        ("params_b", "70.6", 70.6),
        ("seq_len", "8k", 8192),
        ("seq_len", "1,024", 1024),
        ("micro_batch", "8k", None),
        ("step_time_s", float("nan"), None),
        ("flash_attention", "yes", True),
        ("recompute", True, "true"),
        ("outcome", "out of memory", "oom"),
        ("outcome", "OK", "ok"),
        ("lora", "a few", None),
        ("trust", "D", None),
        ("seq_len", -1, None),
        ("extra", {"recipe": 3, "kernel": "torch"}, {"kernel": "torch"}),
        ("moe", {"experts": "8", "topk": 2}, {"experts": 8, "topk": 2}),
        ("moe", {"experts": "²", "topk": float("nan")}, {"experts": "²", "topk": None}),
        ("extra", {"n": "9" * 5000}, {"n": "9" * 5000}),
        ("notes", "in " + "9" * 5000 + " steps", "in  steps"),
    ],
)
def test_a_value_in_other_clothes_is_read_and_told(name: str, written: object, value: object) -> None:
    row = read(**{name: written})
    assert getattr(row, name) == value
    assert written == value or (isinstance(row, MisreadRow) and any(name in told for told in row.misread))


def test_what_no_row_has_is_left_out_and_told() -> None:
    row = read(gpus=8)
    assert isinstance(row, MisreadRow)
    assert row.misread == ("'gpus' is not a field: left out",)
    assert express(row).plan == express(PLAIN).plan
    assert row.misread[0] in express(row).assumptions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ('{"id": 1, "id": 2}', "twice"),
        ('{"moe": "8x7B"}', "moe is"),
        (f'{{"moe": {{"experts": 1{"0" * 400}}}}}', "moe: experts is"),
    ],
)
def test_a_line_without_a_row_has_a_reason(text: str, said: str) -> None:
    row = row_of_line(text, "file:7")
    assert row.id == "file:7"
    with pytest.raises(NotExpressibleError, match=said):
        express(row)


@given(st.dictionaries(st.sampled_from(sorted(WRITTEN)), JUNK, max_size=4))
def test_whatever_stands_in_a_row_it_has_a_price_or_a_reason(changes: dict[str, Any]) -> None:
    (priced,) = price_rows([read(**changes)])
    assert (priced.step_time_s is None) == (priced.reason is not None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sharding", "fsdp within 0"),
        ("sharding", "zero-3 in DP 99999999 pods"),
        ("sharding", "DP 0 pods"),
        ("inter_bw_note", "0x 400 Gb/s per node"),
        ("inter_bw_note", "0 Gb/s per GPU"),
        ("accelerator", "V100 0GB"),
        ("accelerator", "H100 " + "9" * 5000 + "GB"),
        ("recompute", "every 0 layers"),
        ("recompute", "9" * 5000 + " %"),
        ("notes", "slices joined by DCN: 0"),
    ],
)
@pytest.mark.parametrize("accelerator", ["tpu-v4", "h100-sxm"])
def test_a_text_may_state_nothing_or_too_much_of_anything(accelerator: str, name: str, text: str) -> None:
    (priced,) = price_rows([read(**{"accelerator": accelerator, name: text})])
    assert (priced.step_time_s is None) == (priced.reason is not None)


@pytest.mark.parametrize("name", ["vpp", "global_batch", "num_gpus", "dp", "seq_len", "micro_batch"])
@pytest.mark.parametrize("left_out", [(), ("micro_batch", "grad_accum"), ("num_gpus",), ("tp", "pp")])
def test_no_count_in_a_row_is_counted_up_to(name: str, left_out: tuple[str, ...]) -> None:
    silent: dict[str, Any] = dict.fromkeys(left_out)
    begin = process_time()
    price_rows([read(**silent | {name: 10**11})])
    assert process_time() - begin < SECONDS


def test_a_kernel_that_nobody_knows_is_what_the_row_says_beside_it() -> None:
    once, twice = price_rows([read(extra={"kernel": "xformers"}), read(extra={})])
    assert once.step_time_s == twice.step_time_s is not None


@pytest.mark.parametrize("name", ["notes", "sharding_as_printed", "recompute", "schedule", "model_name"])
def test_a_text_of_any_length_is_read_in_no_time_and_told_in_short(name: str) -> None:
    begin = process_time()
    row = read(**{name: "zero bubble layer " * 50_000})
    price_rows([row])
    assert process_time() - begin < SECONDS
    assert isinstance(row, MisreadRow)
    assert all(len(told) < 300 for told in row.misread)


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    odd = replace(PLAIN, notes="one\u2028line\x85of\x1ctext")
    values = {name: getattr(odd, name) for name in Row.__slots__}
    text = json.dumps(values, ensure_ascii=False).replace("\\u001c", "\u2029")
    file.write_text(f"{text}\r\n", encoding="utf-8", newline="")
    assert len(read_all([file])) == len(read_rows(file)) == 1


def test_rows_of_one_id_are_priced_each_for_itself() -> None:
    rows = [PLAIN, replace(PLAIN, global_batch=2 * (PLAIN.global_batch or 1))]
    once, twice = (priced.step_time_s or 0.0 for priced in price_rows(rows))
    assert twice > 1.5 * once


def test_the_command_loses_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join([line(PLAIN), "{", json.dumps(WRITTEN | {"tp": "many", "id": "odd"})]))
    accuracy.main([str(file), "--rows", str(out)])
    shown = capsys.readouterr().out
    assert "not priced: 1" in shown
    assert "read otherwise than written: 1" in shown
    found = [json.loads(text) for text in out.read_text().splitlines()]
    assert [row["id"] for row in found] == [PLAIN.id, "rows.jsonl:2", "odd"]
    assert [row["reason"] is None for row in found] == [True, False, True]


@pytest.mark.parametrize("option", ["--rows", "--json"])
def test_what_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line(PLAIN), encoding="utf-8")
    for place in (tmp_path, tmp_path / "no" / "out.json"):
        with pytest.raises(SystemExit, match="2"):
            accuracy.main([str(file), option, str(place)])
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "benchmarks.accuracy: output: " in shown.err
