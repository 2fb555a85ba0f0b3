"""A scripted engine, a tokenizer whose tokens are bytes, and a client that speaks raw HTTP: no model, no sleeping."""

import codecs
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import settings

from aie_engine import (
    EngineInfo,
    EngineStats,
    Explanation,
    GenerateRequest,
    InvalidInputError,
    TimelineReport,
    TokenEvent,
    TokenLogprobs,
    TokenStream,
)
from aie_server import ServedModel, Server

settings.register_profile("server", deadline=None, derandomize=True)
settings.load_profile("server")

WAIT_S = 5.0  # for what must happen; a test that waits so long has failed
EOS = 256
IM_START = 257
VOCAB = 300  # ids from 258 are padding: the model has them, the tokenizer does not


class ByteTokenizer:
    """One token per byte; 256 ends an answer, 257 begins a turn."""

    vocab_size = 258
    special_ids = frozenset({EOS, IM_START})
    _special_text: ClassVar = {EOS: "<end>", IM_START: "<turn>"}

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]:
        return [*([IM_START] if add_special_tokens and text.startswith("@bos") else []), *text.encode()]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        decoder = self.incremental(skip_special_tokens=skip_special_tokens)
        return decoder.push(ids) + decoder.finish()

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidInputError(f"there is no token {token_id}")
        return bytes([token_id]) if token_id < 256 else self._special_text[token_id].encode()

    def incremental(self, *, skip_special_tokens: bool = True) -> "ByteDecoder":
        return ByteDecoder(self, skip_special_tokens)


class ByteDecoder:
    def __init__(self, tokenizer: ByteTokenizer, skips: bool) -> None:
        self._tokenizer, self._skips = tokenizer, skips
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(
            b"".join(
                self._tokenizer.token_bytes(token)
                for token in ids
                if not (self._skips and token in self._tokenizer.special_ids)
            )
        )

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class PlainTemplate:
    """`role: content` lines."""

    sources: ClassVar = {"default": "…"}

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        text = "".join(f"{message['role']}: {message['content']}|\n" for message in messages)
        return text + "".join(f"{kwargs[key]}" for key in kwargs) + ("assistant: " if add_generation_prompt else "")


class FakeTextModel:
    name = "fake"

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.chat_template: PlainTemplate | None = PlainTemplate()


Script = Callable[[GenerateRequest], Iterable[TokenEvent]]


def says(text: str | bytes, *, finish: str | None = "stop") -> Script:
    """An engine that answers `text`, one byte per token and all at once, as far as max_tokens allows."""
    data = text.encode() if isinstance(text, str) else text

    def script(request: GenerateRequest) -> Iterable[TokenEvent]:
        limit = request.sampling.max_tokens
        tokens = [*data, EOS] if finish == "stop" else list(data)
        for index, token in enumerate(tokens[:limit]):
            ends = token == EOS
            reason: Any = "stop" if ends else "length" if index + 1 == limit else None
            scores = ()
            if request.sampling.logprobs is not None:
                scores = (TokenLogprobs(token, -0.5, ((token, -0.5), (299, -2.0))[: request.sampling.logprobs]),)
            yield TokenEvent(
                request.request_id,
                (token,),
                scores,
                reason,
                EOS if ends else None,
                num_prompt_tokens=len(request.prompt_ids),
                prompt_logprobs=_prompt_scores(request) if index == 0 else (),
            )

    return script


def _prompt_scores(request: GenerateRequest) -> tuple[TokenLogprobs, ...]:
    """Of every token but the first, if they are wanted: −1 each, third in rank, behind an 'x'."""
    wanted = request.sampling.prompt_logprobs
    if wanted is None:
        return ()
    return tuple(TokenLogprobs(token, -1.0, ((120, -0.25),)[:wanted], 3) for token in request.prompt_ids[1:])


