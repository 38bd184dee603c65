"""``meshwright model``: what a model is, before anything is split."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.amounts import length
from meshwright.cli.errors import ExitCode, guarded
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import flops_to_gflops, flops_to_mflops

if TYPE_CHECKING:
    from rich.table import Table

    from meshwright.planner.graph import ModelGraph
    from meshwright.planner.model_summary import ModelSummary

LONGEST = 2_000_000_000
LEGEND = (
    "How many layers (#), and of one: parameters, MFLOPs forward for a token, and bytes kept for a token for "
    "the backward pass under each recompute mode (16 bits, one device)."
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
        str | None,
        typer.Option(
            "--seq-len", metavar="N", help="Tokens per sequence; 4,096 by default.", show_default=False
        ),
    ] = None,
    unfused: Annotated[
        bool,
        typer.Option("--unfused-attention", help="Count attention scores kept in memory (no flash kernel)."),
    ] = False,
    image_tokens: Annotated[
        str | None,
        typer.Option(
            "--image-tokens", metavar="N", help="Tokens that images (or audio) add.", show_default=False
        ),
    ] = None,
    mtp: Annotated[
        bool,
        typer.Option("--mtp", help="Count the multi-token-prediction layers that the file names as well."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Show a model's layers, parameters, FLOPs and activation bytes; without a name, list the presets."""
    from meshwright.planner.importers import load_model
    from meshwright.planner.model_summary import summarise

    if name is None:
        return _list_presets(as_json=as_json)
    tokens, added = (
        _checked(option, text)
        for option, text in (("--seq-len", sequence_length), ("--image-tokens", image_tokens))
    )
    graph = load_model(name, mtp=mtp)
    summary = summarise(graph, tokens, flash_attention=not unfused, image_tokens=added)
    if as_json:
        from meshwright.cli.tables import write_json

        write_json(_as_data(summary))
    else:
        _show(summary)
    return ExitCode.FOUND


def _checked(option: str, text: str | None) -> int | None:
    """Return the tokens that an option says."""
    if text is None:
        return None
    tokens = length(text)
    if not isinstance(tokens, int) or not 1 <= tokens <= LONGEST:
        raise MeshwrightError(f"{option}: {text} is no whole number of 1 to {LONGEST} tokens; 8k is 8192")
    return tokens


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
        "active_parameters": graph.active_parameters,
        "mtp_parameters": graph.mtp_parameters,
        "mtp_included": graph.mtp_included,
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
        "notes": summary.notes,
    }


def _show(summary: "ModelSummary") -> None:
    """Print facts, one line for each layer kind, totals and notes."""
    from meshwright.cli.tables import bullets, facts, plain, screen, section

    graph = summary.graph
    console = screen()
    console.print(plain(graph.name, "bold"))
    rows = [
        ("family", graph.family),
        ("parameters", _parameters(graph)),
        ("sizes", _sizes(graph)),
        *_attention(graph),
        ("positions", f"{graph.attributes.get('positions', 'none')}, {_length(graph.max_sequence_length)}"),
        ("a token costs", _flops(summary)),
        ("a token keeps", _kept(summary)),
    ]
    console.print(facts(rows))
    legend = plain(LEGEND, "dim")
    console.print(*section("Layers", _kind_table(summary), legend), sep="\n")
    if summary.notes:
        console.print(*section("Assumed", bullets(summary.notes)), sep="\n")


def _parameters(graph: "ModelGraph") -> str:
    """Return all parameters, what one token passes through, and what is told apart."""
    words = f"{graph.parameters:,}" + (" (tied embeddings)" if graph.tied else "")
    if graph.active_parameters < graph.parameters:
        words += f", {graph.active_parameters:,} active"
    if graph.mtp_parameters:
        relation = "of them" if graph.mtp_included else "more"
        words += f", {graph.mtp_parameters:,} {relation} for multi-token prediction"
    return words


def _sizes(graph: "ModelGraph") -> str:
    """Return the widths and, where there are any, the experts."""
    sizes = graph.attributes
    ffn = f"ffn {sizes['ffn']:,}, " if sizes.get("ffn") else ""
    words = f"hidden {graph.hidden_size:,}, {ffn}vocabulary {graph.vocab_size:,}"
    if "experts" not in sizes:
        return words
    shared = f", shared {sizes['shared']:,}" if sizes["shared"] else ""
    return f"{words}, {sizes['experts']} experts of {sizes['expert_ffn']:,}, {sizes['topk']} a token{shared}"


def _attention(graph: "ModelGraph") -> list[tuple[str, str]]:
    """Return the line about heads, none for a model without attention."""
    sizes = graph.attributes
    if not sizes.get("heads"):
        return []
    heads = f"{sizes['heads']} query heads, {sizes['kv_heads']} key/value heads of {sizes['head_dim']}"
    return [("attention", heads)]


def _flops(summary: "ModelSummary") -> str:
    """Return what a token costs, and how that is counted."""
    forward = flops_to_gflops(summary.forward_flops_per_token)
    training = flops_to_gflops(summary.training_flops_per_token)
    counted = f"sequence {summary.sequence_length:,}, causal attention halved, no recomputation"
    return f"{forward:,.2f} GFLOPs forward, {training:,.2f} forward and backward ({counted})"


def _shown(summary: "ModelSummary") -> tuple[str, ...]:
    """Return the recompute modes that the page shows: ``moe`` where it differs, ``offload`` never."""
    kept = summary.activation_bytes_per_token
    return tuple(
        mode for mode in kept if mode != "offload" and (mode != "moe" or kept["moe"] < kept["selective"])
    )


def _kept(summary: "ModelSummary") -> str:
    """Return what the whole model keeps for a token, by recompute mode."""
    kept = summary.activation_bytes_per_token
    return ", ".join(f"{kept[mode]:,.0f} bytes ({mode})" for mode in _shown(summary))


def _length(tokens: int | None) -> str:
    return "any length" if tokens is None else f"up to {tokens:,} tokens"


def _kind_table(summary: "ModelSummary") -> "Table":
    """Return a line for each kind."""
    from meshwright.cli.tables import grid

    modes = _shown(summary)
    headers = ("Kind", "#", "Parameters", "MFLOPs", *modes)
    table = grid(*headers, right=range(1, len(headers)))
    table.padding = (0, int("moe" not in modes), 0, 0)  # numbers fit 80 columns, and names but the longest
    for kind in summary.kinds:
        kept = (f"{kind.activation_bytes_per_token[mode]:,.0f}" for mode in modes)
        flops = f"{flops_to_mflops(kind.forward_flops_per_token):,.1f}"
        table.add_row(kind.name, f"{kind.layers}", f"{kind.parameters:,}", flops, *kept)
    return table
