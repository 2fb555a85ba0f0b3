"""The hand-over of token events from the engine's thread to whoever reads one request.

A `SimpleQueue` per stream: `put` never blocks and takes no Python-level lock, so a slow reader cannot hold up the
engine. A reader that fell behind gets everything queued so far as one merged event, so it catches up in one go.
"""

import queue
from collections.abc import Callable, Iterator
from types import TracebackType

from aie_engine.requests import TokenEvent

__all__ = ["TokenStream", "merge"]


class TokenStream:
    """The events of one request, in order. One thread puts, one thread gets; `cancel` may come from any."""

    __slots__ = ("_cancel", "_events", "finished", "request_id")

    def __init__(self, request_id: str, cancel: Callable[[str], None]) -> None:
        self.request_id = request_id
        self.finished = False  # the reader has seen the last event
        self._events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        self._cancel = cancel

    def put(self, event: TokenEvent) -> None:
        """For the engine only."""
        self._events.put(event)

    def get(self, timeout_s: float | None = None) -> TokenEvent:
        """Everything that has arrived, as one event; waits for the first. Raises `TimeoutError` after `timeout_s`."""
        assert not self.finished, f"request {self.request_id} has finished; there is nothing more to get"
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no token of request {self.request_id} came within {timeout_s} s") from None
        while event.finish_reason is None:
            try:
                event = merge(event, self._events.get_nowait())
            except queue.Empty:
                break
        self.finished = event.finish_reason is not None
        return event

    def cancel(self) -> None:
        """Ask the engine to stop. The last event still comes, with finish_reason "cancelled" unless it ended first."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[TokenEvent]:
        while not self.finished:
            yield self.get()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self.finished:
            self.cancel()


def merge(first: TokenEvent, then: TokenEvent) -> TokenEvent:
    """Two consecutive events of one request as one."""
    assert first.request_id == then.request_id and first.finish_reason is None, (first, then)
    return TokenEvent(
        first.request_id,
        first.token_ids + then.token_ids,
        first.logprobs + then.logprobs,
        then.finish_reason,
        then.stop_token_id,
        then.error,
        then.num_prompt_tokens or first.num_prompt_tokens,  # the end of a dead engine knows nothing
        then.num_cached_tokens or first.num_cached_tokens,
        first.prompt_logprobs + then.prompt_logprobs,
    )
