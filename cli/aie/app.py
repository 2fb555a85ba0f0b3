"""The Typer application: a file per command group."""

from typing import Annotated

import typer

from aie import (
    bench,
    chat,
    config_command,
    convert,
    doctor,
    generate,
    load,
    memdebug,
    models,
    profile,
    quantize,
    reload,
    serve,
    simulate,
    stage,
    top,
    version,
)

__all__ = ["app"]

app = typer.Typer(
    name="aie",
    help="Serve, measure and look into language models: an inference framework and a course in how one is built.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version.show_and_exit, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Options of `aie` itself; what a help text shows is on the application above."""


serve.register(app)
reload.register(app)
bench.register(app)
generate.register(app)
chat.register(app)
models.register(app)
load.register(app)
quantize.register(app)
convert.register(app)
memdebug.register(app)
top.register(app)
profile.register(app)
simulate.register(app)
stage.register(app)
doctor.register(app)
config_command.register(app)
version.register(app)
