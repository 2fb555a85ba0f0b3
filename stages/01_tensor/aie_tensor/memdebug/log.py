"""The allocation log: every event of the ledger as one line of JSON, to be replayed and drawn later.

Lines are written one by one without a buffer, so that a writer that is killed leaves whole lines and at most one half
line at the end. The reader refuses such a file unless it is told that it may be cut: whoever compares waste and growth
must know that the end is missing. Call stacks are the bulk of an event and few differ, so the frames are written with
the first event that has them, and later events carry the number only.

    {"log":"aie memory events","version":1}
    {"kind":1,"at_s":12.5,"address":139647,"nbytes":1000,"block_bytes":1024,"owner":{"what":"kv"},"stack":0,"frames":[…]}
    {"kind":2,"at_s":12.6,"address":139647,"nbytes":1000,"block_bytes":1024,"owner":{"what":"kv"},"stack":0}
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, NamedTuple

import msgspec

from aie_tensor.errors import EnvironmentLacksError, InvalidInputError
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.owner import Owner
from aie_tensor.stacks import MAX_STACKS, RawStack, resolve

__all__ = ["LOG_VERSION", "AllocationLog", "LoggedEvent", "iter_log", "logged", "read_log"]

LOG_VERSION = 1
_NAME = "aie memory events"
_MAX_LINE = 1 << 20  # no line is longer; a file without line ends is no log

_Count = Annotated[int, msgspec.Meta(ge=0)]


class LoggedEvent(NamedTuple):
    """A `MemoryEvent` whose stack is text, as it comes back from a file."""

    kind: EventKind
    at_s: float  # monotonic, of the process that wrote it
    address: int
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    stream: str
    owner: Owner
    stack: tuple[str, ...]  # "file:line in function", innermost first; empty where none was taken


class _Line(msgspec.Struct, omit_defaults=True):
    kind: EventKind
    at_s: float
    address: _Count = 0
    nbytes: _Count = 0
    block_bytes: _Count = 0
    stream: str = ""
    owner: dict[str, str] = {}
    stack: int = -1  # number of the stack; -1: none was taken
    frames: tuple[str, ...] | None = None  # with the first event of that number


class _Header(msgspec.Struct):
    log: str
    version: int


def logged(event: MemoryEvent) -> LoggedEvent:
    """`event` as a log would give it back."""
    return LoggedEvent(*event[:-1], _frames(event.stack))


class AllocationLog:
    """A sink for `Ledger.sinks`: `ledger.sinks.append(log.append)`. Safe for threads, and for a collection that frees
    memory while a line is being written. A file that is already there is kept beside it as `NAME.previous`: a worker
    that starts again must not wipe out the log of the one that died."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None  # why writing stopped, where it did: memory goes on, its log does not
        self.num_events = 0
        self._lock = threading.RLock()
        self._known: dict[int, tuple[int, RawStack]] = {}  # by identity: number of a stack that is in the file
        self._next_number = 0
        self._encoder = msgspec.json.Encoder()
        try:
            if path.is_file():
                path.replace(path.with_name(f"{path.name}.previous"))
            self._file: BinaryIO | None = path.open("ab", buffering=0)
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write the memory log {path}: {error.strerror or error}.") from error
        self._write(_Header(_NAME, LOG_VERSION))
        if self.error is not None:
            raise EnvironmentLacksError(self.error)

    def append(self, event: MemoryEvent) -> None:
        """Write one line. Never raises: it is called while memory is handed out."""
        with self._lock:
            if self._file is None:
                return
            number, frames = self._number(event.stack)
            owner = {name: _text(value) for name in Owner.__slots__ if (value := getattr(event.owner, name))}
            line = _Line(
                event.kind,
                event.at_s,
                event.address,
                event.nbytes,
                event.block_bytes,
                event.stream,
                owner,
                number,
                frames,
            )
            self._write(line)
            if frames is not None and event.stack is not None:
                self._known[id(event.stack)] = number, event.stack
            self.num_events += 1

    def _number(self, stack: RawStack | None) -> tuple[int, tuple[str, ...] | None]:
        """The number of `stack`, and its frames where they are not in the file yet."""
        if stack is None:
            return -1, None
        known = self._known.get(id(stack))
        if known is not None:
            return known[0], None
        if len(self._known) >= MAX_STACKS:  # code made at run time has ever new stacks; they get new numbers
            self._known.clear()
        self._next_number += 1
        return self._next_number - 1, _frames(stack)

    def close(self) -> None:
        """No more lines. May be called twice."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _write(self, line: msgspec.Struct) -> None:
        assert self._file is not None
        rest = memoryview(self._encoder.encode(line) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:
            self.error = f"the memory log {self.path} ends early: {error.strerror or error}."
            self.close()

    def __enter__(self) -> "AllocationLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_log(path: Path, *, allow_cut: bool = False) -> list[LoggedEvent]:
    """All events. InvalidInputError for a file that cannot be read, is no log, of another version, or cut off; with
    `allow_cut` a half line at the end is left out."""
    return list(iter_log(path, allow_cut=allow_cut))


def iter_log(path: Path, *, allow_cut: bool = False) -> Iterator[LoggedEvent]:
    """As `read_log`, one at a time: a log may be larger than memory."""
    try:
        with path.open("rb") as file:
            _check_header(file.readline(_MAX_LINE), path)
            yield from _events(file, path, allow_cut)
    except OSError as error:
        raise InvalidInputError(f"cannot read the memory log {path}: {error.strerror or error}.") from error


def _check_header(line: bytes, path: Path) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        header = None
    if header is None or header.log != _NAME or not line.endswith(b"\n"):
        raise InvalidInputError(f"{path} is not a memory log, or it is cut off in its first line.")
    if header.version != LOG_VERSION:
        raise InvalidInputError(
            f"{path} is a memory log of version {header.version}, and this program reads version {LOG_VERSION}. "
            "Record it again, or read it with the program that wrote it."
        )


def _events(file: BinaryIO, path: Path, allow_cut: bool) -> Iterator[LoggedEvent]:
    decoder = msgspec.json.Decoder(_Line)
    stacks: dict[int, tuple[str, ...]] = {-1: ()}
    owners: dict[tuple[tuple[str, str], ...], Owner] = {}  # few differ, and a log has millions of events
    number = 1
    while line := file.readline(_MAX_LINE):
        number += 1
        if not line.endswith(b"\n") and len(line) < _MAX_LINE:
            if allow_cut:
                return
            raise InvalidInputError(
                f"{path} is cut off in line {number}, as when its writer was killed. "
                "What is whole can still be read: say that the log may be cut."
            )
        try:
            entry = decoder.decode(line)
            if entry.frames is not None:
                stacks[entry.stack] = entry.frames
            key = tuple(entry.owner.items())
            owner = owners.get(key) or owners.setdefault(key, Owner(**entry.owner))
            stack = stacks[entry.stack]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise InvalidInputError(f"{path} is damaged in line {number}: {error}.") from error
        except KeyError as error:
            raise InvalidInputError(f"{path} is damaged in line {number}: stack {error} was never written.") from error
        yield LoggedEvent(
            entry.kind, entry.at_s, entry.address, entry.nbytes, entry.block_bytes, entry.stream, owner, stack
        )


def _frames(stack: RawStack | None) -> tuple[str, ...]:
    return tuple(_text(str(frame)) for frame in resolve(stack)) if stack is not None else ()


def _text(text: str) -> str:
    """Text that can be written as UTF-8: a file name may hold bytes that are none."""
    return text.encode("utf-8", "replace").decode("utf-8")
