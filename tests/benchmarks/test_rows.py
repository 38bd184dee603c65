"""Rows of published runs are read whole, and what is wrong with one is told by name."""

import lzma
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest

from benchmarks import rows
from benchmarks.row_fields import CHOICES
from benchmarks.rows import BUILT_IN, Row, RowError, read_rows, row_from, text_of
from meshwright.costmodels.arrays import FloatArray
from tests.benchmarks.cases import PLAIN, ROWS, line


def test_the_data_holds_what_its_page_says() -> None:
    rows = ROWS.values()
    assert len(rows) == 2941
    assert sum(r.outcome == "oom" for r in rows) == 523
    assert sum(r.peak_memory_gib is not None for r in rows) == 342
    assert all(r.source and r.ref for r in rows)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 8}, "'gpus' is not a field"),
        ({"tp": 0}, "tp is 0"),
        ({"tp": True}, "tp is True"),
        ({"step_time_s": -1.0}, "step_time_s is -1.0"),
        ({"outcome": "crash"}, "outcome is 'crash'; allowed: ok, oom"),
        ({"ref": None}, "ref is None"),
        ({"moe": "8x7B"}, "moe is '8x7B'; allowed: object or null"),
        ({"extra": [1]}, "extra is [1]; allowed: object or null"),
        ({"accelerator": ["x"]}, "accelerator is ['x']; allowed: text or null"),
        ({"precision": 5}, "precision is 5; allowed: text or null"),
        ({"year": "2024"}, "year is '2024'; allowed: positive integer or null"),
        ({"layers": 24.5}, "layers is 24.5; allowed: positive integer or null"),
        ({"params_b": float("nan")}, "params_b is nan; allowed: positive number or null"),
        ({"tp": 10**12}, "tp is 1000000000000; allowed: positive integer or null (below 1,000,000,000,000)"),
        ({"notes": None}, "notes is None; allowed: text"),
        ({"flash_attention": "yes"}, "flash_attention is 'yes'; allowed: true or false or null"),
        ({"flash_attention": 1}, "flash_attention is 1; allowed: true or false"),
        ({"recompute": {}}, "recompute is {}; allowed: text or null"),
        ({"trust": "D"}, "trust is 'D'; allowed: A, B, C"),
        ({"extra": {"recipe": 3}}, "extra: recipe is 3; allowed: text"),
        ({"extra": {"recompute_modules": [1]}}, "extra: recompute_modules is [1]; allowed: list of texts"),
        ({"extra": {"cpu_offloading_num_layers": "2"}}, "extra: cpu_offloading_num_layers is '2'"),
    ],
)
def test_a_wrong_row_is_refused_by_name(change: dict[str, object], said: str) -> None:
    values = {"id": "a", "family": "f", "source": "s", "ref": "r", "model_name": "m"}
    with pytest.raises(RowError) as caught:
        row_from(values | {"framework": "x", "outcome": "ok"} | change, "here")
    assert said in str(caught.value)


@pytest.mark.parametrize("field", fields(Row), ids=lambda field: field.name)
@pytest.mark.parametrize("value", [[3], True, "?", -1, 2.5, {"a": 1}], ids=repr)
def test_a_field_holds_what_its_type_says_or_is_refused(field: Field[object], value: object) -> None:
    hint = get_type_hints(Row)[field.name]
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) or (hint,))]
    legal = type(value) in kinds or (isinstance(value, dict) and Mapping in kinds)
    values = {"id": "a", "family": "f", "source": "s", "ref": "r", "model_name": "m", "framework": "x"}
    try:
        row = row_from(values | {"outcome": "ok", field.name: value})
    except RowError as error:
        assert f"{field.name} is" in str(error)
        assert not legal or value == -1 or field.name in CHOICES
    else:
        assert legal
        assert getattr(row, field.name) == value


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "object is expected"), ("[" * 100_000, "not JSON")]
)
def test_a_wrong_line_is_told_with_its_number(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{text}\n", encoding="utf-8")
    with pytest.raises(RowError) as caught:
        read_rows(file)
    assert "line 2" in str(caught.value)
    assert said in str(caught.value)


def test_an_id_stands_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{line(PLAIN)}\n{line(PLAIN)}\n", encoding="utf-8")
    with pytest.raises(RowError, match="stands twice"):
        read_rows(file)


def test_the_built_in_rows_are_carried_compressed() -> None:
    assert BUILT_IN.suffix == ".xz"
    assert BUILT_IN.stat().st_size < 200_000


def test_a_field_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "tp": 2, "tp": 4}\n')
    with pytest.raises(RowError, match="line 1: field 'tp' is given twice"):
        read_rows(path)


def small_models(*, apart: bool) -> dict[tuple[object, ...], tuple[FloatArray, FloatArray]]:
    """Return seconds of vTrain's steps without pipelines, and the terms they are sums of, by cell.

    A cell is hidden size, tensor degree and micro-batch, ``apart`` replicas too. Terms are what is fixed, an
    update for each layer, and for each micro-batch a head and layers.
    """
    cells: dict[tuple[object, ...], list[tuple[float, float, float]]] = defaultdict(list)
    for r in ROWS.values():
        if r.family != "vtrain" or r.pp != 1:
            continue
        assert r.layers and r.dp and r.micro_batch and r.global_batch and r.step_time_s
        passes = r.global_batch / (r.dp * r.micro_batch)
        cells[r.hidden, r.tp, r.micro_batch, r.dp * apart].append((r.layers, passes, r.step_time_s))
    columns = {key: np.array(runs).T for key, runs in cells.items()}
    return {
        key: (seconds, np.stack([np.ones_like(seconds), layers, passes, passes * layers], axis=-1))
        for key, (layers, passes, seconds) in columns.items()
    }


def parts_of(seconds: FloatArray, terms: FloatArray) -> FloatArray:
    """Return seconds of the parts."""
    return np.asarray(np.linalg.lstsq(terms / seconds[:, None], np.ones_like(seconds), rcond=None)[0])


def test_step_times_of_the_small_models_are_sums_of_parts_measured_once() -> None:
    """``data/README.md``: what is fixed, an update for each layer, a head and layers for each micro-batch."""
    cells = small_models(apart=True)
    assert max(len(seconds) for seconds, _ in cells.values()) == 12
    for seconds, terms in cells.values():
        assert terms @ parts_of(seconds, terms) == pytest.approx(seconds, rel=1e-3)


def test_two_layers_of_the_small_models_take_less_time_for_twice_the_work() -> None:
    """``data/README.md``: milliseconds of a layer, by features, tensor degree and micro-batch."""
    cells = small_models(apart=False)
    layer = {
        key: 1e3 * parts_of(*cells[*key, 0])[3]
        for key in ((1024, 2, 2), (1024, 2, 4), (2048, 4, 1), (2048, 4, 2))
    }
    assert list(layer.values()) == pytest.approx([3.58, 3.18, 2.99, 2.75], rel=0.01)


def test_a_small_file_that_holds_endless_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl.xz"
    file.write_bytes(lzma.compress(bytes(100_000)))
    monkeypatch.setattr(rows, "MAX_BYTES", 10_000)
    with pytest.raises(RowError, match="over 10000 bytes"):
        text_of(file)
    file.write_bytes(lzma.compress(b"{}")[:-5])
    with pytest.raises(RowError, match="cannot be read"):
        text_of(file)
