"""`aie load`: what is in a model file, and what it will take."""

from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from aie.console import format_bytes, write_json

__all__ = ["load", "register"]


def load(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, .gguf file or safetensors folder. [the default model]")
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph in the order in which it runs.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Read a model file and show its tensors, its graph before and after fusion, its memory and its load time."""
    from rich.console import Console
    from rich.table import Table

    from aie.assemble import find_model
    from aie_loader import fuse, load_model
    from aie_loader.rendering import render_text

    console = Console()
    loaded = load_model(find_model(model))
    try:
        config = loaded.config
        kv_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for weight in loaded.graph.weights.values():
            entry = counts[weight.dtype.name]
            entry[0] += 1
            entry[1] += prod(weight.shape)
            entry[2] += weight.nbytes
        fused = fuse(loaded.graph)
        facts = {
            "file": str(loaded.path),
            "format": loaded.format,
            "architecture": config.architecture,
            "layers": config.num_layers,
            "hidden": config.hidden_size,
            "feed-forward": config.intermediate_size,
            "heads": f"{config.num_heads} query, {config.num_kv_heads} key/value, {config.head_dim} wide",
            "vocabulary": config.vocab_size,
            "context": config.max_position_embeddings,
            "weights": format_bytes(loaded.weight_bytes),
            "KV cache per token (fp32)": format_bytes(kv_bytes),
            "graph": f"{len(loaded.graph.nodes)} nodes, {len(fused.nodes)} after fusion",
            "load time": f"{loaded.load_seconds * 1e3:.0f} ms (weights stay memory-mapped)",
        }
        for name, value in facts.items():
            console.print(f"[bold]{name}[/bold]: {value}", highlight=False, soft_wrap=True)
        view = Table()
        for column in ("type", "tensors", "elements", "bytes"):
            view.add_column(column, justify="left" if column == "type" else "right")
        for name, (number, elements, size) in sorted(counts.items()):
            view.add_row(name, str(number), f"{elements:,}", format_bytes(size))
        console.print(view)
        if tensors:
            for name, weight in loaded.graph.weights.items():
                print(f"{name}  {weight.dtype.name}  {'×'.join(map(str, weight.shape))}  {format_bytes(weight.nbytes)}")
        if graph:
            print(render_text(fused))
        if json_path is not None:
            write_json(
                json_path,
                {
                    **facts,
                    "weight_bytes": loaded.weight_bytes,
                    "load_s": loaded.load_seconds,
                    "kv_bytes_per_token": kv_bytes,
                    "types": {
                        k: dict(zip(("tensors", "elements", "bytes"), v, strict=True)) for k, v in counts.items()
                    },
                },
            )
    finally:
        loaded.close()


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("load", short_help="Show what is in a model file.")(load)
