"""One line per request, never one per token. Silent unless the logger `aie.access` is set to INFO."""

import logging

import msgspec

__all__ = ["AccessRecord", "log_access"]

_log = logging.getLogger("aie.access")


class AccessRecord(msgspec.Struct, frozen=True):
    """One finished request. `status` 499 means that the client hung up; it is written nowhere but here and in the
    metrics."""

    client: str
    method: str
    target: str  # the path without query: a query may hold what does not belong into a log
    route: str  # a known route or "unmatched"
    status: int
    num_bytes: int  # of the body that was sent
    duration_s: float
    request_id: str
    started_s: float = 0.0  # on the clock of `time.monotonic`
    blocked_s: float = 0.0  # that writing waited for the client to read


def log_access(record: AccessRecord) -> None:
    """Write the line, if anybody wants it."""
    if _log.isEnabledFor(logging.INFO):
        # %r where a client chose the text, so that nothing in it can forge a line
        _log.info(
            "%s %s %r %d %d bytes %.1f ms %s",
            record.client,
            record.method,
            record.target,
            record.status,
            record.num_bytes,
            record.duration_s * 1e3,
            record.request_id,
        )
