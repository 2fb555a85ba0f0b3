"""`aie version`, and the versions that every report names."""

from importlib import metadata

import typer

__all__ = ["register", "version", "versions"]


def versions() -> dict[str, str]:
    """Package → version, of what decides speed and results."""
    return {name: metadata.version(name) for name in ("aie", "numpy", "tokenizers")}


def show_and_exit(wanted: bool) -> None:
    """What `aie --version` does."""
    if wanted:
        version()
        raise typer.Exit


def version() -> None:
    """Print the versions of aie and of what it stands on."""
    print(" · ".join(f"{name} {number}" for name, number in versions().items()))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("version", short_help="Print versions.")(version)
