"""Settings that differ in numbers alone are priced together as each is alone."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.memory import StateBytes
from meshwright.costmodels.stacking import stack, structure, taken
from meshwright.costmodels.tables import Tables, build_tables
from tests.costmodels.cases import SMALL, make_setting, make_strategies

WIDE = replace(SMALL, hidden=512, ffn=2048, heads=16, vocab=5000)
SIZES = (SMALL, WIDE, replace(SMALL, layers=9), replace(SMALL, kv_heads=8))


def arrays(tables: Tables) -> dict[str, np.ndarray]:
    found = {f.name: getattr(tables, f.name) for f in fields(Tables) if f.name != "states"}
    return found | {f"states.{f.name}": getattr(tables.states, f.name) for f in fields(StateBytes)}


def test_sizes_are_no_part_of_a_structure() -> None:
    assert structure(make_setting(SMALL).kinds) == structure(make_setting(WIDE, sequence_length=2048).kinds)


@pytest.mark.parametrize(
    "other",
    [
        {"spec": replace(SMALL, gated=not SMALL.gated)},
        {"spec": replace(SMALL, qkv_bias=not SMALL.qkv_bias)},
        {"precision": "fp8", "cluster": "dgx-h100:1"},
    ],
)
def test_other_operators_and_other_switches_are_another_structure(other: dict[str, object]) -> None:
    assert structure(make_setting().kinds) != structure(make_setting(**other).kinds)  # type: ignore[arg-type]


def test_a_setting_alone_is_itself() -> None:
    own = make_setting()
    assert stack([own], np.zeros(3, dtype=np.int64)) is own
    assert taken(own, np.array([0, 0])) is own


def test_what_does_not_differ_stays_a_scalar() -> None:
    both = stack([make_setting(), make_setting(sequence_length=1024)], np.array([0, 1, 1]))
    assert both.kinds == make_setting().kinds
    assert both.sequence_length.tolist() == [512, 1024, 1024]
    assert taken(both, np.array([1, 0])).sequence_length.tolist() == [1024, 512]


@settings(max_examples=30, deadline=None)
@given(
    members=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([128, 512])), min_size=1, max_size=8),
    data=st.data(),
)
def test_stacked_tables_are_those_of_each_alone(members: list[tuple[int, int]], data: st.DataObject) -> None:
    def column(*values: int) -> list[int]:
        drawn = st.lists(st.sampled_from(values), min_size=len(members), max_size=len(members))
        return data.draw(drawn)

    strategies = make_strategies(
        tp=column(1, 2, 4), dp=column(1, 2), zero_stage=column(0, 1, 3), micro_batch_size=column(1, 2),
        sequence_parallel=column(0, 1), num_microbatches=column(4),
    )  # fmt: skip
    distinct = list(dict.fromkeys(members))
    each = [make_setting(SIZES[size], sequence_length=length) for size, length in distinct]
    member = np.array([distinct.index(m) for m in members])
    together = arrays(build_tables(stack(each, member), strategies))
    for row, (size, length) in enumerate(members):
        alone = build_tables(make_setting(SIZES[size], sequence_length=length), strategies.take([row]))
        for name, value in arrays(alone).items():
            np.testing.assert_allclose(together[name][row], value[0], rtol=1e-13, err_msg=name)