class FakeEngine:
    """With a script it answers at once; without one, the test sends events by hand with `emit`."""

    def __init__(self, script: Script | None = None, *, max_seq_len: int = 256) -> None:
        self.info = EngineInfo(
            model_name="fake",
            max_seq_len=max_seq_len,
            vocab_size=VOCAB,
            max_batch_size=8,
            num_kv_blocks=64,
            block_size=16,
            kernels="numpy",
            num_threads=1,
            eos_token_ids=(EOS,),
        )
        self.is_alive = True
        self.figures = EngineStats()
        self.snapshot: dict[str, object] = {"version": 1, "sample_every": 1, "groups": []}
        self.fail_memory: Exception | None = None
        self.timelines: dict[str, TimelineReport] = {}  # what it says of requests
        self.fail_explain: Exception | None = None
        self.explained: list[list[str]] = []  # what it was asked for
        self.script = script
        self.fail_submit: Exception | None = None
        self.fail_from = 0  # the first submission that fails
        self.requests: list[GenerateRequest] = []
        self.cancelled: list[str] = []
        self._streams: dict[str, TokenStream] = {}
        self._changed = threading.Condition()

    def submit(self, request: GenerateRequest) -> TokenStream:
        with self._changed:
            if self.fail_submit is not None and len(self.requests) >= self.fail_from:
                raise self.fail_submit
            stream = TokenStream(request.request_id, self.cancel)
            self._streams[request.request_id] = stream
            self.requests.append(request)
            self._changed.notify_all()
        if self.script is not None:
            for event in self.script(request):
                stream.put(event)
        return stream

    def cancel(self, request_id: str) -> None:
        with self._changed:
            self.cancelled.append(request_id)
            self._changed.notify_all()
        self._streams[request_id].put(TokenEvent(request_id, finish_reason="cancelled"))

    def stats(self) -> EngineStats:
        return self.figures

    def memory(self) -> Mapping[str, object]:
        if self.fail_memory is not None:
            raise self.fail_memory
        return self.snapshot

    def explain(self, request_ids: Sequence[str] | None = None, *, num_ended: int = 0) -> Explanation:
        if self.fail_explain is not None:
            raise self.fail_explain
        self.explained.append(list(request_ids or ()))
        known = [self.timelines[name] for name in request_ids or self.timelines if name in self.timelines]
        return Explanation(known, None, 0, num_ended, 512)

    def close(self, timeout_s: float = 10.0) -> None:
        self.is_alive = False

    def emit(self, text: str | bytes | tuple[int, ...] = b"", *, index: int = 0, **kwargs: Any) -> None:
        """Send an event of the request with this index, made of the bytes of `text`."""
        request = self.wait_for_request(index)
        data = text.encode() if isinstance(text, str) else text
        self._streams[request.request_id].put(TokenEvent(request.request_id, tuple(data), **kwargs))

    def wait_for_request(self, index: int = 0) -> GenerateRequest:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) > index, WAIT_S), "no request reached the engine"
            return self.requests[index]

    def wait_until_taken(self, index: int = 0) -> None:
        """Until the server has taken all events of the request with this index; no event announces that."""
        events = self._streams[self.wait_for_request(index).request_id]._events
        deadline, pause = time.monotonic() + WAIT_S, threading.Event()
        while not events.empty():
            assert time.monotonic() < deadline, "nobody reads the stream"
            pause.wait(0.002)

    def wait_for_cancel(self, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.cancelled) >= count, WAIT_S), "the request was not cancelled"


@dataclass
class Answer:
    """One HTTP answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"], error
        assert isinstance(error, dict)
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; the last one is the text [DONE]."""
        assert self.body.endswith(b"\n\n"), self.body[-80:]
        texts = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n")[:-1]]
        return [text.decode() if text == b"[DONE]" else json.loads(text) for text in texts]


@dataclass
class RawClient:
    """A TCP connection and a minimal, strict reader of HTTP answers."""

    sock: socket.socket
    buffer: bytes = field(default=b"")

    def send(self, data: bytes) -> "RawClient":
        self.sock.sendall(data)
        return self

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> "RawClient":
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: test",
            f"Content-Length: {len(data)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def get(self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> "RawClient":
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{k}: {v}" for k, v in (headers or {}).items())]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    def read_until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            self._receive()
        head, _, self.buffer = self.buffer.partition(end)
        return head

    def read_exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._receive()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self) -> tuple[int, dict[str, str]]:
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        assert lines[0].startswith("HTTP/1.1 "), lines[0]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        return int(lines[0].split(" ")[1]), headers

    def chunk(self) -> bytes:
        size = int(self.read_until(b"\r\n"), 16)
        data = self.read_exactly(size)
        assert self.read_exactly(2) == b"\r\n"
        return data

    def answer(self, *, has_body: bool = True) -> Answer:
        status, headers = self.head()
        if headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while chunk := self.chunk():
                body += chunk
            return Answer(status, headers, body)
        length = int(headers.get("Content-Length", 0)) if has_body else 0
        return Answer(status, headers, self.read_exactly(length))

    def answer_of_chunks(self) -> Answer:
        """The rest of a stream whose head was read already."""
        body = b""
        while chunk := self.chunk():
            body += chunk
        return Answer(200, {}, body)

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the connection; anything else that arrives is no end."""
        try:
            return not self.buffer and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        assert data, f"the server closed the connection after {self.buffer!r}"
        self.buffer += data


class Harness:
    """Servers and clients of one test; everything is closed at its end, and no thread may be left."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._servers: list[Server] = []
        self._clients: list[RawClient] = []
        self.engine = FakeEngine(says("Hello, wörld"))
        self.text = FakeTextModel()

    def serve(self, engine: FakeEngine | None = None, **kwargs: Any) -> Server:
        self.engine = engine or self.engine
        server = Server([ServedModel("fake", self.engine, self.text, created=1)], port=0, **kwargs)  # type: ignore[arg-type]
        server.start()
        self._servers.append(server)
        return server

    def connect(self, server: Server | None = None) -> RawClient:
        server = server or (self._servers[-1] if self._servers else self.serve())
        client = RawClient(socket.create_connection(server.address, timeout=WAIT_S))
        self._clients.append(client)
        return client

    def post(self, path: str, body: object, **headers: str) -> Answer:
        return self.connect().post(path, body, headers).answer()

    def get(self, path: str, **headers: str) -> Answer:
        return self.connect().get(path, headers=headers).answer()

    def chat(self, text: str = "hi", **fields: object) -> Answer:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def complete(self, prompt: object = "hi", **fields: object) -> Answer:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self._servers:
            server.close()
        left = set(threading.enumerate()) - self._threads
        for thread in left:  # a library's may be about to end
            thread.join(WAIT_S)
        left = {thread for thread in left if thread.is_alive()}
        assert not left, f"threads left behind: {left}"


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


@pytest.fixture
def make_engine() -> type[FakeEngine]:
    return FakeEngine


@pytest.fixture
def script() -> Callable[..., Script]:
    return says


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
