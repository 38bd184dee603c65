"""Rules of legality that a model brings: what can be split, by which degrees."""

from collections.abc import Callable
from functools import partial

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.part import Axis, Part
from meshwright.planner.lengths import main_length, stream_lengths
from meshwright.planner.meshes import Meshes
from meshwright.planner.problem import Problem
from meshwright.planner.rule import Rule, has_experts

MOST_MICROBATCHES = 8192
"""Far beyond any run that was published; the event simulation grows with them."""
MOST_CHUNKS = 1024
"""Of an interleaved pipeline, likewise: what is in flight grows with the square of a rank's chunks."""

_COUNTED: dict[Axis, tuple[str, Callable[[Meshes], IntArray]]] = {
    "tensor": ("tp", lambda m: m.tp),
    "ulysses": ("tp x ulysses", lambda m: m.tp * m.ulysses),
    "expert": ("ep", lambda m: m.ep),
    "expert_tensor": ("etp", lambda m: m.etp),
}
"""The ranks that a part of each axis is split over, in words and as a column."""


def _ranks(axis: Axis, m: Meshes) -> str:
    """Return the ranks that a part of one mesh is split over: ``tp 3``."""
    word, ranks = _COUNTED["tensor" if axis == "ulysses" and m.ulysses[0] == 1 else axis]
    return f"{word} {ranks(m)[0]}"


def _divides(part: Part) -> Rule:
    """Return the rule that a part can be split; above its units only copies of them help."""
    units, replicable = int(part.units), part.replicable
    word, ranks = _COUNTED[part.axis]

    def allows(m: Meshes) -> BoolArray:
        """Return where the ranks divide the units, or copy them."""
        n = ranks(m)
        return np.asarray((units % n == 0) | (replicable & (n % units == 0)))

    says = f"{word} divides the {units} {part.what}" + (" or is a multiple" if replicable else "")
    name = f"{word} divides {part.what}"
    return Rule(name, says, allows, split=(f"the {units} {part.what}", partial(_ranks, part.axis)))


def _part_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return a rule for each distinct part; those of one name (two widths of experts) hold together."""
    found: dict[str, Rule] = {}
    for part in problem.model.parts:
        if not part.padded:
            rule = _divides(part)
            found[rule.name] = _both(found[rule.name], rule) if rule.name in found else rule
    return tuple(found.values())


def _both(one: Rule, other: Rule) -> Rule:
    says = one.says if other.says in one.says else f"{one.says}, and {other.says}"
    return Rule(one.name, says, lambda m: one.allows(m) & other.allows(m), split=one.split)


def model_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on what a model lets degrees split: parts, layers, sequences and experts."""
    return *_layer_rules(problem), *_context_rules(problem), *_expert_rules(problem)


def _layer_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on parts, vocabulary, lengths and the number of layers."""
    layers, lengths = problem.model.num_layers, text_lengths(problem)
    told = " and ".join(map(str, lengths))
    return (
        *_part_rules(problem),
        Rule(
            "tp within the vocabulary",
            "each tensor rank holds a row of the vocabulary",
            lambda m: (m.tp <= problem.model.vocab_size) | (problem.model.vocab_size == 0),
        ),
        Rule(
            "sequence parallelism divides the length",
            f"with sequence parallelism tp is above 1 and tp x cp divides {told} tokens",
            lambda m: (m.sequence_parallel == 0) | ((m.tp > 1) & _all_divide(lengths, m.tp * m.cp)),
        ),
        Rule(
            "micro-batches within reach",
            f"a step has at most {MOST_MICROBATCHES} micro-batches: each is simulated; make them larger",
            lambda m: m.num_microbatches <= MOST_MICROBATCHES,
        ),
        Rule(
            "a layer for each chunk",
            f"pp x vpp is at most {layers} layers (embedding and head included)",
            lambda m: m.pp * m.vpp <= layers,
        ),
        Rule(
            "chunks within reach",
            f"pp x vpp is at most {MOST_CHUNKS} chunks where vpp is above 1: each is simulated",
            lambda m: (m.vpp == 1) | (m.pp * m.vpp <= MOST_CHUNKS),
        ),
    )


def text_lengths(problem: Problem) -> tuple[int, ...]:
    """Return the lengths of the sequences of text; patches of images are padded where they must be split."""
    model, job = problem.model, problem.job
    found = stream_lengths(model, job)
    own = [found[s.name].sequence_length for s in model.streams if s.source != "image"]
    return tuple(sorted({main_length(model, job), *(round(n) for n in own if n)}))


def _all_divide(lengths: tuple[int, ...], parts: IntArray) -> BoolArray:
    return np.asarray(np.logical_and.reduce([length % parts == 0 for length in lengths]))


def splits_sequence(problem: Problem) -> bool:
    """Return whether context parallelism can cut the model's sequences: one stream, and no operator objects.

    Operators that pass a state from token to token (scans) say so with ``splits_sequence = False``.
    """
    model = problem.model
    ops = (op for kind in model.kinds for op in kind.operators)
    return (
        not model.streams
        and model.context is None
        and all(getattr(op, "splits_sequence", True) for op in ops)
    )


def _context_rules(problem: Problem) -> tuple[Rule, ...]:
    length, whole = main_length(problem.model, problem.job), splits_sequence(problem)
    return (
        Rule(
            "sequences can be split",
            f"{problem.model.name} reads a sequence in order or several streams of tokens: cp is 1",
            lambda m: (m.cp == 1) | whole,
        ),
        Rule(
            "cp divides the length",
            f"2 x cp divides {length} tokens: each rank gets two mirrored pieces, to balance causal work",
            lambda m: (m.cp == 1) | (length % (2 * m.cp) == 0),
        ),
        Rule(
            "ulysses divides cp",
            "ulysses is a part of cp",
            lambda m: m.cp % m.ulysses == 0,
            lambda m: f"ulysses {m.ulysses[0]} does not divide cp {m.cp[0]}",
        ),
    )


def _expert_rules(problem: Problem) -> tuple[Rule, ...]:
    experts = has_experts(problem)

    def folds(m: Meshes) -> BoolArray:
        """Return where the expert mesh folds into the dense one."""
        ranks, inner = m.ep * m.etp, m.inner
        fits = (m.tp * m.shards) % ranks == 0
        copies = (m.dp_replicate == 1) | (m.cp == 1) | (m.stride("dp") >= m.cp * m.tp) | (not experts)
        return np.asarray(fits & copies & ((inner % ranks == 0) | (ranks % inner == 0)))

    return (
        Rule(
            "experts",
            f"{problem.model.name} has {'experts' if experts else 'no experts: ep and etp are 1'}",
            lambda m: (m.ep * m.etp == 1) | experts,
        ),
        Rule(
            "experts are folded",
            "ep x etp divides tp x cp x dp / dp_replicate and fits what lies inside the pipeline dimension; "
            "with copies of shards the context ranks lie inside the data ranks",
            folds,
        ),
        Rule(
            "experts need sequence parallelism",
            "with experts and tp above 1 sequence parallelism is on: else tensor ranks send the same tokens",
            lambda m: (m.tp == 1) | (m.sequence_parallel == 1) | (not experts),
        ),
    )
