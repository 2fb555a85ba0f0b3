"""`aie memdebug watch`: the screen of a live server, again and again, with what changed in between."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import format_bytes
from aie.memdebug.remote import fetch
from aie.memdebug.show import say, screen
from aie.memdebug.verdict import live_bytes
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_tensor.memdebug import MemorySnapshot

__all__ = ["line", "watch", "watch_server"]

_DEFAULT_URL = "http://127.0.0.1:8000"
_MAX_CHANGES = 5


def watch(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Only this one of the server's models.")] = None,
    url: Annotated[str, typer.Option(help="Server that was started with --memdebug.")] = _DEFAULT_URL,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(help="Looks, after which it ends. [until Ctrl-C]")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
) -> None:
    """Watch a live server's memory: the screen on a terminal, a line for each look elsewhere, both with what changed.

    Try it:  aie serve --memdebug   and, in another terminal,   aie memdebug watch
    """
    if not 0.05 <= every <= 86400:
        raise InvalidInputError(f"--every is {every}; give seconds from 0.05 to 86400.", param="every")
    if count is not None and count < 1:
        raise InvalidInputError("--count must be at least 1.", param="count")
    watch_server(lambda: fetch(url, model, api_key), every_s=every, count=count)


def watch_server(
    look: "Callable[[], dict[str, MemorySnapshot]]",
    *,
    every_s: float,
    count: int | None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """`look` again and again. Raises what it raises."""
    before: dict[str, MemorySnapshot] = {}
    num_looks = 0
    with _shown() as show:
        while True:
            now = look()
            show(before, now)
            before = now
            num_looks += 1
            if num_looks == count:
                return
            sleep(every_s)


def line(name: str, before: "MemorySnapshot | None", now: "MemorySnapshot") -> str:
    """One look in one line: sizes, and in brackets how they changed since the last."""
    parts = [f"{name}: {now.num_requests} requests"]
    for label, size in (("live", live_bytes), ("reserved", _reserved), ("RSS", lambda snapshot: snapshot.rss_bytes)):
        change = "" if before is None or size(now) == size(before) else f" ({_signed(size(now) - size(before))})"
        parts.append(f"{label} {format_bytes(size(now))}{change}")
    return " · ".join(parts)


def _changes(before: "MemorySnapshot", now: "MemorySnapshot") -> list[str]:
    """The groups that changed most, a line each."""
    from aie_tensor.memdebug import diff

    moved = sorted(diff(before, now), key=lambda change: -abs(change.nbytes))[:_MAX_CHANGES]
    return [
        f"  {_signed(change.nbytes):>12} in {change.count:+d} × {change.group.what or 'unnamed'}, "
        f"{change.group.stack[0] if change.group.stack else 'no stack'}"
        for change in moved
    ]


_Show = Callable[[dict[str, "MemorySnapshot"], dict[str, "MemorySnapshot"]], None]


@contextmanager
def _shown() -> Iterator[_Show]:
    """On a terminal a screen that is drawn anew and given back at the end; elsewhere lines."""
    if not sys.stdout.isatty():
        yield lambda before, now: say("\n".join(line(name, before.get(name), now[name]) for name in now))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def draw(before: "dict[str, MemorySnapshot]", now: "dict[str, MemorySnapshot]") -> None:
            blocks = []
            for name, snapshot in now.items():
                was = before.get(name)
                changes = _changes(was, snapshot) if was is not None else []
                blocks += [line(name, was, snapshot), *changes, "", screen(snapshot)]
            live.update(Text("\n".join(blocks)), refresh=True)

        yield draw


def _reserved(snapshot: "MemorySnapshot") -> int:
    return sum(pool.stats.reserved_bytes for pool in snapshot.pools)


def _signed(nbytes: int) -> str:
    return ("+" if nbytes > 0 else "") + format_bytes(nbytes)
