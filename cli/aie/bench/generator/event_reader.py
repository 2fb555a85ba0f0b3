"""An event stream (text/event-stream) in the pieces in which it arrives.

Lines end with LF, CR or both, and a piece may end anywhere, between the two as well.
"""

__all__ = ["EventReader"]

_MAX_EVENT_BYTES = 4 << 20


class EventReader:
    """`feed` gives the `data:` payloads that are complete. Raises `ValueError` for an event without end."""

    __slots__ = ("_after_cr", "_data", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    @property
    def is_between(self) -> bool:
        """Whether the next byte is the first of an event."""
        return not (self._rest or self._data or self._after_cr)

    def feed(self, piece: bytes) -> list[bytes]:
        """In their order."""
        if (
            piece.startswith(b"data:")
            and piece.endswith(b"\n\n")
            and piece.count(b"\n") == 2
            and b"\r" not in piece
            and not (self._rest or self._data)
        ):
            self._after_cr = False
            payload = piece[5:-2].lstrip()  # one event in one piece, as nearly all are
            return [payload] if payload else []
        return self._lines(piece)

    def _lines(self, piece: bytes) -> list[bytes]:
        arrived = piece[1:] if self._after_cr and piece.startswith(b"\n") else piece
        if not arrived:
            if piece:
                self._after_cr = False
            return []
        self._after_cr = arrived.endswith(b"\r")
        if b"\r" in arrived:
            arrived = arrived.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + arrived).split(b"\n")
        found = []
        for line in lines:
            if not line:
                if payload := b"\n".join(self._data):
                    found.append(payload)
                self._data, self._size = [], 0
            elif line.startswith(b"data:"):
                self._data.append(line[5:].lstrip())
                self._size += len(line)
        if self._size + len(self._rest) > _MAX_EVENT_BYTES:
            raise ValueError("an event of more than 4 MiB")
        return found
