"""A line in the log for each request that took long, with where its time went.

Written by a thread of its own: the engine is asked, and answers between two steps, for which no answer shall wait. What
comes faster than it can be written is counted instead.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable

from aie_server.api.debug_requests import ask_engines
from aie_server.api.request_names import Names
from aie_server.api.request_view import View, short_view
from aie_server.request_book import RequestBook, RequestTrace
from aie_server.served import ModelTable

__all__ = ["SlowRequestLog"]

_MAX_QUEUED = 64
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
        self._queue: queue.Queue[RequestTrace | None] = queue.Queue(_MAX_QUEUED)
        self._num_missed = 0
        self._thread = threading.Thread(target=self._run, name="aie-slow-requests", daemon=True)
        self._thread.start()

    def note(self, trace: RequestTrace) -> None:
        """A request has ended."""
        assert trace.finished_s is not None, trace
        if trace.finished_s - trace.started_s < self._threshold_s:
            return
        try:
            self._queue.put_nowait(trace)
        except queue.Full:
            self._num_missed += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is queued; a second call does nothing."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (trace := self._queue.get()) is not None:
            try:
                self._write(trace)
            except Exception:  # a log must not end for one line
                _log.exception("the slow request %s could not be explained", trace.request_id)

    def _write(self, trace: RequestTrace) -> None:
        opened, ended = self._book.snapshot()
        names = Names((*opened, *ended), None)
        view = short_view(trace, ask_engines(self._models, [trace]), names, self._clock())
        missed, self._num_missed = self._num_missed, 0
        _log.warning(
            "slow request %s: %.2f s, status %s, %s, model %s: %s%s",
            trace.request_id,
            trace.finished_s - trace.started_s if trace.finished_s is not None else 0.0,
            trace.status,
            trace.path,
            trace.model,
            _where(view),
            f" ({missed} more were slow meanwhile)" if missed else "",
        )


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
