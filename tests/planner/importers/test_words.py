"""What a file says beyond its sizes is handed on by our names; what is absent or odd is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.importers.config import Config
from meshwright.planner.importers.words import words


def read(**values) -> dict:
    return words(Config("config.json", values))


def test_spellings_of_one_thing_have_one_name() -> None:
    assert read(rms_norm_eps=1e-6) == read(layer_norm_epsilon=1e-6) == {"norm_epsilon": 1e-6}
    assert read(rope_theta=5e5) == read(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    assert read(hidden_act="silu") == {"activation": "silu"}


def test_stretched_positions() -> None:
    told = read(rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1})
    assert told == {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_low_frequency": 1}
    assert read(rope_scaling={"type": "yarn", "factor": 40})["rope_scaling"] == "yarn"
    assert read(rope_scaling=None) == read(rope_scaling={}) == {}


def test_multipliers_other_than_one_are_named() -> None:
    assert read(logits_scaling=8.0, residual_multiplier=1.0) == {"multipliers": "logits_scaling"}


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": True},
        {"rope_theta": None},
        {"hidden_act": 3},
        {"norm_topk_prob": 1},
        {"rope_scaling": "x"},
    ],
)
def test_values_of_another_kind_are_left_out(values: dict) -> None:
    assert read(**values) == {}


@given(
    st.dictionaries(
        st.sampled_from(["rope_scaling", "rope_theta", "hidden_act", "scoring_func"]),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda s: st.lists(s) | st.dictionaries(st.text(), s),
        ),
    )
)
def test_no_file_is_refused_for_its_words(values: dict) -> None:
    assert all(isinstance(v, bool | int | float | str) for v in read(**values).values())
