"""Settings in other people's words are read as what they mean, or told as not understood."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_prices import express
from benchmarks.row_model import NotExpressibleError
from benchmarks.row_spelling import KNOWN, spelt, understood
from benchmarks.rows import read_rows
from tests.benchmarks.cases import PLAIN


@pytest.mark.parametrize(
    ("name", "said", "word"),
    [
        ("recompute", "full-block", "full"),
        ("recompute", "Activation checkpointing", "full"),
        ("recompute", "gradient checkpointing", "full"),
        ("recompute", "uniform", "full"),
        ("recompute", "yes", "full"),
        ("recompute", "off", "none"),
        ("recompute", "No recomputation", "none"),
        ("recompute", "core_attn", "selective"),
        ("recompute", "activation checkpointing every 2nd layer", "selective"),
        ("schedule", "1F1B-interleaved", "1f1b"),
        ("schedule", "VPP", "interleaved"),
        ("schedule", "Zero Bubble H1", "zb"),
        ("schedule", "PipeDream-Flush", "1f1b"),
        ("schedule", "AFAB", "gpipe"),
        ("schedule", "DualPipe", "dualpipe"),
        ("tuning", "SFT", "full"),
        ("tuning", "DoRA r=16", "lora"),
        ("offload", "optimizer states to host", "optimizer"),
        ("offload", "ZeRO-Offload", "cpu"),
        ("offload", "false", "none"),
    ],
)
def test_a_setting_in_other_words_begins_with_a_known_one(name: str, said: str, word: str) -> None:
    assert (spelt(name, said) or "").lower().startswith(word)


@given(st.sampled_from(sorted(KNOWN)), st.text(max_size=30))
def test_whatever_is_written_is_read_or_not_understood(name: str, said: str) -> None:
    word = spelt(name, said)
    assert word is None or word.strip().lower().startswith(KNOWN[name])
    assert word is None or spelt(name, word) == word


def test_known_words_stay_as_they_are() -> None:
    for row in read_rows():
        assert understood(row) == (row, ())


TEXTS = (
    "framework",
    "recompute",
    "sharding",
    "schedule",
    "tuning",
    "offload",
    "precision",
    "optimizer",
    "notes",
)


@pytest.mark.parametrize("letters", [str.upper, str.lower])
def test_capital_letters_change_no_run(letters: Callable[[str], str]) -> None:
    """One row of every stack and its settings: sources spell ``TorchTitan``, ``LoRA``, ``Selective``."""
    kinds = {(row.framework, row.recompute, row.tuning, row.moe is None): row for row in read_rows()}
    for row in kinds.values():
        said = {name: letters(text) for name in TEXTS if (text := getattr(row, name)) is not None}
        try:
            plain = express(row)
        except NotExpressibleError:
            continue
        other = express(replace(row, **said))
        assert other.plan == plain.plan, row.id
        assert other.problem.job == plain.problem.job, row.id


def test_layers_that_run_again_are_every_nth() -> None:
    run = express(replace(PLAIN, recompute="checkpointing of every third layer"))
    modes = [run.plan.recompute[layer] for layer in run.problem.model.block_layers]
    assert {at for at, mode in enumerate(modes) if mode == "full"} == set(range(0, len(modes), 3))
    assert any(note.startswith("recompute is 'checkpointing") for note in run.assumptions)
