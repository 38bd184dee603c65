"""Tokens of a sample by stream: text, images that add to it, and the target of an encoder-decoder."""

from dataclasses import replace

import pytest

from meshwright.costmodels.strategy import Lengths
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.job import Job
from meshwright.planner.lengths import (
    check_lengths,
    length_notes,
    main_length,
    sample_shape,
    sample_tokens,
    stream_lengths,
)
from tests.planner.emit.cases import model

PLAIN = model()
PATCHES = Stream("vision", "image", ratio=4.0, block=256, extra=1)
SEES = replace(PLAIN, streams=(PATCHES,))
TARGET = replace(PLAIN, streams=(Stream("target", "target"),), context="text")


def job(**lengths: int) -> Job:
    return Job(8, 512, **lengths)  # type: ignore[arg-type]


def test_text_alone_has_one_stream() -> None:
    assert (main_length(PLAIN, job()), sample_tokens(PLAIN, job())) == (512, 512)
    assert stream_lengths(PLAIN, job()) == {}


def test_images_add_to_the_text_and_make_sequences_of_their_own() -> None:
    asked = job(image_tokens=1024)
    assert main_length(SEES, asked) == sample_tokens(SEES, asked) == 512 + 1024
    assert stream_lengths(SEES, asked) == {"vision": Lengths(256 * 4 + 1, 4)}


def test_without_blocks_all_patches_are_one_sequence() -> None:
    joined = replace(PLAIN, streams=(replace(PATCHES, block=None, extra=0),))
    assert stream_lengths(joined, job(image_tokens=100)) == {"vision": Lengths(400, 1)}


def test_without_images_the_tower_sees_nothing_and_the_user_is_told() -> None:
    lengths = stream_lengths(SEES, job())["vision"]
    assert lengths.sequences * lengths.sequence_length == 0
    assert "the vision tower idles" in " ".join(length_notes(SEES, job()))


def test_a_target_has_its_own_length_and_is_as_long_as_the_source_by_default() -> None:
    assert stream_lengths(TARGET, job(target_length=114))["target"] == Lengths(114)
    assert sample_tokens(TARGET, job(target_length=114)) == 512 + 114
    assert sample_tokens(TARGET, job()) == 1024
    assert "target_length is not given" in " ".join(length_notes(TARGET, job()))


def test_cross_attention_reads_the_context_of_its_own_sample() -> None:
    decoder = replace(PLAIN.kinds[1], stream="target")
    shape = sample_shape(TARGET, job(target_length=114), decoder)
    assert (shape.tokens, shape.context_tokens) == (114, 512)


def test_tokens_of_images_count_all_their_sequences() -> None:
    tower = replace(PLAIN.kinds[1], stream="vision")
    shape = sample_shape(SEES, job(image_tokens=1024), tower)
    assert (shape.sequences, shape.tokens) == (4, 4 * 1025)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"target_length": 64}, "is no encoder-decoder"), ({"image_tokens": 64}, "reads no images")],
)
def test_lengths_without_a_stream_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        check_lengths(PLAIN, job(**given))


def test_lengths_beyond_the_positions_are_noted_images_included() -> None:
    small: ModelGraph = replace(SEES, max_sequence_length=1024)
    assert not any("exceed" in n for n in length_notes(small, job(image_tokens=512)))
    assert any("exceed the 1024 positions" in n for n in length_notes(small, job(image_tokens=513)))
