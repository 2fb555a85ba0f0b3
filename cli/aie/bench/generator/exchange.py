"""One answer while it arrives: bytes become times, text and counts of its `Outcome`."""

import asyncio
import json
from typing import Any

from aie.bench.generator.event_reader import EventReader
from aie.bench.generator.event_text import TextFinder, count_of, read_event, text_of
from aie.bench.generator.faults import describe_error, error_message, http_error
from aie.bench.generator.http_reader import ResponseReader
from aie.bench.generator.outcome import HUNG_UP, Outcome
from aie.bench.generator.plan import Call

__all__ = ["Exchange"]

_MAX_BODY_BYTES = 64 << 20
_MAX_KEPT_BYTES = 1 << 20  # of a body of which the beginning says enough


class Exchange:
    """`take` what was read and when; `done` once the outcome is full, whatever it is."""

    __slots__ = ("_body", "_events", "_finder", "_is_between", "_is_ended", "_is_stream", "_num_events", "call", "done",
                 "is_begun", "outcome", "reader")  # fmt: skip

    def __init__(self, call: Call, outcome: Outcome) -> None:
        self.call, self.outcome = call, outcome
        self.reader = ResponseReader(without_body=call.method == "HEAD")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_begun = False  # whether anything was read
        self._is_stream = call.answer == "stream"
        self._events, self._finder = EventReader(), TextFinder()
        self._body = bytearray()  # of an answer in one piece, or of an error
        self._num_events = 0
        self._is_ended = False  # the stream said so
        self._is_between = False  # two chunks and two events

    def take(self, data: bytes, now_s: float) -> None:
        """Bytes of the answer."""
        outcome, reader = self.outcome, self.reader
        if self._is_between and (size := self._finder.finds_at_a_glance(data)):
            outcome.num_bytes += size
            outcome.end_s = now_s
            self._num_events += 1
            self._take_text(self._finder.text, now_s)
            return
        self.is_begun = True
        try:
            piece = reader.feed(data)
            if reader.status and not outcome.status:
                outcome.status = reader.status
                self._look_at_head()
            if piece:
                if outcome.first_byte_s is None:
                    outcome.first_byte_s = now_s
                outcome.num_bytes += len(piece)
                outcome.end_s = now_s  # so far
                if self._is_stream and outcome.status == 200:
                    self._take_events(piece, now_s, data)
                else:
                    self._keep(piece)
            self._is_between = self._is_stream and reader.is_between and self._events.is_between
            if reader.ended:
                self._conclude(now_s)
        except ValueError as error:
            self.fail(describe_error(error), now_s)

    def lose(self, error: Exception | None, now_s: float) -> None:
        """The connection is gone."""
        if self.done.done():
            return
        if error is None and self.reader.close():
            # Its last byte came before: when the server closed is no part of the answer.
            self._conclude(self.outcome.end_s or now_s)
            return
        found = asyncio.IncompleteReadError(b"", None) if error is None else error
        self.fail(describe_error(found, is_begun=self.outcome.status != 0), now_s)

    def fail(self, error: str, now_s: float) -> None:
        """It ends with `error`; one that was there before stays."""
        if not self.done.done():
            self.outcome.error = self.outcome.error or error
            self._end(now_s)

    def _end(self, now_s: float) -> None:
        outcome = self.outcome
        outcome.end_s = now_s
        if self._is_stream:
            if outcome.error is None and outcome.first_token_s is None:
                outcome.error = "the answer had no text"
            if outcome.error is None and not outcome.num_output_tokens:
                outcome.is_counted, outcome.num_output_tokens = False, 1 + len(outcome.gaps_s)
        if not self.done.done():
            self.done.set_result(None)

    def _conclude(self, now_s: float) -> None:
        """The body is complete."""
        if self.done.done():
            return
        outcome = self.outcome
        if not self._is_good:
            outcome.error = http_error(outcome.status, bytes(self._body))
        elif not self._is_stream:
            self._read_whole()
        elif not self._is_ended and outcome.error is None:
            is_stream = self._num_events > 0 or "json" not in self.reader.headers.get("content-type", "")
            outcome.error = "the stream was cut off" if is_stream else "one answer came, and not a stream of events"
        self._end(now_s)

    def _look_at_head(self) -> None:
        """What is compressed has to be read as text in vain; it was not asked for, either."""
        encoding = self.reader.headers.get("content-encoding", "identity").lower()
        if (self._is_stream or self.call.reads_usage) and self._is_good and encoding not in ("", "identity"):
            raise ValueError("it is compressed, which was not asked for")

    @property
    def _is_good(self) -> bool:
        status = self.outcome.status
        return status == 200 if self._is_stream else 200 <= status < 300

    def _keep(self, piece: bytes) -> None:
        if self.outcome.num_bytes > _MAX_BODY_BYTES:
            raise ValueError("an answer of more than 64 MiB")
        if self.call.reads_usage or len(self._body) < _MAX_KEPT_BYTES:
            self._body += piece

    def _read_whole(self) -> None:
        outcome = self.outcome
        if not outcome.num_bytes and not self.call.may_be_empty:
            outcome.error = "the answer is empty"
        elif self.call.reads_usage:
            try:
                self._take_usage(json.loads(self._body).get("usage"))
            except (ValueError, RecursionError, AttributeError):
                outcome.error = "garbled answer (no JSON object with a usage)"

    def _take_events(self, piece: bytes, now_s: float, data: bytes) -> None:
        """data: as it was read, with what is around `piece`."""
        payloads = self._events.feed(piece)
        for payload in payloads:
            if payload == b"[DONE]":
                self._is_ended = True
                continue
            self._num_events += 1
            if self._finder.finds_in(payload):
                self._take_text(self._finder.text, now_s)
            elif text := self._read(payload):
                self._take_text(text.encode("utf-8", "surrogatepass"), now_s)
            if self.done.done():
                return
        if self._is_between and len(payloads) == 1:
            self._finder.learn_around(data, payloads[0])

    def _take_text(self, text: bytes, now_s: float) -> None:
        outcome = self.outcome
        if outcome.pieces is not None:
            outcome.pieces.append(text.decode("utf-8", "surrogatepass"))
        last_s = outcome.last_token_s
        if last_s is None:
            outcome.first_token_s = now_s
        else:
            outcome.gaps_s.append(now_s - last_s)
        outcome.last_token_s = now_s
        if self.call.hang_up_after == 1 + len(outcome.gaps_s):
            self.fail(HUNG_UP, now_s)

    def _read(self, payload: bytes) -> str:
        event = read_event(payload)
        if event.get("error") is not None:
            self.outcome.error = f"error event: {error_message(payload)}"
            return ""
        self._take_usage(event.get("usage"))
        text = text_of(event)
        if text and self.outcome.last_token_s is not None:  # the first may be unlike those that follow
            self._finder.learn(payload, event, text)
        return text

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.outcome.num_prompt_tokens = count_of(usage, "prompt_tokens")
            self.outcome.num_output_tokens = count_of(usage, "completion_tokens")
