"""The flight recorder: the last events of a process in a file that outlives it, `kill -9` included.

The file is mapped shared, so what was stored belongs to the kernel and not to the process. (A power cut is another
matter: nothing is forced to disk.) The layout, all numbers little-endian:

    header    64 bytes: magic, version, sizes, writer's pid, how far texts were written
    records   `num_records` × 64 bytes; event n lies in slot n mod num_records
    texts     `strings_bytes`: owners, stacks and streams as JSON, each once, written round and round as well

A record names its texts by position. Position, length and the header's mark tell the reader whether a text is still the
one that was meant. In each half round the writer begins anew, so the newest events always have theirs.

Half-written records. The writer clears the record's closing sequence number, stores the rest, which begins with the
same number, and stores the closing number last. Killed in between, or overtaken by another thread, the two differ.

Cost: three copies into the map, a few µs. No lock, since the ledger may be called from a finalizer in the middle of an
append; only a new text takes one, and under it no foreign code runs.
"""

import itertools
import json
import mmap
import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path

from aie_tensor.errors import EnvironmentLacksError, InvalidInputError
from aie_tensor.memory.classes import checked_bytes
from aie_tensor.memory.events import MemoryEvent
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.ring_reader import (
    BODY,
    HEADER,
    HEADER_BYTES,
    LOST,
    MAGIC,
    MARK,
    MARK_AT,
    MASK,
    RECORD_BYTES,
    RING_VERSION,
    SEQUENCE,
    TEXT,
    UNIT,
    RingContents,
    read_ring,
)
from aie_tensor.stacks import RawStack, resolve

__all__ = ["EventRing"]

MAX_BYTES = 1 << 30  # of a file: a reader takes in all of it
MAX_FRAMES = 8  # of a stack: the asking line and how it was reached, not the whole way from `main`
MAX_CHARACTERS = 200  # of one text


