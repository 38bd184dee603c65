"""How many tokens of a sample each stream of a model sees, from the job's lengths."""

from collections.abc import Mapping

from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.strategy import Lengths
from meshwright.costmodels.work import Shape
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.job import Job

MAIN = "text"
"""The stream of layers that name no other."""


def main_length(model: ModelGraph, job: Job) -> int:
    """Return the tokens of the main stream: text, and what images add to it where they join the text."""
    apart = any(stream.name == MAIN and stream.source == "text" for stream in model.streams)
    return job.sequence_length + (_images(job) if _follows(model, "image") and not apart else 0)


def stream_lengths(model: ModelGraph, job: Job) -> Mapping[str, Lengths]:
    """Return the lengths of the model's streams by name, the main one only where the model redefines it."""
    return {stream.name: _lengths(stream, model, job) for stream in model.streams}


def sample_tokens(model: ModelGraph, job: Job) -> int:
    """Return the tokens of a sample: those of the main stream and, in an encoder-decoder, the target's."""
    return main_length(model, job) + target_length(model, job)


def target_length(model: ModelGraph, job: Job) -> int:
    """Return the tokens of an encoder-decoder's target; 0 where a model has none."""
    return _target(job) if _follows(model, "target") else 0


def sample_shape(model: ModelGraph, job: Job, kind: LayerKind, element_bytes: float = 2) -> Shape:
    """Return what one device runs of a kind for one sample, without any split."""
    lengths = stream_lengths(model, job)
    whole = Lengths(main_length(model, job))
    own = lengths.get(kind.stream, whole)
    other = whole if model.context is None else lengths.get(model.context, whole)
    context = 0.0 if model.context is None else other.sequences * other.sequence_length / own.sequences
    return Shape(
        own.sequences, own.sequence_length, 1, 0, element_bytes=element_bytes, context_length=context
    )


def check_lengths(model: ModelGraph, job: Job) -> None:
    """Refuse lengths of streams that the model does not have.

    Raises
    ------
    MeshwrightError
        If a target length or image tokens are given for a model that has no use for them.
    """
    for name, source, what in (
        ("target_length", "target", "is no encoder-decoder"),
        ("image_tokens", "image", "reads no images"),
    ):
        value = getattr(job, name)
        if value is not None and not _follows(model, source):
            raise MeshwrightError(f"{name}: {value} is given, but {model.name} {what}; leave it out")


def length_notes(model: ModelGraph, job: Job) -> tuple[str, ...]:
    """Return what was assumed about lengths, and a warning where they exceed the model's positions."""
    limit, length, notes = model.max_sequence_length, main_length(model, job), []
    if _follows(model, "target") and job.target_length is None:
        notes.append(f"target_length is not given: {job.sequence_length} tokens, as long as the source")
    if _follows(model, "image") and job.image_tokens is None:
        notes.append("image_tokens is not given: samples hold text alone, and the vision tower idles")
    if limit is not None and length > limit:
        notes.append(
            f"sequences of {length} tokens exceed the {limit} positions that {model.name} was made for"
        )
    return tuple(notes)


def _follows(model: ModelGraph, source: str) -> bool:
    return any(stream.source == source for stream in model.streams)


def _target(job: Job) -> int:
    return job.sequence_length if job.target_length is None else job.target_length


def _images(job: Job) -> int:
    return job.image_tokens or 0


def _lengths(stream: Stream, model: ModelGraph, job: Job) -> Lengths:
    """Return the lengths of one stream; without any token of its source it is one empty sequence."""
    tokens = {
        "sequence": main_length(model, job),
        "text": job.sequence_length,
        "target": _target(job),
        "image": _images(job),
    }[stream.source]
    if not tokens:
        return Lengths(0.0)
    each = tokens if stream.block is None else stream.block
    return Lengths(each * stream.ratio + stream.extra, tokens / each)
