"""`aie load`: what is in a model file, the graph that it becomes, and what that will take."""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, format_bytes, write_file, write_json

if TYPE_CHECKING:
    from aie_loader import Graph, Model, Predictor

__all__ = ["load", "register"]

_STEP_TOKENS = 512  # of the default `max_batch_tokens`


def load(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, file or folder. [the default model]")
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph in the order in which it runs.")] = False,
    graph_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Draw the graph: .svg, .dot, .mmd (Mermaid), .json or .txt, by the suffix."),
    ] = None,
    only: Annotated[str, typer.Option(metavar="PREFIX", help="Show only nodes whose names begin so, as blk.0.")] = "",
    unfused: Annotated[bool, typer.Option("--unfused", help="The graph as the file has it, before any pass.")] = False,
    lenient: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Let a named difference from the format's rules through; may be repeated."),
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Read a model file and show its tensors, its graph before and after the passes, its memory and its load time.

    Nothing is computed and no weight is read: what is not printed stays on the disk.

    \b
    aie load                                       the default model
    aie load model.gguf --tensors                  every tensor: name, type, shape, bytes
    aie load model/ --graph --only blk.0.          one layer of the graph, as text
    aie load model/ --graph-file layer.svg --only blk.0.
    """
    from aie.assemble import find_model
    from aie_loader import find_leniency, is_predictor, load_model, load_predictor

    draw = _drawer(graph_file) if graph_file is not None else None
    for path, flag in ((graph_file, "--graph-file"), (json_path, "--json")):
        if path is not None:
            check_writable(path, flag=flag)
    found, allowed = find_model(model), find_leniency(lenient or ())
    loaded = (load_predictor if is_predictor(found, lenient=allowed) else load_model)(found, lenient=allowed)
    try:
        _show(loaded, unfused, graph, only, tensors, graph_file, draw, json_path)
    finally:
        loaded.close()


def _show(
    loaded: "Model | Predictor",
    unfused: bool,
    graph: bool,
    only: str,
    tensors: bool,
    graph_file: Path | None,
    draw: "Callable[[Graph, str], str] | None",
    json_path: Path | None,
) -> None:
    from aie_loader import fuse
    from aie_loader.rendering import render_text, visible

    fused = fuse(loaded.graph)
    shown = loaded.graph if unfused else fused
    facts, types = _facts(loaded, fused), _types(loaded.graph)
    _print_facts(facts, types, loaded.load_phases)
    if tensors:
        for name, weight in loaded.graph.weights.items():
            shape = "×".join(map(str, weight.shape))
            print(f"{visible(name)}  {weight.dtype.name}  {shape}  {format_bytes(weight.nbytes)}")
    if graph:
        print(render_text(shown, only))
    if graph_file is not None and draw is not None:
        write_file(graph_file, draw(shown, only).encode(), flag="--graph-file")
    if json_path is not None:
        document = {
            **facts,
            "weight_bytes": loaded.weight_bytes,
            "load_s": loaded.load_seconds,
            "load_phases_s": dict(loaded.load_phases),
            "kv_bytes_per_token": _kv_bytes_per_token(loaded),
            "types": {
                kind: dict(zip(("tensors", "elements", "bytes"), row, strict=True)) for kind, row in types.items()
            },
        }
        write_json(json_path, document)


def _facts(loaded: "Model | Predictor", fused: "Graph") -> dict[str, object]:
    from aie.predictor_facts import predictor_facts
    from aie_loader import Predictor, bound_nbytes, lifetimes, plan_memory

    if isinstance(loaded, Predictor):
        return predictor_facts(loaded, fused)
    config = loaded.config
    lives = lifetimes(fused.sorted(), fused.outputs, bound_nbytes(fused, T=_STEP_TOKENS, R=1))
    windows = sum(window is not None for window in config.windows)
    return {
        "file": str(loaded.path),
        "format": loaded.format,
        "architecture": config.architecture,
        "parameters": f"{sum(prod(weight.shape) for weight in loaded.graph.weights.values()):,}",
        "layers": f"{config.num_layers}, {windows} of them with a window" if windows else config.num_layers,
        "hidden": config.hidden_size,
        "feed-forward": config.intermediate_size,
        "heads": f"{config.num_heads} query, {config.num_kv_heads} key/value, {config.head_dim} wide",
        "vocabulary": config.vocab_size,
        "context": config.max_position_embeddings,
        "weights": format_bytes(loaded.weight_bytes),
        "KV cache per token (fp32)": format_bytes(_kv_bytes_per_token(loaded)),
        "graph": f"{len(loaded.graph.nodes)} nodes, {len(fused.nodes)} after the passes",
        f"activations of {_STEP_TOKENS} tokens of one prompt": (
            f"{format_bytes(plan_memory(lives).total_bytes)} as planned by liveness, "
            f"{format_bytes(sum(life.nbytes for life in lives))} if each value had its own place"
        ),
    }


def _kv_bytes_per_token(loaded: "Model | Predictor") -> int:
    """0 for a model that keeps no cache, because it does not generate."""
    from aie_loader import Predictor

    if isinstance(loaded, Predictor):
        return 0
    config = loaded.config
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4


def _types(graph: "Graph") -> dict[str, tuple[int, int, int]]:
    """Element type → (tensors, elements, bytes)."""
    counts: dict[str, tuple[int, int, int]] = {}
    for weight in graph.weights.values():
        number, elements, size = counts.get(weight.dtype.name, (0, 0, 0))
        counts[weight.dtype.name] = (number + 1, elements + prod(weight.shape), size + weight.nbytes)
    return dict(sorted(counts.items()))


def _print_facts(
    facts: Mapping[str, object], types: Mapping[str, tuple[int, int, int]], phases: Mapping[str, float]
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from aie_loader.rendering import visible

    console = Console()
    for name, value in facts.items():
        shown = escape(visible(str(value)))  # labels, names and paths are a stranger's texts, not ours to obey
        console.print(f"[bold]{name}[/bold]: {shown}", highlight=False, soft_wrap=True)
    parts = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in phases.items())
    total = sum(phases.values()) * 1e3
    console.print(
        f"[bold]load time[/bold]: {total:.0f} ms ({parts}); weights stay memory-mapped", highlight=False, soft_wrap=True
    )
    view = Table()
    for column in ("type", "tensors", "elements", "bytes", "bits per element"):
        view.add_column(column, justify="left" if column == "type" else "right")
    for kind, (number, elements, size) in types.items():
        view.add_row(kind, str(number), f"{elements:,}", format_bytes(size), f"{8 * size / max(elements, 1):.2f}")
    console.print(view)


def _drawer(path: Path) -> "Callable[[Graph, str], str]":
    """How to draw into a file of this name. InvalidInputError for a suffix that names no way of drawing."""
    from aie_engine import InvalidInputError
    from aie_loader.rendering import render_dot, render_json, render_mermaid, render_svg, render_text

    ways = {".svg": render_svg, ".dot": render_dot, ".mmd": render_mermaid, ".json": render_json, ".txt": render_text}
    way = ways.get(path.suffix.lower())
    if way is None:
        raise InvalidInputError(
            f"--graph-file {path.name} names no way of drawing; end it in {', '.join(ways)}.", param="graph_file"
        )
    return way


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("load", short_help="Show what is in a model file.")(load)
