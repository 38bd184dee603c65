"""Rows of the published runs that tests share."""

import json

from benchmarks.rows import Row, read_rows

ROWS = {row.id: row for row in read_rows()}

PLAIN = ROWS["dgxc_v24111_llama31_405b_bf16_32"]


def line(row: Row) -> str:
    """Return a row as it stands in a file."""
    return json.dumps({name: getattr(row, name) for name in Row.__slots__})
