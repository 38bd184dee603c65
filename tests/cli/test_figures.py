"""Rounding: units, digits, and the words around numbers."""

import pytest

from meshwright.cli import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (2.5e-6, "2.5 µs"),
        (0.0125, "12.50 ms"),
        (0.999994, "999.99 ms"),
        (1.0, "1.000 s"),
        (12.34567, "12.346 s"),
        (1234.56, "1,234.6 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert figures.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.0 %"), (0.0001, "< 0.1 %"), (0.0005, "0.1 %"), (0.421, "42.1 %"), (1, "100.0 %")],
)
def test_percent_never_shows_a_small_share_as_none(value: float | None, text: str) -> None:
    assert figures.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.1528, "$0.153"), (55.04, "$55.04"), (112722.4, "$112,722")]
)
def test_usd(value: float | None, text: str) -> None:
    assert figures.usd(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (1.25, "1.2 h"), (2303, "2,303 h (96.0 days)")])
def test_hours(value: float | None, text: str) -> None:
    assert figures.hours(value) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "mesh", "1 mesh"),
        (1234, "mesh", "1,234 meshes"),
        (2, "micro-batch", "2 micro-batches"),
        (0, "layer", "0 layers"),
    ],
)
def test_plural(number: int, noun: str, text: str) -> None:
    assert figures.plural(number, noun) == text


def test_gib_is_binary() -> None:
    assert figures.gib(3 * 2.0**29) == "1.50"


def test_words_drop_the_unit() -> None:
    assert figures.words("pipeline_transfer_s") == "pipeline transfer"


@pytest.mark.parametrize(
    ("fraction", "text"), [(-1, ""), (0.0, ""), (0.5, "██"), (0.53125, "██▏"), (1.0, "████"), (9, "████")]
)
def test_bar_grows_by_eighths_and_stays_in_its_width(fraction: float, text: str) -> None:
    assert figures.bar(fraction, 4) == text


def test_runs_cover_all_in_order() -> None:
    assert figures.runs("aabccc") == [(0, 1), (2, 2), (3, 5)]
    assert figures.runs([]) == []


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_listed(items: list[str], text: str) -> None:
    assert figures.listed(items) == text


def test_span() -> None:
    assert (figures.span(3, 3), figures.span(3, 7)) == ("3", "3–7")
