"""An HTTP/1.1 response in the pieces in which it arrives.

A state machine and no coroutine: what is read is taken apart in the very call that brings it, so that nothing waits for
an interpreter that does something else, and the clock can be read before. Of what a server sends nothing is taken on
trust: what is not as it should be is a `ValueError` with a few words that can be counted.
"""

__all__ = ["ResponseReader", "chunk_length"]

_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 1024  # of a chunk's length with its extensions, or of a trailer
_HEX = b"0123456789abcdefABCDEF"


class ResponseReader:
    """`feed` gives the body's bytes as they come; `ended` when there are no more.

    A response without a length ends with its connection: `close` says whether that was an end."""

    __slots__ = ("_body", "_left", "_rest", "_without_body", "ended", "headers", "is_clean", "status")

    def __init__(self, *, without_body: bool = False) -> None:
        self.status = 0  # 0: the head is not there yet
        self.headers: dict[str, str] = {}  # by names in small letters
        self.ended = False
        self.is_clean = False  # ended by its own account, with nothing behind it
        self._without_body = without_body  # as after HEAD
        self._rest = b""
        self._left = 0  # bytes of the body, or of the chunk
        self._body = "head"

    def feed(self, data: bytes) -> bytes:
        """What of the body is in `data`."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._body == "head":
            data = self._head(data)
            if not data or not self.status:
                return b""
        if self._body == "chunks":
            return self._chunks(data)
        if self._body == "length":
            if len(data) >= self._left:
                self.ended, self.is_clean = True, len(data) == self._left
                data = data[: self._left]
            self._left -= len(data)
            return data
        return data if self._body == "until closed" else b""

    def close(self) -> bool:
        """The connection was closed: False where that cuts the response short."""
        if self._body == "until closed":
            self.ended = True
        return self.ended

    @property
    def may_go_on(self) -> bool:
        """Whether the connection holds another response, after this one has ended."""
        return self.is_clean and self.headers.get("connection", "").lower() != "close"

    @property
    def is_between(self) -> bool:
        """Whether the next byte is the first of a chunk's length."""
        return self._body == "chunks" and not self._left and not self._rest and not self.ended

    def _head(self, data: bytes) -> bytes:
        while data and not self.status and not self._rest:  # 1xx: the response proper is still to come
            data = self._one_head(data)
        return data

    def _one_head(self, data: bytes) -> bytes:
        if not b"HTTP/1.".startswith(data[:7]):
            raise ValueError("the answer is not HTTP/1.1")
        end = data.find(b"\r\n\r\n")
        if end > _MAX_HEAD_BYTES or (end < 0 and len(data) > _MAX_HEAD_BYTES):
            raise ValueError("response headers are too long")
        if end < 0:
            self._rest = data
            return b""
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or len(parts[1]) != 3 or not (parts[1].isascii() and parts[1].isdecimal()):
            raise ValueError("the answer is not HTTP/1.1")
        status = int(parts[1])
        if 100 <= status < 200:
            return data[end + 4 :]
        self.status = status
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                self.headers[name.strip().lower()] = value.strip()
        if parts[0] == "HTTP/1.0":
            self.headers.setdefault("connection", "close")
        self._frame(is_empty=len(data) == end + 4)
        return data[end + 4 :]

    def _frame(self, *, is_empty: bool) -> None:
        """How the body will end."""
        if self._without_body or self.status in (204, 304):
            self._body, self.ended, self.is_clean = "none", True, is_empty
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._body = "chunks"
        elif (length := self.headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdecimal() and len(length) < 19):
                raise ValueError("a Content-Length that is no number")
            self._body, self._left = "length", int(length)
            if not self._left:
                self.ended, self.is_clean = True, is_empty
        else:
            self._body = "until closed"

    def _chunks(self, data: bytes) -> bytes:
        """`_left` counts the chunk and the line end behind it."""
        if not self._left and chunk_length(data, begin := data.find(b"\r\n", 0, 16) + 2):
            return data[begin:-2]  # one chunk exactly, as nearly always in a stream of events
        pieces = []
        at, size = 0, len(data)
        while at < size and not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                pieces.append(piece if self._left - len(piece) >= 2 else self._without_end(piece))
                self._left -= len(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > _MAX_LINE_BYTES:
                    raise ValueError("a chunk without its length")
                self._rest = data[at:]
                break
            digits = data[at:end].split(b";", 1)[0].strip()
            if not digits or len(digits) > 15 or digits.strip(_HEX):
                raise ValueError("a chunk without its length")
            at = end + 1
            length = int(digits, 16)
            if length:
                self._left = length + 2
            else:
                # Trailers, which hardly anyone sends, are not waited for; the connection is then not used again.
                self.ended, self.is_clean = True, data[at:] == b"\r\n"
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _without_end(self, piece: bytes) -> bytes:
        """The last bytes of a chunk, without (what is there of) its line end."""
        inside = max(0, self._left - 2)
        skip = 2 - min(2, self._left)  # of the line end, that came before
        tail = piece[inside:]
        if tail != b"\r\n"[skip : skip + len(tail)]:
            raise ValueError("a chunk of another length than it says")
        return piece[:inside]


def chunk_length(data: bytes, begin: int) -> int:
    """Of a chunk that is all of `data`, after its length with the line end, which end at `begin`; 0: it is not."""
    digits = data[: begin - 2]
    if begin < 3 or digits.strip(_HEX) or not data.endswith(b"\r\n"):
        return 0
    return size if (size := len(data) - begin - 2) > 0 and size == int(digits, 16) else 0
