"""From a running generation to an HTTP answer, whole or streamed. The two generating endpoints differ only in their
objects."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from aie_engine import AieError
from aie_server.api.generation import Choice, Generation
from aie_server.api.sampling import StreamOptions
from aie_server.api.wire import DONE, ChunkWriter, Envelope, event, logprobs_object, usage_object
from aie_server.errors import error_object
from aie_server.http.messages import ClientGoneError, Response, StreamingResponse, json_response
from aie_server.served import Tokenizer
from aie_server.text_output import Delta, ScoredToken

__all__ = ["Answer"]

_log = logging.getLogger("aie.server")


@dataclass(slots=True)
class Answer:
    """One opened generation and how its client wants it."""

    envelope: Envelope
    generation: Generation
    tokenizer: Tokenizer
    options: StreamOptions
    with_logprobs: bool

    def respond(self) -> Response | StreamingResponse:
        return self._stream() if self.options.stream else self._whole()

    # Whole

    def _whole(self) -> Response:
        with self.generation:
            texts: dict[int, list[str]] = {choice.index: [] for choice in self.generation.choices}
            scored: dict[int, list[ScoredToken]] = {index: [] for index in texts}
            reasons: dict[int, str | None] = {}
            for choice, delta in self.generation:
                texts[choice.index].append(delta.text)
                scored[choice.index] += delta.scored
                reasons[choice.index] = delta.finish_reason
        choices = [self._choice(index, "".join(texts[index]), scored[index], reasons[index]) for index in texts]
        body = self.envelope.object(choices, is_chunk=False)
        body["usage"] = usage_object(self.generation.usage)
        return json_response(body)

    def _choice(self, index: int, text: str, scored: list[ScoredToken], reason: str | None) -> dict[str, object]:
        logprobs = logprobs_object(self.envelope.kind, self.tokenizer, scored) if self.with_logprobs else None
        content: dict[str, object] = {"text": text}
        if self.envelope.kind == "chat":
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    # Streamed

    def _stream(self) -> StreamingResponse:
        """Waits for the first news before it answers, so that what fails early still gets its own status."""
        deltas = iter(self.generation)
        try:
            first = next(deltas)
        except BaseException:
            self.generation.close()
            raise
        return StreamingResponse(self._pieces(first, deltas), self.generation.close)

    def _pieces(self, first: tuple[Choice, Delta], rest: Iterator[tuple[Choice, Delta]]) -> Iterator[bytes]:
        writers = [
            ChunkWriter(self.envelope, choice.index, with_usage_field=self.options.include_usage)
            for choice in self.generation.choices
        ]
        opening = b"".join(writer.role() for writer in writers) if self.envelope.kind == "chat" else b""
        try:
            if events := opening + self._events(writers, *first):  # a completion's first token may be held back
                yield events
            for choice, delta in rest:
                if events := self._events(writers, choice, delta):
                    yield events
        except (ClientGoneError, GeneratorExit):
            raise
        except Exception as error:
            if not isinstance(error, AieError):
                _log.exception("stream %s failed", self.envelope.id)
            yield event(error_object(error))
            return
        self.generation.close()  # before the client learns that it may come again
        if self.options.include_usage:
            last = self.envelope.object([], is_chunk=True)
            last["usage"] = usage_object(self.generation.usage)
            yield event(last) + DONE
        else:
            yield DONE

    def _events(self, writers: list[ChunkWriter], choice: Choice, delta: Delta) -> bytes:
        """Nothing while text is held back: no news is no event."""
        writer = writers[choice.index]
        usage = self.generation.usage if self.options.continuous_usage else None
        events = b""
        if delta.text or delta.scored:
            logprobs = logprobs_object(self.envelope.kind, self.tokenizer, delta.scored) if delta.scored else None
            events = writer.text(delta.text, logprobs, usage)
        if delta.finish_reason is not None:
            events += writer.finish(delta.finish_reason, usage)
        return events