class EventRing:
    """Writes one ring file; `append` is a sink for a ledger. Make one with `create` or `open`, read it with `read`."""

    def __init__(self, memory: mmap.mmap, contents: RingContents) -> None:
        self._memory = memory
        self._num_records = contents.num_records
        self._sequence = itertools.count(contents.num_written + 1)
        self._texts_at = HEADER_BYTES + contents.num_records * RECORD_BYTES
        self._num_units = contents.strings_bytes // UNIT
        self._mark = contents.strings_mark
        # Position of each text written in this half round. The second of the pair keeps a stack alive, which is known
        # by its identity: hashing its code objects would cost more than the rest.
        self._recent: dict[Hashable, tuple[int, object]] = {}
        self._writing = threading.RLock()

    @classmethod
    def create(cls, path: str | Path, num_records: int = 4096, strings_bytes: int = 1 << 20) -> "EventRing":
        """A new ring; a file at `path` is replaced. `strings_bytes` is rounded up to a power of two.

        InvalidInputError for sizes below 1 record or 4096 bytes, or beyond 1 GiB; EnvironmentLacksError where the file
        cannot be made.
        """
        num_records = checked_bytes(num_records, "num_records")
        strings_bytes = checked_bytes(strings_bytes, "strings_bytes")
        if num_records < 1 or strings_bytes < 4096:
            raise InvalidInputError("a ring needs at least 1 record and 4096 bytes for texts", param="num_records")
        strings_bytes = 1 << (strings_bytes - 1).bit_length()
        nbytes = HEADER_BYTES + num_records * RECORD_BYTES + strings_bytes
        if nbytes > MAX_BYTES:
            raise InvalidInputError(f"a ring of {nbytes:,} bytes: at most {MAX_BYTES:,} are read", param="num_records")
        header = HEADER.pack(MAGIC, RING_VERSION, RECORD_BYTES, num_records, strings_bytes, os.getpid())
        if Path(path).exists() and not Path(path).is_file():  # a device such as /dev/null would be replaced
            raise EnvironmentLacksError(f"cannot make the event ring {path}: it is there and no ordinary file")
        # Made beside and then moved: an old ring at `path` may still have a writer, whom cutting its file would kill.
        making = Path(f"{path}.{os.getpid()}.new")
        try:
            with open(making, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                # Blocks are taken now: on a disk that is full later, a store would end the process.
                _reserve(file.fileno(), nbytes)
                file.write(header)
            making.replace(path)
        except OSError as error:
            making.unlink(missing_ok=True)
            raise EnvironmentLacksError(f"cannot make the event ring {path} of {nbytes:,} bytes: {error}") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> "EventRing":
        """Go on writing a ring, behind what it holds. InvalidInputError as `read`; EnvironmentLacksError where the file
        may not be written."""
        contents = read_ring(path)
        try:
            with Path(path).open("r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write the event ring {path}: {error.strerror}") from None
        header = (MAGIC, RING_VERSION, RECORD_BYTES, contents.num_records, contents.strings_bytes, os.getpid())
        memory[: HEADER.size] = HEADER.pack(*header)
        return cls(memory, contents)

    @staticmethod
    def read(path: str | Path) -> RingContents:
        """What a ring holds, whether its writer lives or not. InvalidInputError for a file that is missing, cut off, no
        ring, or of another version."""
        return read_ring(path)

    def append(self, event: MemoryEvent) -> None:
        """Store one event. ValueError after `close`."""
        kind, at_s, address, nbytes, block_bytes, stream, owner, stack = event
        owner_at = self._position(owner, owner, _owner_text)
        stack_at = self._position(id(stack), stack, _stack_text) if stack else 0
        stream_at = self._position(stream, stream, json.dumps) if stream else 0
        sequence = next(self._sequence)
        body = BODY.pack(sequence, at_s, address, nbytes, block_bytes, owner_at, stack_at, stream_at, kind)
        start = HEADER_BYTES + sequence % self._num_records * RECORD_BYTES
        end = start + RECORD_BYTES
        memory = self._memory
        memory[end - SEQUENCE.size : end] = SEQUENCE.pack(0)
        memory[start : end - SEQUENCE.size] = body
        memory[end - SEQUENCE.size : end] = SEQUENCE.pack(sequence)

    def close(self) -> None:
        """End writing; the file stays. Closing twice does nothing."""
        self._memory.close()

    def _position(self, key: Hashable, what: object, text_of: Callable[..., str]) -> int:
        """Where the text of `what` lies, writing it if need be."""
        known = self._recent.get(key)
        if known is not None:
            return known[0]
        text = text_of(what).encode()  # without the lock: this may run foreign code
        with self._writing:
            position = self._write(text)
            self._recent[key] = (position, what)
        return position

    def _write(self, text: bytes) -> int:
        """Store a text behind the last one; its position. The caller holds the lock."""
        units = -(-(TEXT.size + len(text)) // UNIT)
        half = self._num_units // 2
        if units > half:
            return LOST
        position = self._mark
        if position % self._num_units + units > self._num_units or position + units >= LOST:
            position = (position | (self._num_units - 1)) + 1 & MASK  # texts do not wrap: on to the next round
        position = position or 1  # 0 means no text
        if self._mark // half != (position + units) // half:
            self._recent = {}
        self._mark = position + units
        start = self._texts_at + position % self._num_units * UNIT
        # The mark first: from here on, a reader trusts nothing in the stretch that is about to change.
        self._memory[MARK_AT : MARK_AT + MARK.size] = MARK.pack(self._mark)
        self._memory[start : start + TEXT.size + len(text)] = TEXT.pack(position, len(text)) + text
        return position


def _owner_text(owner: Owner) -> str:
    fields = (owner.what, owner.request_id, owner.model, owner.worker, owner.stage)
    return json.dumps([field[:MAX_CHARACTERS] for field in fields])


def _stack_text(stack: RawStack) -> str:
    return json.dumps([str(frame)[-MAX_CHARACTERS:] for frame in resolve(stack)[:MAX_FRAMES]])


def _reserve(descriptor: int, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.ftruncate(descriptor, nbytes)
