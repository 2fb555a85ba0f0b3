"""One line per request, never one per token. Silent unless the logger `aie.access` is set to INFO."""

import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from aie_server.request_book import RequestTrace

__all__ = ["AccessRecord", "access_fields", "log_access"]

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
    error: str = ""  # the code of the error that it was answered with
    traceparent: str = ""  # as the client sent it: W3C's trace context
    tracestate: str = ""


def log_access(record: AccessRecord, trace: "RequestTrace | None" = None) -> None:
    """Write the line, if anybody wants it. trace: of a request to a model."""
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
            extra={"fields": partial(access_fields, record, trace)},  # only who writes them has them made
        )


def access_fields(record: AccessRecord, trace: "RequestTrace | None") -> dict[str, object]:
    """What a structured line has beside the message."""
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "client": record.client,
        "method": record.method,
        "path": record.target,
        "route": record.route,
        "status": record.status,
        "bytes": record.num_bytes,
        "duration_ms": round(record.duration_s * 1e3, 3),
    }
    if record.error:
        fields["error"] = record.error
    if trace is not None:
        fields["model"] = trace.model
        fields |= trace.counts
    return fields
