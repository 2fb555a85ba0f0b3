"""Reading an event ring: the layout of the file, what is still whole in it, and the last events as lines of text.

The layout and the rules that make a ring readable after `kill -9` are explained in `ring.py`, which writes it.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from aie_tensor.errors import InvalidInputError
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.owner import Owner

__all__ = ["RingContents", "RingEvent", "format_events", "read_ring"]

MAGIC = b"AIE-RING"
RING_VERSION = 1
HEADER_BYTES = 64
HEADER = struct.Struct("<8sIIQQQ")  # magic, version, bytes of a record, number of records, bytes of texts, pid
MARK = struct.Struct("<I")  # the position behind the newest text
MARK_AT = 48
RECORD_BYTES = 64
BODY = struct.Struct("<QdQQQIIII")  # sequence, time, address, nbytes, block bytes, owner, stack, stream, kind
SEQUENCE = struct.Struct("<Q")  # the same number again, stored last
TEXT = struct.Struct("<II")  # its position, bytes that follow
UNIT = 8  # texts begin at multiples of it; positions count in it and wrap at 2**32
MASK = 0xFFFF_FFFF
LOST = MASK  # the position of a text that did not fit

_VERBS = {
    EventKind.ALLOCATE: "allocate",
    EventKind.FREE: "free",
    EventKind.RETAIN: "retain",
    EventKind.RELEASE: "release",
    EventKind.SEGMENT_RESERVE: "reserve a segment of",
    EventKind.SEGMENT_RETURN: "give back a segment of",
    EventKind.REQUEST: "a request ended",
    EventKind.REUSABLE: "may be reused:",
}


@dataclass(frozen=True, slots=True)
class RingEvent:
    """One event as the ring kept it: a `MemoryEvent` whose stack is text."""

    sequence: int  # 1 for the first event of the ring's life
    kind: EventKind
    at_s: float  # the writer's monotonic clock
    address: int
    nbytes: int
    block_bytes: int
    stream: str
    owner: Owner
    stack: tuple[str, ...]  # "file:line in function", innermost first; empty where none was taken or it was overwritten


@dataclass(frozen=True, slots=True)
class RingContents:
    """What is readable in a ring."""

    events: tuple[RingEvent, ...]  # oldest first
    num_written: int  # in the ring's life; most of them may be overwritten
    num_torn: int  # records among the newest that are only half written
    num_texts_lost: int  # owners, stacks and streams of `events` that are overwritten or never fitted
    pid: int  # of the last writer
    num_records: int
    strings_bytes: int
    strings_mark: int  # where the writer goes on


def read_ring(path: str | Path) -> RingContents:
    """See `EventRing.read`."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read the event ring {path}: {error.strerror}", param="path") from None
    if len(content) < HEADER_BYTES or not content.startswith(MAGIC):
        raise InvalidInputError(f"{path} is no event ring", param="path")
    _, version, record_bytes, num_records, strings_bytes, pid = HEADER.unpack_from(content)
    if version != RING_VERSION or record_bytes != RECORD_BYTES:
        message = f"{path} is an event ring of version {version}; this program reads version {RING_VERSION}"
        raise InvalidInputError(message, param="path")
    texts_at = HEADER_BYTES + num_records * RECORD_BYTES
    if not num_records or not strings_bytes or len(content) != texts_at + strings_bytes:
        message = f"{path} is cut off: {len(content):,} bytes, its header says {texts_at + strings_bytes:,}"
        raise InvalidInputError(message, param="path")
    (mark,) = MARK.unpack_from(content, MARK_AT)
    texts = _Texts(content[texts_at:], mark)
    records = memoryview(content)[HEADER_BYTES:texts_at]
    whole, num_torn = _whole_records(records)
    events = tuple(event for body in whole if (event := _event(body, texts)) is not None)
    return RingContents(
        events=events,
        num_written=int(whole[-1][0]) if whole else 0,
        num_torn=num_torn + len(whole) - len(events),
        num_texts_lost=texts.num_lost,
        pid=pid,
        num_records=num_records,
        strings_bytes=strings_bytes,
        strings_mark=mark,
    )


