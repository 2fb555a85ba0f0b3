"""From a running generation to an HTTP answer, whole or streamed. The two generating endpoints differ only in their
objects."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from aie_engine import AieError, TokenLogprobs
from aie_server.api.generation import Choice, Generation
from aie_server.api.sampling import StreamOptions
from aie_server.api.tool_calls import Call, CallReader, NewReader, Piece
from aie_server.api.wire import (
    DONE,
    ChunkWriter,
    Envelope,
    call_object,
    event,
    logprobs_object,
    new_call_id,
    prompt_logprobs_object,
    usage_object,
)
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
    new_reader: NewReader | None = None  # of calls in the text, for each choice; None where nothing may be called
    with_prompt_logprobs: bool = False  # as a field of their own, in a whole answer
    with_token_ids: bool = False  # of prompt and answer, beside the text

    def respond(self) -> Response | StreamingResponse:
        return self._stream() if self.options.stream else self._whole()

    # Whole

    def _whole(self) -> Response:
        with self.generation:
            answers = [_Whole(choice.index, self._reader()) for choice in self.generation.choices]
            for choice, delta in self.generation:
                answers[choice.index].take(delta)
        choices = [self._choice(answer) for answer in answers]
        body = self.envelope.object(choices, is_chunk=False)
        self._add_prompt_logprobs(body, choices)
        self._add_token_ids(body, choices, answers)
        body["usage"] = usage_object(self.generation.usage)
        return json_response(body)

    def _add_prompt_logprobs(self, body: dict[str, object], choices: list[dict[str, object]]) -> None:
        """Where vLLM has them: in each choice of a completion, whose prompts differ, and once in a chat's answer."""
        first: list[TokenLogprobs] = []
        for choice, entry in zip(self.generation.choices, choices, strict=True):
            if choice.number == 0:
                first = choice.output.prompt_scores
            target = entry if self.envelope.kind == "completion" else body
            if self.with_prompt_logprobs:
                target["prompt_logprobs"] = prompt_logprobs_object(self.tokenizer, first)

    def _add_token_ids(
        self, body: dict[str, object], choices: list[dict[str, object]], answers: "list[_Whole]"
    ) -> None:
        """vLLM's `return_token_ids`."""
        if self.with_token_ids:
            for choice, entry, answer in zip(self.generation.choices, choices, answers, strict=True):
                target = entry if self.envelope.kind == "completion" else body
                target["prompt_token_ids"] = choice.prompt_ids
                entry["token_ids"] = answer.token_ids

    def _reader(self) -> CallReader | None:
        return None if self.new_reader is None else self.new_reader()

    def _choice(self, answer: "_Whole") -> dict[str, object]:
        logprobs = logprobs_object(self.envelope.kind, self.tokenizer, answer.scored) if self.with_logprobs else None
        text = "".join(answer.texts)
        content: dict[str, object] = {"text": text}
        if self.envelope.kind == "chat":
            message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
            if answer.calls:
                message["content"] = text or None
                message["tool_calls"] = [
                    call_object(new_call_id(), name, "".join(arguments)) for name, arguments in answer.calls
                ]
            content = {"message": message}
        return {"index": answer.index, **content, "logprobs": logprobs, "finish_reason": answer.finish_reason}

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
            _Streamed(
                ChunkWriter(self.envelope, choice.index, with_usage_field=self.options.include_usage), self._reader()
            )
            for choice in self.generation.choices
        ]
        opening = self._open(writers)
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

    def _open(self, writers: "list[_Streamed]") -> bytes:
        """What comes before the first delta: who speaks, and the token ids of the prompt if they are wanted."""
        opening = b""
        for choice, streamed in zip(self.generation.choices, writers, strict=True):
            more = {"prompt_token_ids": choice.prompt_ids} if self.with_token_ids else {}
            if self.envelope.kind == "chat":
                opening += streamed.writer.role(more)
            elif more:
                opening += streamed.writer.text("", more=more)
        return opening

    def _events(self, writers: "list[_Streamed]", choice: Choice, delta: Delta) -> bytes:
        """Nothing while text is held back: no news is no event."""
        streamed = writers[choice.index]
        usage = self.generation.usage if self.options.continuous_usage else None
        text, calls, reason = delta.text, b"", delta.finish_reason
        if streamed.reader is not None:
            text, calls, reason = streamed.read(delta)
        events = b""
        if text or delta.scored or delta.token_ids:
            logprobs = logprobs_object(self.envelope.kind, self.tokenizer, delta.scored) if delta.scored else None
            more = {"token_ids": delta.token_ids} if delta.token_ids else {}
            events = streamed.writer.text(text, logprobs, usage, more)
        events += calls
        if reason is not None:
            events += streamed.writer.finish(reason, usage)
        return events


@dataclass(slots=True)
class _Whole:
    """One choice, collected."""

    index: int
    reader: CallReader | None
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # names, and pieces of their arguments
    scored: list[ScoredToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, delta: Delta) -> None:
        for piece in _pieces_of(delta, self.reader):
            if isinstance(piece, str):
                self.texts.append(piece)
            elif isinstance(piece, Call):
                self.calls.append((piece.name, [piece.arguments]))
            else:
                self.calls[-1][1].append(piece.arguments)
        self.scored += delta.scored
        self.token_ids += delta.token_ids
        self.finish_reason = _reason(delta.finish_reason, self.reader, bool(self.calls))


@dataclass(slots=True)
class _Streamed:
    """One choice, on its way."""

    writer: ChunkWriter
    reader: CallReader | None
    num_calls: int = 0

    def read(self, delta: Delta) -> tuple[str, bytes, str | None]:
        """Words before the first call of this delta, events of all that comes behind them, and how it ended."""
        text, events = "", b""
        for piece in _pieces_of(delta, self.reader):
            if isinstance(piece, str):
                if events:
                    events += self.writer.text(piece)
                else:
                    text += piece
                continue
            if isinstance(piece, Call):
                events += self.writer.call(self.num_calls, new_call_id(), piece.name)
                self.num_calls += 1
            if piece.arguments:
                events += self.writer.arguments(self.num_calls - 1, piece.arguments)
        return text, events, _reason(delta.finish_reason, self.reader, self.num_calls > 0)


def _pieces_of(delta: Delta, reader: CallReader | None) -> list[Piece]:
    if reader is None:
        return [delta.text]
    pieces = reader.push(delta.text)
    return pieces if delta.finish_reason is None else pieces + reader.finish()


def _reason(reason: str | None, reader: CallReader | None, has_calls: bool) -> str | None:
    """A call that a stop string cut is none that a client could make."""
    is_whole = reader is not None and has_calls and not reader.is_cut
    return "tool_calls" if is_whole and reason == "stop" else reason
