"""`--endpoint http`: one request of the user's own making, sent again and again to any server that speaks HTTP."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aie.bench.generator import Call
from aie_engine import InvalidInputError

__all__ = ["PlainHttp"]

_METHOD = re.compile(r"[A-Z]{1,20}")
_PATH = re.compile(r"/[!-~]*")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t\x80-\xff]*)")
_OURS = ("connection", "content-length", "host", "transfer-encoding", "user-agent")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainHttp:
    """As typed. Raises `InvalidInputError`; a file is read by `call`."""

    path: str = "/"
    method: str | None = None  # None: POST with a body, GET without
    body: str | None = None  # as it is, or @FILE
    headers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise InvalidInputError(
                f"--path is {self.path!r}; begin it with / and percent-encode blanks and what is not ASCII.",
                param="path",
            )
        if self.method is not None and not _METHOD.fullmatch(self.method):
            raise InvalidInputError(f"--method is {self.method!r}; give GET, POST, PUT, … in capitals.", param="method")
        if self.method == "CONNECT":
            raise InvalidInputError("--method CONNECT opens a tunnel; test GET or POST.", param="method")
        for header in self.headers:
            self._check(header)

    @property
    def sent_as(self) -> str:
        """The method."""
        return self.method or ("GET" if self.body is None else "POST")

    def call(self, *, part: str = "") -> Call:
        """Any 2xx is an answer, also one without a body."""
        data, kind = self._data()
        headers = tuple(_HEADER.sub(r"\1: \2", header) for header in self.headers)
        if data is not None and not any(header.lower().startswith("content-type:") for header in headers):
            headers = (*headers, f"Content-Type: {kind}")
        return Call(
            self.path, data, method=self.sent_as, headers=headers, answer="whole", part=part, keep_alive=True,
            may_be_empty=True,
        )  # fmt: skip

    def _check(self, header: str) -> None:
        found = _HEADER.fullmatch(header)
        if found is None:
            raise InvalidInputError(f"--header is {header!r}; write 'Name: value'.", param="header")
        if found[1].lower() in _OURS:
            raise InvalidInputError(
                f"--header {found[1]} is set by the load test itself; leave it out.", param="header"
            )

    def _data(self) -> tuple[bytes | None, str]:
        """The body and its type. Raises `InvalidInputError` for a file that cannot be read."""
        if self.body is None:
            return None, ""
        if not self.body.startswith("@"):
            data = self.body.encode("utf-8", "surrogateescape")
            return data, "application/json" if _is_json(data) else "text/plain; charset=utf-8"
        path = Path(self.body[1:])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidInputError(f"--body names {path}, which cannot be read: {error.strerror or error}.") from None
        if len(data) > _MOST_BYTES:
            raise InvalidInputError(
                f"--body names {path} of {len(data) >> 20} MiB; at most {_MOST_BYTES >> 20} are sent."
            )
        return data, "application/json" if _is_json(data) else "application/octet-stream"


def _is_json(text: str | bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
