"""Text that people wrote: plain data in, one clear sentence for each way to be wrong."""

import pytest

from meshwright.hardware.errors import CatalogueError
from meshwright.hardware.files import MAX_YAML_BYTES, parse_yaml, read_yaml

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
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: {b", "at line"),
        ("a: 1\na: 2", "'a' is written twice"),
        ("- a\n- b", "top level is 'list'"),
        ("just text", "top level is 'str'"),
        ("", "top level is 'NoneType'"),
        ("1: a", "text keys"),
        ("a: 2026-13-45", "text is"),
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


def test_what_is_no_small_text_file_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match="a folder"):
        read_yaml(tmp_path)
    with pytest.raises(CatalogueError, match="no regular file"):
        read_yaml(tmp_path / "absent.yaml")
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
