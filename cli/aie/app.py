"""The `aie` command: one Typer application, a file per command group, and one place where errors become exit codes.

Exit codes: 0 done · 1 the thing measured fell short · 2 wrong usage or input · 3 the environment lacks something.
"""

import os
import sys

import typer

from aie import bench, chat, config_command, doctor, generate, load, memdebug, models, serve, stage, version
from aie_engine import AieError

__all__ = ["app", "main"]

app = typer.Typer(
    name="aie",
    help="Serve, measure and look into language models: an inference framework and a course in how one is built.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

serve.register(app)
bench.register(app)
generate.register(app)
chat.register(app)
models.register(app)
load.register(app)
memdebug.register(app)
stage.register(app)
doctor.register(app)
config_command.register(app)
version.register(app)


def main() -> None:
    """Entry point of the console script. Our own errors are one sentence on standard error, never a traceback."""
    try:
        app()
    except AieError as error:
        print(f"aie: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("aie: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`aie models | head`); that is its right, not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
