"""``meshwright model``: what a model is, before anything is split."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.errors import ExitCode, guarded
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import flops_to_gflops, flops_to_mflops

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.planner.model_summary import ModelSummary

LONGEST = 2_000_000_000
LEGEND = (
    "Of one layer: parameters, MFLOPs forward for a token, and bytes kept for the backward pass for a token "
    "under each recompute mode (16 bits, one device)."
)


@guarded
def model(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Preset name, config.json, its folder, or YAML.", show_default=False
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            "--seq-len", metavar="N", help="Tokens per sequence; 4,096 by default.", show_default=False
        ),
    ] = None,
    unfused: Annotated[
        bool,
        typer.Option("--unfused-attention", help="Count attention scores kept in memory (no flash kernel)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Show a model's layers, parameters, FLOPs and activation bytes; without a name, list the presets."""
    from meshwright.planner.importers import load_model
    from meshwright.planner.model_summary import summarise

    if name is None:
        return _list_presets(as_json=as_json)
    if sequence_length is not None and not 1 <= sequence_length <= LONGEST:
        raise MeshwrightError(f"--seq-len: {sequence_length} is not between 1 and {LONGEST} tokens")
    summary = summarise(load_model(name), sequence_length, flash_attention=not unfused)
    if as_json:
        from meshwright.cli.tables import write_json

        write_json(_as_data(summary))
    else:
        _show(summary)
    return ExitCode.FOUND


def _list_presets(*, as_json: bool) -> ExitCode:
    """Print the names of the built-in models."""
    from meshwright.cli.tables import plain, screen, write_json
    from meshwright.planner.importers import preset_names

    if as_json:
        write_json({"presets": preset_names()})
    else:
        screen().print(plain("  ".join(preset_names())))
    return ExitCode.FOUND


def _as_data(summary: "ModelSummary") -> dict[str, Any]:
    """Return the summary as plain data, nothing rounded."""
    graph = summary.graph
    return {
        "name": graph.name,
        "family": graph.family,
        "block_class": graph.block_class,
        "layers": graph.num_layers,
        "hidden_size": graph.hidden_size,
        "vocab_size": graph.vocab_size,
        "max_sequence_length": graph.max_sequence_length,
        "tied": bool(graph.tied),
        "parameters": graph.parameters,
        "active_parameters": graph.parameters,
        "sequence_length": summary.sequence_length,
        "flash_attention": summary.flash_attention,
        "forward_flops_per_token": summary.forward_flops_per_token,
        "training_flops_per_token": summary.training_flops_per_token,
        "activation_bytes_per_token": summary.activation_bytes_per_token,
        "kinds": [
            {
                "name": kind.name,
                "role": kind.role,
                "layers": kind.layers,
                "parameters_per_layer": kind.parameters,
                "forward_flops_per_token": kind.forward_flops_per_token,
                "activation_bytes_per_token": kind.activation_bytes_per_token,
            }
            for kind in summary.kinds
        ],
        "attributes": graph.attributes,
        "notes": graph.notes,
    }


def _show(summary: "ModelSummary") -> None:
    """Print facts, one line for each layer kind, totals and notes."""
    from meshwright.cli.tables import bullets, facts, plain, screen, section

    graph, sizes = summary.graph, summary.graph.attributes
    console = screen()
    console.print(plain(graph.name, "bold"))
    heads = f"{sizes['heads']} query heads, {sizes['kv_heads']} key/value heads of {sizes['head_dim']}"
    rows = [
        ("family", graph.family),
        ("parameters", f"{graph.parameters:,}" + (" (tied embeddings)" if graph.tied else "")),
        ("sizes", f"hidden {graph.hidden_size:,}, ffn {sizes['ffn']:,}, vocabulary {graph.vocab_size:,}"),
        ("attention", heads),
        ("positions", f"{sizes['positions']}, {_length(graph.max_sequence_length)}"),
        ("a token costs", _flops(summary)),
        ("a token keeps", _kept(summary)),
    ]
    console.print(facts(rows))
    legend = plain(LEGEND, "dim")
    console.print(*section("Layers", _kind_table(summary), legend), sep="\n")
    if graph.notes:
        console.print(*section("Assumed", bullets(graph.notes)), sep="\n")


def _flops(summary: "ModelSummary") -> str:
    """Return what a token costs, and how that is counted."""
    forward = flops_to_gflops(summary.forward_flops_per_token)
    training = flops_to_gflops(summary.training_flops_per_token)
    counted = f"sequence {summary.sequence_length:,}, causal attention halved, no recomputation"
    return f"{forward:,.2f} GFLOPs forward, {training:,.2f} forward and backward ({counted})"


def _kept(summary: "ModelSummary") -> str:
    """Return what the whole model keeps for a token, by recompute mode."""
    kept = summary.activation_bytes_per_token.items()
    return ", ".join(f"{n_bytes:,.0f} bytes ({mode})" for mode, n_bytes in kept)


def _length(tokens: int | None) -> str:
    return "any length" if tokens is None else f"up to {tokens:,} tokens"


def _kind_table(summary: "ModelSummary") -> "Table":
    """Return a line for each kind."""
    from meshwright.cli.tables import grid
    from meshwright.costmodels.recompute import MODES

    headers = ("Kind", "Layers", "Parameters", "MFLOPs", *MODES)
    table = grid(*headers, right=range(1, len(headers)))
    table.columns[0].no_wrap = True
    table.padding = (0, 1, 0, 0)  # the longest names and numbers fit 80 columns
    for kind in summary.kinds:
        kept = (f"{kind.activation_bytes_per_token[mode]:,.0f}" for mode in MODES)
        flops = f"{flops_to_mflops(kind.forward_flops_per_token):,.1f}"
        table.add_row(kind.name, f"{kind.layers}", f"{kind.parameters:,}", flops, *kept)
    return table
