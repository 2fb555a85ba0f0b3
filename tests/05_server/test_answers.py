"""The objects that clients get, whole and streamed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from aie_engine import ErrorInfo, TokenEvent
from aie_server import ServerConfig

USAGE = {"prompt_tokens": 2, "completion_tokens": 14, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 0}}


def test_chat_completion_object(harness: Any) -> None:
    answer = harness.chat()
    body = answer.json
    assert answer.headers["Content-Type"] == "application/json"
    assert body.pop("id").startswith("chatcmpl-") and body.pop("created") > 0 and body.pop("system_fingerprint")
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {**USAGE, "prompt_tokens": 21, "total_tokens": 35},
    }
    assert bytes(harness.engine.requests[0].prompt_ids) == b"user: hi|\nassistant: "


def test_text_completion_object(harness: Any) -> None:
    body = harness.complete(max_tokens=20).json
    assert body.pop("id").startswith("cmpl-") and body.pop("created") > 0 and body.pop("system_fingerprint")
    assert body == {
        "object": "text_completion",
        "model": "fake",
        "usage": USAGE,
        "choices": [{"index": 0, "text": "Hello, wörld", "logprobs": None, "finish_reason": "stop"}],
    }


def test_defaults_of_max_tokens(harness: Any) -> None:
    harness.complete()
    harness.chat()
    harness.complete("x" * 250)
    assert [request.sampling.max_tokens for request in harness.engine.requests] == [16, 256 - 21, 6]


def test_default_of_chat_can_be_bounded(harness: Any) -> None:
    harness.serve(config=ServerConfig(max_default_chat_tokens=10))
    assert harness.chat().json["choices"][0]["finish_reason"] == "length"


def test_sampling_fields_reach_the_engine(harness: Any) -> None:
    harness.complete(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=7,
        max_completion_tokens=3,
        max_tokens=9,
        stop_token_ids=[65],
        ignore_eos=True,
        logprobs=2,
    )
    sampling = harness.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert sampling.seed == 7
    assert (sampling.max_tokens, sampling.stop_token_ids, sampling.ignore_eos, sampling.logprobs) == (3, (65,), True, 2)


def test_stop_strings_end_the_answer_and_the_request(harness: Any) -> None:
    choice = harness.complete(stop=["w", "xyz"], max_tokens=20).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello, ", "stop")
    assert harness.complete(stop="wö", include_stop_str_in_output=True).json["choices"][0]["text"] == "Hello, wö"


def test_stop_string_cancels_a_request_that_still_runs(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/completions", {"prompt": "hi", "stop": "END"})
    engine.emit("some E")
    engine.emit("ND and more")
    answer = client.answer()
    assert answer.json["choices"][0]["text"] == "some "
    engine.wait_for_cancel()


def test_chat_stream_has_the_shape_that_clients_expect(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True})
    engine.emit("He", num_prompt_tokens=21)
    status, headers = client.head()
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    assert headers["Cache-Control"] == "no-cache"
    first = client.chunk()
    engine.emit("llo")
    second = client.chunk()
    engine.emit((256,), finish_reason="stop", stop_token_id=256)
    rest = b""
    while chunk := client.chunk():
        rest += chunk
    events = [event for event in (first + second + rest).decode().split("\n\n") if event]
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {(chunk["object"], chunk["model"], chunk["id"]) for chunk in chunks} == {
        ("chat.completion.chunk", "fake", chunks[0]["id"])
    }
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "He"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "llo"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None])
def test_no_usage_unless_asked_for(harness: Any, options: object) -> None:
    events = harness.chat(stream=True, stream_options=options).events
    assert events[-1] == "[DONE]"
    assert all("usage" not in event for event in events[:-1])


def test_usage_chunk_comes_last_and_has_no_choices(harness: Any) -> None:
    *chunks, last, done = harness.complete(stream=True, stream_options={"include_usage": True}, max_tokens=20).events
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert all(chunk["usage"] is None for chunk in chunks)


def test_continuous_usage(harness: Any) -> None:
    *chunks, last, _ = harness.complete(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=20
    ).events
    assert chunks[-1]["usage"] == last["usage"] == USAGE


def test_completion_stream(harness: Any) -> None:
    *chunks, done = harness.complete(stream=True, max_tokens=20).events
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello, wörld"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]


def test_streamed_text_escapes_like_json(harness: Any, make_engine: Any, script: Any) -> None:
    text = 'quote " backslash \\ newline \n tab \t null \0 emoji 😀 separator \u2028'
    harness.serve(make_engine(script(text)))
    *chunks, _ = harness.complete(stream=True, max_tokens=200).events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


def test_no_event_while_text_is_held_back(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/completions", {"prompt": "hi", "stream": True, "stop": "STOP"})
    for piece in ("a", "ST", "O", "x"):
        engine.emit(piece)
    engine.emit(finish_reason="length")
    events = client.answer().events
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "aSTOx"
    assert all(event["choices"][0]["text"] or event["choices"][0]["finish_reason"] for event in events[:-1])


def test_several_prompts_are_several_choices(harness: Any) -> None:
    body = harness.complete(["a", "bc", "def"], max_tokens=5).json
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        (index, "Hello", "length") for index in range(3)
    ]
    assert body["usage"]["prompt_tokens"] == 6 and body["usage"]["completion_tokens"] == 15


@pytest.mark.parametrize("first", [b"\xc3", b"S"])  # half a character; perhaps the begin of the stop string
def test_stream_whose_first_token_gives_no_text_yet_goes_on(harness: Any, make_engine: Any, first: bytes) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/completions", {"prompt": "hi", "stream": True, "stop": "STOP"})
    engine.wait_for_request()
    engine.emit(first)
    engine.wait_until_taken()  # the first token arrives alone
    engine.emit(b"\xb6x", finish_reason="length")
    events = client.answer().events
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == (first + b"\xb6x").decode(errors="replace")
    assert events[-1] == "[DONE]"


def test_several_prompts_stream_side_by_side(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/completions", {"prompt": [[1, 2], [3]], "stream": True})
    engine.emit("second", index=1)
    client.head()
    assert b'"index":1' in client.chunk(), "the second waited for the first"
    engine.emit("first", index=0, finish_reason="length")
    engine.emit("!", index=1, finish_reason="length")
    events = client.answer_of_chunks().events
    texts = {0: "", 1: ""}
    for event in events[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {0: "first", 1: "!"}


def test_chat_logprobs(harness: Any) -> None:
    content = harness.chat(logprobs=True, top_logprobs=2, max_tokens=2).json["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [{"token": "H", "logprob": -0.5, "bytes": [72]}, {"token": "", "logprob": -2.0, "bytes": []}],
    }
    assert len(content) == 2


def test_completion_logprobs(harness: Any) -> None:
    logprobs = harness.complete(logprobs=1, max_tokens=3).json["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["H", "e", "l"],
        "token_logprobs": [-0.5] * 3,
        "text_offset": [0, 1, 2],
        "top_logprobs": [{"H": -0.5}, {"e": -0.5}, {"l": -0.5}],
    }


def test_streamed_logprobs(harness: Any) -> None:
    *chunks, _ = harness.chat(stream=True, logprobs=True, max_tokens=3).events
    tokens = [
        item["token"]
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for item in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert tokens == ["H", "e", "l"]


ERROR = ErrorInfo("engine_fault", "The logits were not numbers.", 500, None)
ENDINGS = [
    ("deadline", None, 504, "deadline_exceeded"),
    ("error", ERROR, 500, "engine_fault"),
    ("error", ErrorInfo("engine_died", "The worker died.", 503, 1.0), 503, "engine_died"),
    ("cancelled", None, 503, "server_draining"),
]


@pytest.mark.parametrize(("reason", "error", "status", "code"), ENDINGS)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_has_its_own_status(
    harness: Any, make_engine: Any, stream: bool, reason: str, error: ErrorInfo | None, status: int, code: str
) -> None:
    def script(request: Any) -> list[TokenEvent]:
        return [TokenEvent(request.request_id, finish_reason=reason, error=error)]  # type: ignore[arg-type]

    harness.serve(make_engine(script), gate=DeadlineGate())
    answer = harness.complete(stream=stream)
    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize(("reason", "error", "status", "code"), ENDINGS)
def test_failure_in_a_stream_is_an_event_and_the_end(
    harness: Any, make_engine: Any, reason: str, error: ErrorInfo | None, status: int, code: str
) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine, gate=DeadlineGate()))
    client.post("/v1/completions", {"prompt": "hi", "stream": True})
    engine.emit("some")
    client.head()
    client.chunk()
    engine.emit(finish_reason=reason, error=error)
    events = client.answer_of_chunks().events
    assert [event["error"]["code"] for event in events] == [code]


class DeadlineGate:
    default_deadline_s = 30.0

    def admit(self, request: Any) -> Any:
        return nullcontext()

    def ready(self) -> tuple[bool, str]:
        return True, ""


def test_place_is_free_before_the_client_knows_the_end(harness: Any, make_engine: Any) -> None:
    """Else a client that never has more than one request open would be refused by a gate of one."""
    inside = 0

    class CountingGate(DeadlineGate):
        @contextmanager
        def admit(self, request: Any) -> Iterator[None]:
            nonlocal inside
            inside += 1
            assert inside == 1, "the one before it is still inside"
            yield
            inside -= 1

    client = harness.connect(harness.serve(gate=CountingGate()))
    for stream in [True, False] * 50:
        client.post("/v1/completions", {"prompt": "hi", "stream": stream})
        if stream:
            client.head()
            while not client.chunk().endswith(b"[DONE]\n\n"):
                pass
            client = harness.connect()  # without waiting for the end of the answer
        else:
            assert client.answer().status == 200
    assert inside == 0


def test_deadline_reaches_the_engine(harness: Any) -> None:
    harness.serve(gate=DeadlineGate())
    harness.complete()
    assert harness.engine.requests[0].deadline_s is not None


def test_server_ends_a_request_that_the_engine_forgot(harness: Any, make_engine: Any) -> None:
    gate = DeadlineGate()
    gate.default_deadline_s = 0.01
    engine = make_engine()
    harness.serve(engine, gate=gate, config=ServerConfig(deadline_grace_s=0.01, disconnect_poll_s=0.01))
    assert harness.complete().status == 504
    engine.wait_for_cancel()


def test_engine_that_dies_without_a_word(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    config = ServerConfig(disconnect_poll_s=0.01, dead_engine_grace_s=0.02)
    client = harness.connect(harness.serve(engine, config=config))
    client.post("/v1/completions", {"prompt": "hi"})
    engine.wait_for_request()
    engine.is_alive = False
    answer = client.answer()
    assert (answer.status, answer.error["code"], answer.headers["Retry-After"]) == (503, "engine_died", "1")


def test_continue_final_message(harness: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    harness.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True})
    assert bytes(harness.engine.requests[0].prompt_ids) == b"user: hi|\nassistant: Well,"


def test_text_parts_developer_role_and_template_variables(harness: Any) -> None:
    harness.post(
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
            ],
            "chat_template_kwargs": {"date_string": "today "},
        },
    )
    assert bytes(harness.engine.requests[0].prompt_ids) == b"system: ab|\ntoday assistant: "


@pytest.mark.parametrize(("sent", "kept"), [("my-id_1", True), ("a b", False), ("x" * 129, False), ("ü", False)])
def test_request_id_is_echoed_if_harmless(harness: Any, sent: str, kept: bool) -> None:
    answer = harness.get("/version", **{"X-Request-Id": sent})
    assert (answer.headers["X-Request-Id"] == sent) is kept
    assert answer.headers["X-Request-Id"]


def test_same_request_id_twice_is_two_requests_for_the_engine(harness: Any) -> None:
    for _ in range(2):
        harness.connect().post("/v1/completions", {"prompt": "x"}, {"X-Request-Id": "same"}).answer()
    assert len({request.request_id for request in harness.engine.requests}) == 2
