"""Text that people wrote: plain data in, one clear sentence for each way to be wrong."""

import json
from math import inf
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import CatalogueError
from meshwright.hardware.files import MAX_YAML_BYTES, parse_yaml, read_yaml
from meshwright.hardware.yaml_core import to_yaml

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def test_a_mapping_is_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\nvalues: [1, 2.5]\n")  # a byte order mark is no harm
    assert read_yaml(path) == {"name": "x", "values": [1, 2.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "anchor or alias"),
        ("a: *nowhere", "anchor or alias"),
        ("a: !!python/object/apply:os.system ['true']", "the tag tag:yaml.org,2002:python/object"),
        ("a: !!set {b, c}", "the tag tag:yaml.org,2002:set"),
        ("a: !!int 1:30", "the tag tag:yaml.org,2002:int"),
        ("a: !mine b", "the tag !mine"),
        ("a: {b", "at line"),
        ("a: 1\nb: 3\na: 2", "'a' is written twice at line 3, column 1"),
        ("- a\n- b", "top level is 'list'"),
        ("just text", "top level is 'str'"),
        ("", "top level is 'NoneType'"),
        ("1: a", "text keys"),
        ("a: " + "9" * 5000, "text is"),
        ("a: 0x" + "f" * 5000, "text is"),
        ("a: " + "[" * 50000 + "]" * 50000, "text is"),
        ("a: " + "[" * 40 + "]" * 40, "deep nesting"),
        ("a: 1\x00", "text is"),
        ("? [1, 2]\n: b", "unhashable key"),
    ],
)
def test_what_is_no_plain_mapping_is_refused(text, message):
    with pytest.raises(CatalogueError, match=message) as caught:
        parse_yaml(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")


@pytest.mark.parametrize(
    "word",
    ["1:30", "1:30:00.5", "on", "off", "yes", "No", "y", "1_000", "0b11", "2026-01-01", "=", "<<", "1e", "."],
)
def test_words_that_only_yaml_1_1_takes_for_something_else_are_text(word):
    assert parse_yaml(f"a: {word}\n{word}: 1", "mine.yaml") == {"a": word, word: 1}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("-3", -3),
        ("+4", 4),
        ("1e9", 1e9),
        ("15E12", 15e12),
        ("-.5", -0.5),
        ("2.", 2.0),
        (".inf", inf),
        ("-.INF", -inf),
        ("TRUE", True),
        ("false", False),
        ("~", None),
        ("", None),
    ],
)
def test_numbers_switches_and_nothing_are_those_of_the_core_schema(word, value):
    read = parse_yaml(f"a: {word}", "mine.yaml")["a"]
    assert (read, type(read)) == (value, type(value))


WORDS = st.text("01eExo:_.-+~<=onfyaNulTtrs#,&*! {}[]'\"%@`|>?", max_size=8)
FINITE = WORDS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
PLAIN = FINITE | st.sampled_from((float("inf"), float("-inf")))  # JSON has no word for these (RFC 8259)


@given(st.dictionaries(WORDS, PLAIN | st.lists(PLAIN, max_size=3), max_size=5))
def test_what_is_written_is_read_back_and_means_the_same_in_yaml_1_1(data):
    text = to_yaml(data)
    assert parse_yaml(text, "mine.yaml") == yaml.safe_load(text) == data


@given(
    st.recursive(
        FINITE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
    )
)
def test_json_is_read_as_json_reads_it(value):
    text = json.dumps({"a": value})
    assert parse_yaml(text, "mine.json") == json.loads(text)


def test_what_is_no_small_text_file_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match="a folder"):
        read_yaml(tmp_path)
    with pytest.raises(CatalogueError, match="missing"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(CatalogueError, match="no regular file"):
        read_yaml(Path("/dev/null"))
    big = tmp_path / "big.yaml"
    big.write_text("a: " + "x" * MAX_YAML_BYTES)
    with pytest.raises(CatalogueError, match=f"at most {MAX_YAML_BYTES} bytes"):
        read_yaml(big)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(CatalogueError, match="UTF-8 text"):
        read_yaml(binary)


def test_a_file_that_may_not_be_read_is_said_so(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(CatalogueError, match="Permission denied"):
        read_yaml(path)


def test_a_key_written_twice_is_found_among_as_many_as_a_file_can_hold():
    many = "\n".join(f"k{i}: 1" for i in range(25_000))
    assert len(parse_yaml(many, "mine.yaml")) == 25_000
    with pytest.raises(CatalogueError, match="key 'k7' is written twice"):
        parse_yaml(f"{many}\nk7: 2", "mine.yaml")
