"""A line in the log for each request that took long, with where its time went.

Written by a thread of its own: the engine is asked, and answers between two steps, for which no answer shall wait. What
comes faster than it can be written is counted instead.
"""

import logging
import time
from collections.abc import Callable, Sequence

from aie_server.api.debug_requests import ask_engines
from aie_server.api.request_names import Names
from aie_server.api.request_view import View, short_view
from aie_server.ended_requests import EndedRequests
from aie_server.request_book import RequestBook, RequestTrace
from aie_server.served import ModelTable

__all__ = ["SlowRequestLog"]

_MAX_PHASES = 4

_log = logging.getLogger("aie.slow")


class SlowRequestLog:
    """`note` from any thread; `close` ends the one that writes."""

    def __init__(
        self,
        threshold_s: float,
        book: RequestBook,
        models: ModelTable,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold_s = threshold_s
        self._book = book
        self._models = models
        self._clock = clock
        self._ended = EndedRequests[RequestTrace](self._write, name="slow-requests")

    def note(self, trace: RequestTrace) -> None:
        """A request has ended."""
        assert trace.finished_s is not None, trace
        if trace.finished_s - trace.started_s >= self._threshold_s:
            self._ended.note(trace)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is queued; a second call does nothing."""
        self._ended.close(timeout_s)

    def _write(self, traces: Sequence[RequestTrace], missed: int) -> None:
        opened, ended = self._book.snapshot()
        names = Names((*opened, *ended), None)
        engines = ask_engines(self._models, traces)
        for trace in traces:
            view = short_view(trace, engines, names, self._clock())
            seconds = trace.finished_s - trace.started_s if trace.finished_s is not None else 0.0
            _log.warning(
                "slow request %s: %.2f s, status %s, %s, model %s: %s%s",
                trace.request_id,
                seconds,
                trace.status,
                trace.path,
                trace.model,
                _where(view),
                f" ({missed} more were slow meanwhile)" if missed else "",
                extra={"fields": _fields(trace, view, seconds)},
            )
            missed = 0


def _fields(trace: RequestTrace, view: View, seconds: float) -> dict[str, object]:
    return {
        "request_id": trace.request_id, "status": trace.status, "path": trace.path, "model": trace.model,
        "duration_ms": round(seconds * 1e3, 3), "phases_us": view["phases_us"], **trace.counts,
        **{key: view[key] for key in ("held_by", "stalled_by", "preemptions", "batch") if view.get(key)},
    }  # fmt: skip


def _where(view: View) -> str:
    """`blocks 66 % (big, small), decode 20 %, stalled 10 % (long)`."""
    phases, total = view["phases_us"], view["total_us"]
    assert isinstance(phases, dict) and isinstance(total, int), view
    blamed = {"blocks": view.get("held_by"), "prefix": view.get("held_by"), "stalled": view.get("stalled_by")}
    parts = []
    for phase, us in sorted(phases.items(), key=lambda item: item[1], reverse=True)[:_MAX_PHASES]:
        shares = blamed.get(phase)
        who = ", ".join(str(share["who"]) for share in shares[:3]) if isinstance(shares, list) and shares else ""
        parts.append(f"{phase} {100 * us / max(total, 1):.0f} %" + (f" ({who})" if who else ""))
    return ", ".join(parts)
