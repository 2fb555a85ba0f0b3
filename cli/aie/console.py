"""What a person sees: progress on a terminal, plain lines elsewhere, tables that also go to a JSON file."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aie.service_log import write_to_stderr
from aie_engine import EnvironmentLacksError

if TYPE_CHECKING:
    from aie_loader import PullProgress

__all__ = ["byte_progress", "check_writable", "format_bytes", "note", "pull_progress", "write_file", "write_json"]

_PROGRESS_EVERY_S = 10.0


def note(text: str) -> None:
    """A line for the person, on standard error so that standard output stays the result. Who does not listen misses
    it."""
    with contextlib.suppress(OSError):
        write_to_stderr(text + "\n")


def format_bytes(count: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def check_writable(path: Path, *, flag: str = "--json") -> None:
    """Raises `EnvironmentLacksError` if `write_file` could not write there: better before a long measurement."""
    path = _meant(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_device(path) or path.is_file() or path.is_dir():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _not_writable(path, error, flag) from None


def write_json(path: Path, document: object, *, flag: str = "--json") -> None:
    """`document` as indented JSON, written as `write_file` does."""
    write_file(path, (json.dumps(document, indent=2) + "\n").encode(), flag=flag)


def write_file(path: Path, data: bytes, *, flag: str = "--json") -> None:
    """Writes beside the target and renames, so that a reader never sees half a file. What is no regular file, such as
    `/dev/stdout` or a pipe, is written to as it is: a rename would put a file in its place. `flag` named the path."""
    try:
        path = _meant(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_device(path):  # `/dev/stdout` may be a file that holds what was printed: behind it
            sys.stdout.flush()
            with path.open("ab", buffering=0) as sink:
                sink.write(data)
        elif path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path, data)
    except OSError as error:
        raise _not_writable(path, error, flag) from None


def _meant(path: Path) -> Path:
    """A link stays a link: what it names is replaced. But a pipe behind `/dev/stdout` has no name."""
    return path if _is_device(path) else path.resolve()


def _is_device(path: Path) -> bool:
    return path.is_absolute() and path.parts[1:2] in (("dev",), ("proc",)) and path.exists()


def _not_writable(path: Path, error: OSError, flag: str) -> EnvironmentLacksError:
    return EnvironmentLacksError(f"{path} cannot be written: {error.strerror or error}. Choose another {flag} PATH.")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(data)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def byte_progress(what: str, *, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """A report of (bytes done, bytes in all): a line that rewrites itself on a terminal, elsewhere one every ten
    seconds."""
    live = sys.stderr.isatty()
    last_s = clock()

    def report(done: int, total: int) -> None:
        nonlocal last_s
        text = f"{what}: {format_bytes(done)} of {format_bytes(total)} ({100 * done / max(total, 1):.0f} %)"
        if live:
            print(f"\r\x1b[K{text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
        elif clock() - last_s >= _PROGRESS_EVERY_S:
            note(text)
            last_s = clock()

    return report


def pull_progress(alias: str, *, clock: Callable[[], float] = time.monotonic) -> "Callable[[PullProgress], None]":
    """A progress report for `pull`: a line that rewrites itself on a terminal; elsewhere one line as a phase begins,
    and one every ten seconds while it lasts."""
    live = sys.stderr.isatty()
    last_phase, last_s = "", 0.0

    def report(progress: "PullProgress") -> None:
        nonlocal last_phase, last_s
        total = format_bytes(progress.total_bytes)
        share = 100 * progress.done_bytes / progress.total_bytes if progress.total_bytes else 100
        text = f"{alias}: {progress.phase} {format_bytes(progress.done_bytes)} of {total} ({share:.0f} %)"
        if live:
            end = "\n" if progress.phase == "done" else ""
            print(f"\r\x1b[K{text}", end=end, file=sys.stderr, flush=True)
        elif progress.phase != last_phase:
            note(f"{alias}: {progress.phase} ({total})")
            last_s = clock()
        elif clock() - last_s >= _PROGRESS_EVERY_S:
            note(text)
            last_s = clock()
        last_phase = progress.phase

    return report
