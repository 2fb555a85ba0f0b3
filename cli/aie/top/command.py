"""`aie top`: what a server is doing."""

import contextlib
import math
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["register"]

DEFAULT_URL = "http://127.0.0.1:8000"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(top)


def top(
    url: Annotated[str, typer.Argument(help="Any server of models: ours, vLLM, SGLang, llama-server.")] = DEFAULT_URL,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One picture, of an interval, and an end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object per look, on standard output.")] = False,
    request: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Where the time of one request went, by the X-Request-Id of its answer."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="API key, if the server wants one.")] = None,
) -> None:
    """What a server is doing, and where its requests' time goes.

    Queue, batch, KV blocks, prefix cache, guesses, tokens, latencies, and the open requests: on a terminal a picture
    that renews itself, elsewhere a line per model and look; Ctrl-C ends it. Everything is read from /metrics, and from
    aie's own /debug/requests, whose requests say what they wait for and on whose account, and /debug/events: batches
    and why they were cut, preemptions, rejections, restarts.
    """
    from aie.bench.client import Endpoint
    from aie.top.feed import EventFeed
    from aie.top.listening import look_and_listen
    from aie.top.look import explain_request
    from aie.top.watch import JsonLines, Lines, Screen, watch

    if not (math.isfinite(interval) and 0 <= interval <= 3600):
        raise InvalidInputError(f"--interval must be from 0 to 3600 seconds, not {interval:g}.", param="interval")
    if interval == 0 and not once:
        raise InvalidInputError("--interval 0 is for --once: a single look, without rates.", param="interval")
    try:
        endpoint = Endpoint.parse(url, api_key)
    except InvalidInputError:
        raise InvalidInputError(f"{url!r} is no address; give something like {DEFAULT_URL}.", param="url") from None
    if request is not None:
        _explain(explain_request(endpoint, request), as_json=as_json)
        return
    # Ended in whatever way, the terminal gets its own screen and its cursor back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), EventFeed(endpoint) as feed:
        look = partial(look_and_listen, endpoint, feed)
        if as_json:
            watch(look, JsonLines(_write, endpoint.url), interval_s=interval, once=once)
        elif once or sys.stdout.isatty():
            with Screen(_console(), endpoint.url, once=once) as screen:
                watch(look, screen, interval_s=interval, once=once)
        else:
            watch(look, Lines(_write), interval_s=interval)


def _explain(entry: Mapping[str, Any], *, as_json: bool) -> None:
    import json

    from aie.top.explain import explain_lines

    if as_json:
        _write(json.dumps(entry))
        return
    for line in explain_lines(entry):
        _write(line)


def _console() -> "Console":
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def _write(line: str) -> None:
    print(line, flush=True)  # whoever reads the pipe wants it now
