"""``meshwright model`` for people and for machines."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meshwright.cli.model import model
from meshwright.costmodels.recompute import MODES
from meshwright.planner.importers import preset_names

APP = typer.Typer(rich_markup_mode=None)
APP.command("model")(model)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(APP, list(arguments), env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.output


def test_page_shows_layers_parameters_flops_and_bytes() -> None:
    page = run("llama-3.1-8b", "--seq-len", "8192")
    for part in ("8,030,261,248", "decoder", "218,112,000", "139,392", "8,192", "none", "selective", "full"):
        assert part in page
    assert all(len(line) <= 80 for line in page.splitlines())


@pytest.mark.parametrize(
    "name", ["gpt-1t", "gemma-3-27b", "llama-3.1-405b", "bloom-176b", "deepseek-v3", "gpt-oss-120b"]
)
def test_no_name_or_number_is_broken_over_lines(name: str) -> None:
    page = run(name)
    kinds = json.loads(run(name, "--json"))["kinds"]
    for kind in kinds:
        row = next(line for line in page.splitlines() if line.startswith(f"{kind['name']} "))
        kept = kind["activation_bytes_per_token"]
        for number in (kind["parameters_per_layer"], kept["none"], kept["selective"], kept["full"]):
            assert f"{number:,.0f}" in row.split()


def test_page_says_what_was_assumed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "novel\x1b[31m", "vocab_size": 100, **sizes}))
    page = run(str(path))
    assert "Assumed" in page
    assert "Llama-like" in page
    assert "\x1b[31m" not in page


def test_json_holds_the_numbers_unrounded() -> None:
    data = json.loads(run("gemma-2-9b", "--json"))
    assert data["parameters"] == data["active_parameters"] == 9_241_705_984
    assert data["tied"] is True
    assert sum(k["layers"] * k["parameters_per_layer"] for k in data["kinds"]) == data["parameters"]
    assert set(data["activation_bytes_per_token"]) == set(MODES)


def test_experts_and_what_a_token_visits_of_them_are_told() -> None:
    page = run("deepseek-v3")
    for part in ("671,026,404,352", "37,552,282,624 active", "256 experts", "8 a token", " moe "):
        assert part in page
    data = json.loads(run("deepseek-v3", "--json"))
    assert (data["parameters"], data["active_parameters"]) == (671_026_404_352, 37_552_282_624)
    assert data["mtp_parameters"] > 11e9
    more = json.loads(run("deepseek-v3", "--json", "--mtp"))
    assert more["parameters"] == data["parameters"] + data["mtp_parameters"]
    assert more["mtp_parameters"] == data["mtp_parameters"]
    assert (data["mtp_included"], more["mtp_included"]) == (False, True)
    for option, word in (((), "more"), (("--mtp",), "of them")):
        page = " ".join(run("deepseek-v3", *option).split())
        assert f"{data['mtp_parameters']:,} {word} for multi-token prediction" in page


def test_images_are_counted_where_they_are_given() -> None:
    path = str(Path(__file__).parents[1] / "data" / "hf_configs" / "Qwen2-VL-7B.json")
    plain, images = (json.loads(run(path, "--json", *extra)) for extra in ((), ("--image-tokens", "1024")))

    def tower(data: dict[str, object]) -> float:
        kinds = {kind["name"]: kind for kind in data["kinds"]}  # type: ignore[attr-defined]
        return float(kinds["tower"]["forward_flops_per_token"])

    assert tower(plain) == 0 < tower(images)
    assert "reads no images" in run("gpt2", "--image-tokens", "4", code=2)


def test_unfused_attention_keeps_more() -> None:
    flash, unfused = (json.loads(run("gpt2", "--json", *extra)) for extra in ((), ("--unfused-attention",)))
    assert unfused["activation_bytes_per_token"]["none"] > flash["activation_bytes_per_token"]["none"]
    assert unfused["activation_bytes_per_token"]["full"] == flash["activation_bytes_per_token"]["full"]


def test_without_a_name_the_presets_are_listed() -> None:
    assert set(run().split()) == set(preset_names())
    assert json.loads(run("--json"))["presets"] == preset_names()


@pytest.mark.parametrize("arguments", [("no-such-model",), ("gpt2", "--seq-len", "0")])
def test_bad_input_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert "error: " in run(*arguments, code=2)
