"""Which tokens context ranks work on: all of them, each once, with the same causal work."""

from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.runtime.context import Context


@given(size=st.integers(1, 16), each=st.integers(1, 64))
def test_pieces_share_the_sequence_and_its_causal_work(size: int, each: int) -> None:
    length = 2 * size * each
    own = [[t for piece in Context(None, r, size).pieces(length) for t in piece] for r in range(size)]
    assert sorted(t for places in own for t in places) == list(range(length))
    # A token attends to itself and to all before it.
    assert len({sum(t + 1 for t in places) for places in own}) == 1


@given(size=st.integers(1, 16), each=st.integers(1, 64))
def test_pieces_are_runs_in_order(size: int, each: int) -> None:
    for rank in range(size):
        first, second = Context(None, rank, size).pieces(2 * size * each)
        assert len(first) == len(second) == each and first.stop <= second.start
