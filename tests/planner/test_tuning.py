"""What is trained, as people write it: words, defaults, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.tuning import BASES, Tuning, read_tuning

WRITTEN: list[tuple[Any, Tuning]] = [
    (None, Tuning()),
    ("full", Tuning()),
    ({}, Tuning()),
    ("lora", Tuning("lora")),
    ("lora:r=8,targets=q,v", Tuning("lora", 8, ("q", "v"))),
    ("lora:rank=8,targets=q+v", Tuning("lora", 8, ("q", "v"))),
    (" qlora : r=64 , dropout=0.1 ", Tuning("lora", 64, base="nf4", dropout=0.1)),
    ("qlora:base=int4", Tuning("lora", base="int4")),
    ("freeze:layers=20,embeddings=yes", Tuning("freeze", frozen_layers=20, train_embeddings=True)),
    ("freeze:streams=vision", Tuning("freeze", frozen_streams=("vision",))),
    ({"kind": "qlora", "rank": 16}, Tuning("lora", 16, base="nf4")),
    ({"rank": 4, "targets": ["q", "v"]}, Tuning("lora", 4, ("q", "v"))),
    ({"kind": "lora", "targets": "q,v"}, Tuning("lora", targets=("q", "v"))),
    (Tuning("lora", 2), Tuning("lora", 2)),
]


@pytest.mark.parametrize(("written", "meant"), WRITTEN, ids=lambda v: str(v))
def test_text_and_mappings_say_the_same(written: Any, meant: Tuning) -> None:
    assert read_tuning(written) == meant


REFUSED: list[tuple[Any, str]] = [
    ("lorra", "kind 'lorra' is not one of full, lora, freeze"),
    ("lora:r=0", "rank 0 is not an integer from 1"),
    ("lora:r=many", "rank 'many' is not an integer"),
    ("lora:r=" + "9" * 5000, "rank '99.* is not an integer from 1 to 1,000,000"),
    ("lora:q", "'q' in 'lora:q' is no option"),
    ("lora:alpha=16", "'alpha' is not an option; allowed: r, rank"),
    ("lora:base=nf5", "base 'nf5' is not one of model, nf4"),
    ("lora:dropout=1", r"dropout 1.0 is not a number in \[0, 1\)"),
    ("lora:embeddings=perhaps", "train_embeddings 'perhaps' is not true or false"),
    ({"kind": "lora", "targets": []}, "targets .* is not at least one name"),
    ({"kind": "lora", "targets": [3]}, "is not a list of names"),
    ({"kind": "full", "rank": 8}, "rank 8 has no meaning with kind 'full'"),
    ("freeze:layers=2,base=nf4", "base 'nf4' has no meaning with kind 'freeze'"),
    ("freeze", "freezes nothing"),
    (16, "neither text nor a mapping"),
]


@pytest.mark.parametrize(("written", "said"), REFUSED, ids=lambda v: str(v))
def test_what_has_no_meaning_is_refused_by_name(written: Any, said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        read_tuning(written)


names = st.lists(st.sampled_from(("q", "v", "mlp", "all-linear")), min_size=1, unique=True).map(tuple)
adapters = st.builds(
    Tuning,
    st.just("lora"),
    st.integers(1, 512),
    names,
    st.sampled_from(sorted(BASES)),
    st.floats(0, 0.9),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from(((), ("vision",), ("vision", "audio"))),
)


@given(adapters)
def test_the_text_of_a_tuning_reads_as_itself(tuning: Tuning) -> None:
    assert read_tuning(str(tuning)) == tuning


def test_quantised_bases_cost_what_their_papers_say() -> None:
    """QLoRA, section 3: 0.5 bits a weight for the constants, 0.127 with double quantisation."""
    bits = {name: 8 * stored for name, stored in BASES.items() if stored is not None}
    assert bits["nf4"] == pytest.approx(4.127, abs=1e-3)
    assert bits["nf4-single"] == 4.5
    assert bits["int4"] == pytest.approx(4.156, abs=1e-3)
    assert Tuning().stored_bytes is None
