"""What people write for a number, and what it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.amounts import amount, length, whole, written_out
from tests.cli.shell import run


@given(st.integers(1, 10**15))
def test_a_plain_number_is_itself_however_it_is_written(n: int) -> None:
    for read in (whole, length, amount):
        assert read(n) == read(str(n)) == n
    assert written_out(str(n)) == ""


@pytest.mark.parametrize("value", [True, None, "", "k", "8q", "8kk", "-8k", "x", ["8k"]])
def test_what_is_no_number_stays_for_others_to_refuse(value: object) -> None:
    for read in (whole, length, amount):
        assert not isinstance(read(value), int)
    assert written_out(value) == ""


def test_a_model_is_counted_at_a_length_in_words() -> None:
    short, long = (run("model", "gpt2", "--seq-len", told, "--json") for told in ("8k", "8192"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    for told in ("8q", "0", "0.3k", "3B"):
        refused = run("model", "gpt2", "--seq-len", told)
        assert refused.exit_code == 2
        assert "8k is 8192" in refused.stderr
