"""Hostile and broken files end in one sentence that names the file, and nothing in a folder is run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.importers import load_model
from meshwright.planner.importers.config import (
    SIZE_LIMIT_BYTES,
    Config,
    ModelConfigError,
    read_config,
)
from meshwright.planner.importers.hf import model_from_config

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "{",
        "[1, 2]",
        '"text"',
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        b"\x80\x04\x95pickle",
        b"\xff\xfe\x00\x01",
        b"\x00" * 1000,
        '{"hidden_size": ' + "9" * 10_000 + "}",
        '{"hidden_size": 64, "hidden_size": 65}',
    ],
    ids=lambda t: repr(t[:12]),
)
def test_garbage_is_refused_by_file_name(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ModelConfigError, match=r"model\.json"):
        load_model(write(tmp_path / "model.json", text))


@pytest.mark.parametrize("key", [k for k in SMALL if k != "model_type"])
@pytest.mark.parametrize(
    "value", [0, -1, 2.5, "4", True, [4], {}, 10**12, float("nan"), float("inf"), 1e308], ids=repr
)
def test_sizes_must_be_positive_integers(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=key):
        model_from_config(Config("f", {**SMALL, key: value}), "f")


def test_a_whole_number_written_as_a_float_is_one() -> None:
    assert model_from_config(Config("f", {**SMALL, "hidden_size": 64.0}), "f").hidden_size == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tie_word_embeddings", 1),
        ("tie_word_embeddings", "true"),
        ("attention_dropout", 1.0),
        ("attention_dropout", -0.1),
        ("attention_dropout", "0.1"),
        ("attention_dropout", True),
        ("attention_bias", 0),
        ("max_position_embeddings", "long"),
        ("model_type", 7),
        ("num_key_value_heads", 3),
        ("hidden_size", 66),
        ("ffn", None),
    ],
)
def test_other_values_are_refused_by_key(key: str, value: object) -> None:
    values = {**SMALL, "intermediate_size": 64 * 101} if key == "ffn" else {**SMALL, key: value}
    with pytest.raises(
        ModelConfigError, match="key/value heads" if key == "num_key_value_heads" else "hidden|" + key
    ):
        model_from_config(Config("f", values), "f")


@pytest.mark.parametrize("model_type", ["llama", "bert", "vit", "t5", "mamba", "of-nobody"])
@pytest.mark.parametrize("value", [[None], [3], {}, 7, [["LlamaForCausalLM"]], [""]], ids=repr)
def test_classes_that_are_no_names_are_refused_by_key(model_type: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=r"architectures is .*class names"):
        model_from_config(Config("f", {**SMALL, "model_type": model_type, "architectures": value}), "f")


@pytest.mark.parametrize("key", ["hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"])
def test_an_activation_is_a_name_and_one_that_nobody_has_is_remarked(key: str) -> None:
    """What a layer costs hangs on no activation's name, but a framework may not know a misspelt one."""
    for wrong in (3, ["silu"], True, ""):
        with pytest.raises(ModelConfigError, match=f"{key} is"):
            model_from_config(Config("f", {**SMALL, key: wrong}), "f")
    plain, known, odd = (
        model_from_config(Config("f", SMALL | own), "f") for own in ({}, {key: "gelu"}, {key: "silo"})
    )
    assert not any(key in note for note in (*plain.notes, *known.notes))
    assert any(f"{key} 'silo'" in note for note in odd.notes)
    assert odd.kinds == plain.kinds


def test_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    write(folder / "config.json", json.dumps(SMALL))
    from_folder, from_file = load_model(folder), load_model(str(folder / "config.json"))
    assert from_folder == from_file
    assert from_folder.name == "My-Model"
    assert load_model(write(tmp_path / "tiny.json", json.dumps(SMALL))).name == "tiny"


def test_folder_named_like_a_preset_is_reached_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    write(folder / "config.json", json.dumps(SMALL))
    assert load_model(folder).hidden_size == 64


def test_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        load_model(tmp_path)


def test_link_to_a_file_is_followed_and_one_to_nowhere_or_itself_is_not(tmp_path: Path) -> None:
    real = write(tmp_path / "real.json", json.dumps(SMALL))
    (tmp_path / "link.json").symlink_to(real)
    assert load_model(tmp_path / "link.json").parameters == load_model(real).parameters
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "config.json").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "loop", tmp_path / "config.json", tmp_path):
        with pytest.raises(MeshwrightError):
            load_model(path)


def test_device_files_are_never_read() -> None:
    with pytest.raises(ModelConfigError, match="no such file"):
        read_config(Path("/dev/zero"))


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT_BYTES + 1)
    with pytest.raises(ModelConfigError, match="at most"):
        load_model(path)


def test_code_beside_a_config_is_never_run(tmp_path: Path) -> None:
    bait = tmp_path / "ran"
    code = f"open({str(bait)!r}, 'w').close()\nclass C: pass\n"
    for name in ("configuration_evil", "modeling_evil", "__init__"):
        write(tmp_path / f"{name}.py", code)
    auto_map = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.C"}
    write(tmp_path / "config.json", json.dumps({**SMALL, "auto_map": auto_map, "trust_remote_code": True}))
    assert load_model(tmp_path).parameters > 0
    assert not bait.exists()
    assert not any("evil" in name for name in sys.modules)


def test_infinity_where_no_size_is_expected_does_no_harm(tmp_path: Path) -> None:
    text = json.dumps({**SMALL, "time_step_limit": [0.0, float("inf")]})
    assert load_model(write(tmp_path / "m.json", text)).hidden_size == 64


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    family=st.sampled_from(["llama", "gemma3_text", "falcon", "opt", "gpt_neo", "mpt", "chatglm", "strange"]),
    key=st.sampled_from(
        [*SMALL, "num_kv_heads", "layer_types", "attention_types", "attn_config", "text_config"]
    ),
    value=json_values,
)
def test_any_value_under_any_key_gives_a_model_or_a_named_error(family: str, key: str, value: object) -> None:
    values = {**SMALL, "model_type": family, key: value}
    try:
        graph = model_from_config(Config("f", values), "f")
    except MeshwrightError as error:
        assert str(error).startswith("f: ")
    else:
        assert graph.parameters > 0
        assert graph.num_layers == len(graph.block_layers) + 2
