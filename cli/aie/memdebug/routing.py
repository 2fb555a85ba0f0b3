"""Which of its kinds of work a command line means: `aie memdebug` is a command, but its first word may be another.

Typer knows commands and groups of commands. `aie memdebug smollm2-135m`, `aie memdebug watch` and `aie memdebug --
train.py --json out` are neither, so this command looks at its words before they are parsed: a subcommand takes over,
and what follows `--` is a program with arguments of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand

from aie_engine import InvalidInputError

__all__ = ["Router", "check_flags", "mode_of", "script_of"]

_SCRIPT = "aie.memdebug.script"
_MODES: Mapping[str, str] = {"url": "--url", "drill": "--drill", "script": "a program after --", "traffic": "a model"}
_COMMON = {"json_path", "snapshot", "flamegraph", "memory_viz"}
_TRAFFIC = {"model", "requests", "concurrency", "seed", "cancel", "fail", "fail_if_growth", "after"}
_FITS: Mapping[str, set[str]] = {
    "traffic": _COMMON | _TRAFFIC | {"kernels", "record", "perfetto"},
    "url": _COMMON | _TRAFFIC | {"url", "api_key"},
    "drill": {"drill", "requests", "seed", "json_path"},
    "script": _COMMON | {"record", "perfetto"},
}
_SUBCOMMANDS = ("watch", "diff", "replay")
_NEEDS_REQUESTS = {"concurrency", "seed", "cancel", "fail", "fail_if_growth", "after"}


class Router(TyperCommand):
    """Hands over to a subcommand if the first word names one; takes what follows `--` aside."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in _SUBCOMMANDS:
            command = _subcommand(args[0])
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def _subcommand(name: str) -> Any:
    """Made when it is asked for: the command line starts faster without what it imports."""
    from aie.memdebug import files, watch

    commands: dict[str, Callable[..., None]] = {"watch": watch.watch, "diff": files.diff, "replay": files.replay}
    inner = typer.Typer(rich_markup_mode=None)
    inner.command(name)(commands[name])
    return typer.main.get_command(inner)


def script_of(ctx: typer.Context) -> tuple[str, ...] | None:
    """The program and its arguments behind `--`; None where there is no `--`."""
    script: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return script


def mode_of(ctx: typer.Context) -> str:
    """traffic, url, drill or script. Raises `InvalidInputError` where the words contradict one another."""
    typed = _typed(ctx)
    chosen: list[str] = [mode for mode in ("url", "drill") if mode in typed]
    if script_of(ctx) is not None:
        chosen.append("script")
        if not script_of(ctx):
            raise InvalidInputError("Nothing follows --; name a Python program, as in `aie memdebug -- train.py`.")
    if len(chosen) > 1:
        raise InvalidInputError(f"{_MODES[chosen[0]]} and {_MODES[chosen[1]]} are two kinds of work; choose one.")
    mode = chosen[0] if chosen else "traffic"
    check_flags(mode, typed)
    return mode


def check_flags(mode: str, typed: Mapping[str, str]) -> None:
    """Raises `InvalidInputError` for a flag that means nothing in this mode. `typed`: parameter → as it is written."""
    for name, flag in typed.items():
        if name not in _FITS[mode]:
            raise InvalidInputError(f"{flag} does not go with {_MODES[mode]}.", param=name)
        if mode == "url" and name in _NEEDS_REQUESTS and "requests" not in typed:
            raise InvalidInputError(f"{flag} is about traffic; give --requests with it.", param=name)


def _typed(ctx: typer.Context) -> dict[str, str]:
    """The parameters that the person typed, with how they are written."""
    typed = {}
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name and source is not None and source.name == "COMMANDLINE":
            typed[param.name] = param.opts[0] if param.param_type_name == "option" else "MODEL"
    return typed
