"""Interleaved chunks are equal but for one block at either end; free stages start as even as can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.chunking import chunk_cuts, equal_chunks
from tests.referees.exhaustive import partitions
from tests.referees.problems import tiny_model


@given(st.integers(1, 200), st.integers(2, 64))
def test_equal_chunks_hold_all_blocks(blocks: int, chunks: int) -> None:
    q, shifts = equal_chunks(blocks, chunks)
    for first_short in shifts:
        last_short = q * chunks - blocks - first_short
        assert 0 <= last_short <= 1
        assert first_short in (0, 1)
    assert bool(shifts) == any((blocks + short) % chunks == 0 for short in (0, 1, 2))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chunks", [4, 6, 8])
def test_interleaved_cuts_are_those_of_the_referee(seed: int, chunks: int) -> None:
    graph = tiny_model(np.random.default_rng(seed), 6)
    own = {tuple(cuts.tolist()) for cuts in chunk_cuts(graph, chunks, True)}
    if chunks <= graph.num_layers:
        assert own == set(partitions(graph, chunks, True))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_free_stages_start_within_one_block_of_each_other(chunks: int) -> None:
    graph = tiny_model(np.random.default_rng(3), 6)
    (cuts,) = chunk_cuts(graph, chunks, False)
    blocks = np.diff(np.searchsorted(graph.block_layers, cuts))
    assert blocks.sum() == len(graph.block_layers)
    assert np.ptp(blocks) <= 1
