"""Files that others wrote are read whole: a wrong value is told, a line without a row has a reason."""

import json
from dataclasses import replace
from pathlib import Path
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
