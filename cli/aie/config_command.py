"""`aie config`: every setting of `aie serve`, its value here, and who set it."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from aie.console import write_json

__all__ = ["config", "register"]


def config(
    config_file: Annotated[Path | None, typer.Option("--config", help="TOML file to read, as for `aie serve`.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the settings to this file.")] = None,
) -> None:
    """Show the settings that `aie serve` would use: defaults, then the file, then AIE_* variables."""
    from rich.console import Console
    from rich.table import Table

    from aie.settings import ServeSettings, load_settings

    settings = load_settings({}, config_file=config_file)
    view = Table()
    for column in ("setting", "value", "from"):
        view.add_column(column, overflow="fold")
    rows = {}
    for entry in fields(ServeSettings):
        if entry.name == "origins":
            continue
        value = getattr(settings, entry.name)
        shown = "***" if entry.name == "api_key" and value else value
        origin = settings.origins.get(entry.name, "default")
        rows[entry.name] = {"value": shown, "from": origin}
        view.add_row(entry.name, "–" if shown in (None, ()) else str(shown), origin)
    Console().print(view)
    if json_path is not None:
        write_json(json_path, rows)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("config", short_help="Show every setting and who set it.")(config)