def format_events(contents: RingContents, last: int = 20) -> list[str]:
    """The newest `last` lines, oldest first: one for each event, or for a row of events that read alike. Times are
    counted back from the newest event, since nobody knows how long its process lived on."""
    if last < 1 or not contents.events:
        return []
    rows: list[tuple[RingEvent, str, int]] = []  # the last event of a row, in words, how many like it
    for event in contents.events:
        text = _described(event)
        num_alike = rows.pop()[2] if rows and rows[-1][1] == text else 0
        rows.append((event, text, num_alike + 1))
    newest = contents.events[-1].at_s
    return [
        f"{newest - event.at_s:.3f} s before the newest: {f'{count} × ' if count > 1 else ''}{text}"
        for event, text, count in rows[-last:]
    ]


def _described(event: RingEvent) -> str:
    verb = _VERBS[event.kind]
    if event.kind is EventKind.REQUEST:
        return verb
    of = f" for {event.owner}" if event.owner.what or event.owner.request_id else ""
    on = f" on stream {event.stream}" if event.stream else ""
    at = f" at {event.stack[0]}" if event.stack else ""
    return f"{verb} {_size(event.nbytes or event.block_bytes)}{of}{on}{at}"


def _size(nbytes: int) -> str:
    for bits, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << bits:
            return f"{nbytes / (1 << bits):.1f} {unit}"
    return f"{nbytes} B"


_Body = tuple[int, float, int, int, int, int, int, int, int]


def _whole_records(records: memoryview) -> tuple[list[_Body], int]:
    """Bodies of the records that are whole, oldest first, and how many are not."""
    num_records = len(records) // RECORD_BYTES
    whole: list[_Body] = []
    num_torn = 0
    for slot in range(num_records):
        start = slot * RECORD_BYTES
        body: _Body = BODY.unpack_from(records, start)
        (closing,) = SEQUENCE.unpack_from(records, start + BODY.size)
        if body[0] == closing and closing and closing % num_records == slot:
            whole.append(body)
        elif any(records[start : start + RECORD_BYTES]):
            num_torn += 1
    whole.sort()
    # A thread that was held up while the ring went round may have stored an old record over a new one.
    newest = whole[-1][0] if whole else 0
    current = [body for body in whole if body[0] > newest - num_records]
    return current, num_torn + len(whole) - len(current)


def _event(body: _Body, texts: "_Texts") -> RingEvent | None:
    """None for a kind that this program does not know."""
    sequence, at_s, address, nbytes, block_bytes, owner_at, stack_at, stream_at, number = body
    try:
        kind = EventKind(number)
    except ValueError:
        return None
    owner = texts.at(owner_at)
    stack = texts.at(stack_at)
    stream = texts.at(stream_at)
    return RingEvent(
        sequence=sequence,
        kind=kind,
        at_s=at_s,
        address=address,
        nbytes=nbytes,
        block_bytes=block_bytes,
        stream=stream if isinstance(stream, str) else "",
        owner=Owner(*map(str, owner)) if isinstance(owner, list) and len(owner) == 5 else Owner(),
        stack=tuple(map(str, stack)) if isinstance(stack, list) else (),
    )


class _Texts:
    """The area of texts. Each is looked up at its position and believed only if nothing was written over it."""

    def __init__(self, area: bytes, mark: int) -> None:
        self.num_lost = 0
        self._area = area
        self._mark = mark

    def at(self, position: int) -> object:
        """The text at `position`, decoded; None where there is none or it is lost."""
        if not position:
            return None
        found = self._read(position)
        self.num_lost += found is None
        return found

    def _read(self, position: int) -> object:
        num_units = len(self._area) // UNIT
        if position == LOST or (self._mark - position) & MASK > num_units:
            return None
        start = position % num_units * UNIT
        written_at, nbytes = TEXT.unpack_from(self._area, start)
        if written_at != position:
            return None
        try:
            return json.loads(self._area[start + TEXT.size : start + TEXT.size + nbytes])
        except ValueError:  # covers bad UTF-8 too
            return None
