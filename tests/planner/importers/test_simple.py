"""Our own short form: the fields of a decoder in YAML."""

from pathlib import Path

import pytest

from meshwright.planner.importers import load_model
from meshwright.planner.importers.config import ModelConfigError

LLAMA = "{hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256"


def yaml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_llama_in_one_line(tmp_path: Path) -> None:
    graph = load_model(yaml_file(tmp_path, LLAMA + "}"))
    assert (graph.name, graph.family) == ("mine", "yaml")
    assert graph.kinds == load_model("llama-3.1-8b").kinds


def test_switches_reach_the_graph(tmp_path: Path) -> None:
    text = LLAMA + ", tied: true, gated: false, windows: [64, null], norms: [pre_attention], parallel: true, "
    text += (
        "attention_dropout: 0.1, embedding_dim: 512, positions: learned, position_rows: 100, qk_norm: head, "
    )
    text += "max_sequence_length: 100}"
    graph = load_model(yaml_file(tmp_path, text))
    names = {op.name for kind in graph.kinds for op in kind.operators}
    assert {"project_in", "project_out", "positions", "qk_norm", "up"} <= names
    assert "rotary" not in names
    assert [graph.kinds[k].name for k in graph.layer_kinds[1:3]] == ["decoder.sliding", "decoder.global"]
    assert graph.tied == ((0, 33),)
    assert graph.max_sequence_length == 100


def test_deepseek_v3_in_a_few_lines(tmp_path: Path) -> None:
    sizes = "{hidden: 7168, layers: 61, heads: 128, kv_heads: 128, head_dim: 192, ffn: 18432, vocab: 129280"
    mixer = "{kv_rank: 512, nope: 128, rope: 64, value: 128, q_rank: 1536}"
    experts = "{experts: 256, topk: 8, width: 2048, shared: 2048, node_limit: 4, groups: 8, times: 58}"
    text = f"{sizes}, mtp_layers: 1, mixers: [{mixer}], feeds: [{{times: 3}}, {experts}]}}"
    graph, preset = load_model(yaml_file(tmp_path, text)), load_model("deepseek-v3")
    assert graph.kinds == preset.kinds
    assert graph.mtp_parameters == preset.mtp_parameters


