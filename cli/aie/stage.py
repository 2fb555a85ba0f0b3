"""`aie stage N`: the standalone demonstration of a stage."""

import importlib
from typing import Annotated

import typer

__all__ = ["register", "stage"]

_PACKAGES = {
    1: "aie_tensor",
    2: "aie_loader",
    3: "aie_scheduler",
    4: "aie_engine",
    5: "aie_server",
    6: "aie_reliability",
}


def stage(
    number: Annotated[
        int, typer.Argument(min=1, max=6, help="1 tensor, 2 loader, 3 scheduler, 4 engine, 5 server, 6 reliability")
    ],
) -> None:
    """Run one stage by itself and see in real numbers what it is about (as `python -m aie_tensor` and so on do)."""
    main = importlib.import_module(f"{_PACKAGES[number]}.__main__").main
    raise typer.Exit(main([]))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("stage", short_help="Run the demonstration of one stage.")(stage)
