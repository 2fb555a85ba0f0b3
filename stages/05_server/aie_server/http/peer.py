"""Is the client still there? Asked without blocking and without taking a byte from the connection."""

import contextlib
import select
import socket
from typing import Final

__all__ = ["PeerWatch"]

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)


class PeerWatch:
    """A client that closed its sending side counts as gone: OpenAI's clients never half-close, and a browser that
    left looks exactly like this. A pipelined request waiting to be read does not."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | getattr(select, "POLLRDHUP", 0))

    def is_gone(self) -> bool:
        try:
            events = self._poll.poll(0)
        except (OSError, ValueError):
            return True
        if not events:
            return False
        if events[0][1] & (_HANG_UP | select.POLLNVAL):
            return True
        with contextlib.suppress(OSError):
            return self._sock.recv(1, socket.MSG_PEEK) == b""
        return True
