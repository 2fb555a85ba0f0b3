"""OpenAI's response objects, and the bytes of their server-sent events.

A stream sends one small event per token, and everything but the text is the same each time. So the constant parts
are encoded once per choice, and a token costs one JSON string and one join.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from aie_engine import TokenLogprobs
from aie_server.api.generation import Usage
from aie_server.served import Tokenizer, safe_token_bytes
from aie_server.text_output import ScoredToken

__all__ = [
    "DONE",
    "ChunkWriter",
    "Envelope",
    "call_object",
    "event",
    "logprobs_object",
    "new_call_id",
    "prompt_logprobs_object",
    "usage_object",
]

DONE: Final = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_FINGERPRINT: Final = "aie-0.1"

_NOTHING: Final[Mapping[str, object]] = {}

Kind = Literal["chat", "completion"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What identifies a response in each of its parts."""

    kind: Kind
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, kind: Kind, model: str) -> "Envelope":
        return cls(kind, model, ("chatcmpl-" if kind == "chat" else "cmpl-") + uuid.uuid4().hex)

    def object(self, choices: Sequence[object], *, is_chunk: bool) -> dict[str, object]:
        name = (
            "text_completion"
            if self.kind == "completion"
            else "chat.completion.chunk"
            if is_chunk
            else "chat.completion"
        )
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": choices,
        }


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(value) + b"\n\n"


def usage_object(usage: Usage) -> dict[str, object]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _members(more: Mapping[str, object]) -> bytes:
    """As they continue an object that has some already."""
    return b"," + _encode(more)[1:-1] if more else b""


class ChunkWriter:
    """Events of one choice: `{…"choices":[{"index":0,"delta":{"content":` text `},"logprobs":` … `,"finish_reason":`
    … `}]…}`."""

    def __init__(self, envelope: Envelope, index: int, *, with_usage_field: bool) -> None:
        head = _encode(envelope.object([], is_chunk=True))
        assert head.endswith(b"[]}"), head
        self._choice = b"data: " + head[:-2] + b'{"index":%d,' % index
        is_chat = envelope.kind == "chat"
        self._before_text = self._choice + (b'"delta":{"content":' if is_chat else b'"text":')
        self._after_text = (b"}" if is_chat else b"") + b',"logprobs":'
        self._no_text = self._choice + b'"delta":{}' if is_chat else self._choice + b'"text":""'
        self._no_text += b',"logprobs":'
        self._end = b',"usage":null}\n\n' if with_usage_field else b"}\n\n"
        self._plain_end = self._after_text + b'null,"finish_reason":null}]' + self._end

    def role(self, more: Mapping[str, object] = _NOTHING) -> bytes:
        """The first chunk of a chat choice, with `more` beside `choices`."""
        return (
            self._choice
            + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            + _members(more)
            + self._end
        )

    def text(
        self, text: str, logprobs: object = None, usage: Usage | None = None, more: Mapping[str, object] = _NOTHING
    ) -> bytes:
        """`more`: further members of the choice."""
        if logprobs is None and usage is None and not more:
            return self._before_text + _encode(text) + self._plain_end
        return b"".join(
            (
                self._before_text,
                _encode(text),
                self._after_text,
                _encode(logprobs),
                b',"finish_reason":null',
                _members(more),
                b"}]",
                self._tail(usage),
            )
        )

    def call(self, number: int, call_id: str, name: str) -> bytes:
        """A function is called; `arguments` follow, with the same number."""
        function = {"name": name, "arguments": ""}
        return self._call({"index": number, "id": call_id, "type": "function", "function": function})

    def arguments(self, number: int, text: str) -> bytes:
        return self._call({"index": number, "function": {"arguments": text}})

    def _call(self, part: object) -> bytes:
        delta = b'"delta":{"tool_calls":[%b]}' % _encode(part)
        return self._choice + delta + b',"logprobs":null,"finish_reason":null}]' + self._end

    def finish(self, reason: str, usage: Usage | None = None) -> bytes:
        return self._no_text + b'null,"finish_reason":%b}]' % _encode(reason) + self._tail(usage)

    def _tail(self, usage: Usage | None) -> bytes:
        return self._end if usage is None else b',"usage":%b}\n\n' % _encode(usage_object(usage))


def call_object(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A call in a whole answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def new_call_id() -> str:
    """By which the client says what came of a call."""
    return "call_" + uuid.uuid4().hex[:24]


def _chat_logprobs(tokenizer: Tokenizer, scored: Iterable[ScoredToken]) -> dict[str, object]:
    """`logprobs` of a chat choice: each token with its likeliest alternatives."""
    return {
        "content": [
            {
                **_token_object(tokenizer, item.scores.token_id, item.scores.logprob),
                "top_logprobs": [_token_object(tokenizer, token, logprob) for token, logprob in item.scores.top],
            }
            for item in scored
        ]
    }


def _completion_logprobs(tokenizer: Tokenizer, scored: Iterable[ScoredToken]) -> dict[str, object]:
    """`logprobs` of a completion choice: parallel lists, in which the first token of an echoed prompt has null."""
    items = list(scored)
    return {
        "tokens": [_text(tokenizer, item.scores.token_id) for item in items],
        "token_logprobs": [_finite(item.scores.logprob) if item.has_chance else None for item in items],
        "top_logprobs": [
            {_text(tokenizer, token): _finite(logprob) for token, logprob in item.scores.top}
            if item.has_chance
            else None
            for item in items
        ],
        "text_offset": [item.offset for item in items],
    }


def prompt_logprobs_object(tokenizer: Tokenizer, scores: Sequence[TokenLogprobs]) -> list[object]:
    """vLLM's `prompt_logprobs`: null for the first token of a prompt, which nothing precedes, then for each token what
    was likely there, by id, itself among them."""
    return [None, *(_ranked(tokenizer, item) for item in scores)]


def _ranked(tokenizer: Tokenizer, scores: TokenLogprobs) -> dict[str, object]:
    likely = {token: (logprob, rank) for rank, (token, logprob) in enumerate(scores.top, 1)}
    entries = {scores.token_id: (scores.logprob, scores.rank)} | likely
    return {
        str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": _text(tokenizer, token)}
        for token, (logprob, rank) in entries.items()
    }


def _finite(logprob: float) -> float:
    """JSON has no −∞; vLLM's stand-in."""
    return max(logprob, -9999.0)


def _token_object(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, object]:
    return {
        "token": _text(tokenizer, token),
        "logprob": _finite(logprob),
        "bytes": list(safe_token_bytes(tokenizer, token)),
    }


def _text(tokenizer: Tokenizer, token: int) -> str:
    return safe_token_bytes(tokenizer, token).decode("utf-8", "replace")


def logprobs_object(kind: Kind, tokenizer: Tokenizer, scored: Iterable[ScoredToken]) -> dict[str, object]:
    """Log-probabilities in the form of the endpoint."""
    return (_chat_logprobs if kind == "chat" else _completion_logprobs)(tokenizer, scored)