def test_layers_may_lack_a_mixer_or_a_feed_and_carry_an_indexer(tmp_path: Path) -> None:
    latent = "{kv_rank: 64, nope: 32, rope: 16, value: 32, q_rank: 96, index: {heads: 2, dim: 16, topk: 8}}"
    mixers = f"[{{window: 64, gate: head, rotary_share: 0.5}}, null, {latent}, {{sinks: true}}]"
    graph = load_model(
        yaml_file(tmp_path, f"{LLAMA}, mixers: {mixers}, feeds: [{{width: 100}}, {{}}, null, null]}}")
    )
    assert [graph.kinds[k].name for k in graph.layer_kinds[1:5]] == [
        "decoder.sliding.dense100",
        "decoder.dense",
        "decoder.latent.sparse",
        "decoder.attention",
    ]
    names = {op.name for kind in graph.kinds for op in kind.operators}
    assert {"gate", "index", "kv_up"} <= names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("mixers: 3", "mixers.*list"),
        ("feeds: []", "feeds.*at least one"),
        ("feeds: [3]", "feeds.*mapping"),
        ("feeds: [{experts: 8}]", "feeds.*required: topk, width"),
        ("feeds: [{experts: 8, topk: 9, width: 64}]", "experts of a token.*8"),
        ("feeds: [{experts: 8, topk: 2, width: 64, depth: 3}]", "feeds.*depth.*shared_gate"),
        ("feeds: [{experts: 8, topk: 0, width: 64}]", "topk"),
        ("feeds: [{times: 100000}]", "times"),
        ("feeds: [{times: 9000}, {times: 9000}]", "feeds.*10,000"),
        ("mixers: [{window: true}]", "window"),
        ("mixers: [{sinks: 1}]", "sinks"),
        ("mixers: [{gate: wide}]", "gate.*feature or head"),
        ("mixers: [{rotary_share: 2}]", "rotary_share"),
        ("mixers: [{}], windows: [64]", "windows.*mixers.*each its window"),
        ("mixers: [{window: 64, chunk: 64}]", "chunk.*window"),
        ("mixers: [{times: 33}]", "mixers.*33.*at most 32"),
        ("mixers: [{times: 3}, {window: 16, times: 30}]", "mixers.*33.*at most 32"),
        (f"feeds: [{', '.join(['{}'] * 33)}]", "feeds.*33.*at most 32"),
        (f"windows: [{', '.join(['64'] * 33)}]", "windows.*33.*at most 32"),
        ("feeds: [{times: 34}], mtp_layers: 2", "feeds.*34.*at most 32.*one for multi-token"),
        ("mtp_layers: 10001", "mtp_layers.*10,000"),
        ("position_rows: 64", "position_rows.*learned"),
        ("mixers: [{kv_heads: 3}]", "key/value heads of a layer"),
        ("mixers: [{kv_rank: 64}]", "required: nope, rope, value"),
        ("mixers: [{kv_rank: 64, nope: 8, rope: 8, value: 8, index: 3}]", "index.*heads, dim and topk"),
    ],
)
def test_sublayers_that_make_no_sense_are_refused(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(ModelConfigError, match=f"(?s)mine.yaml.*{names}"):
        load_model(yaml_file(tmp_path, f"{LLAMA}, {text}}}"))


def test_an_entry_behind_the_layers_is_the_prediction_layers(tmp_path: Path) -> None:
    text = f"{LLAMA}, mtp_layers: 2, feeds: [{{times: 32}}, {{width: 64}}]}}"
    plain = f"{LLAMA}, mtp_layers: 2}}"
    graph, wider = (load_model(yaml_file(tmp_path, t)) for t in (text, plain))
    assert graph.kinds == wider.kinds
    assert 0 < graph.mtp_parameters < wider.mtp_parameters


def test_a_config_in_yaml_is_a_config(tmp_path: Path) -> None:
    text = "{model_type: gpt2, n_layer: 24, n_embd: 1024, n_head: 16}"
    assert load_model(yaml_file(tmp_path, text)).parameters == 354_823_168


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "mapping"),
        ("[1, 2]", "mapping"),
        ("{a: [}", "valid YAML"),
        ("[" * 5000, "YAML"),
        ("!!python/object/apply:os.system ['true']", "YAML"),
        ("{hidden: 64}", "layers, heads, ffn, vocab"),
        (LLAMA + ", hiden: 3}", "hiden.*known: name, hidden"),
        (LLAMA + ", 7: 8}", "key.*7.*text"),
        (LLAMA + ", layers: 3}", "layers"),
        (LLAMA + ", layers: many}", "layers"),
        (LLAMA + ", gated: 1}", "gated"),
        (LLAMA + ", hidden_dropout: 2}", "hidden_dropout"),
        (LLAMA + ", positions: spiral}", "positions"),
        (LLAMA + ", qk_norm: [head]}", "qk_norm.*null"),
        (LLAMA + ", norms: pre_mlp}", "norms"),
        (LLAMA + ", norms: [middle]}", "norms"),
        (LLAMA + ", windows: []}", "windows"),
        (LLAMA + ", windows: [0]}", "windows"),
        (LLAMA + ", position_rows: null}", "position_rows"),
        (LLAMA + ", positions: learned}", "position_rows"),
        (LLAMA + ", max_sequence_length: 0}", "max_sequence_length"),
        (LLAMA + ", embedding_dim: 0}", "embedding_dim"),
        ("{hidden: 65, layers: 1, heads: 4, ffn: 8, vocab: 9}", "head_dim"),
        ("{hidden: 64, layers: 1, heads: 4, kv_heads: 3, ffn: 8, vocab: 9}", "key/value heads"),
        ("{hidden: 1, layers: 1, heads: 1, ffn: 101, vocab: 9}", "ffn"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nhidden: &c [*b, *b]\nwindows: *c", "anchor"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(ModelConfigError, match=names):
        load_model(yaml_file(tmp_path, text))


def test_aliases_that_grow_without_bound_stay_a_short_message(tmp_path: Path) -> None:
    lines = ["hidden: &l0 [1, 1]"] + [f"f{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 40)]
    text = "\n".join(lines).replace("f39:", "windows:") + "\n"
    with pytest.raises(ModelConfigError) as caught:
        load_model(yaml_file(tmp_path, text))
    assert len(str(caught.value)) < 2000


def test_a_long_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="at most"):
        load_model(yaml_file(tmp_path, "#" * 70_000))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Who mends a file mends it once: values, missing fields and misspelt ones stand in one message."""
    text = "{name: [1], hiden: 64, layers: many, heads: -1, gated: 1, norms: [middle]}"
    with pytest.raises(ModelConfigError) as caught:
        load_model(yaml_file(tmp_path, text))
    told = str(caught.value)
    for part in (
        "name is [1]",
        "layers is 'many'",
        "heads is -1",
        "gated is 1",
        "norms is",
        "missing fields hidden, ffn, vocab",
    ):
        assert part in told
    assert "hiden (hidden?)" in told
    assert told.count("mine.yaml") == 1


@pytest.mark.parametrize("text", [LLAMA + "}", "{model_type: gpt2}"])
def test_a_model_may_say_its_name_and_has_its_file_s_otherwise(tmp_path: Path, text: str) -> None:
    assert load_model(yaml_file(tmp_path, text)).name == "mine"
    assert load_model(yaml_file(tmp_path, text.replace("{", "{name: ours, ", 1))).name == "ours"
    for wrong in ("7", "''", "[a]", "null", '"a\\nb"'):
        with pytest.raises(ModelConfigError, match="name is"):
            load_model(yaml_file(tmp_path, text.replace("{", "{name: " + wrong + ", ", 1)))
