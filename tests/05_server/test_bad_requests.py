"""Every wrong request: its status, the field it names, its code. Nothing of it reaches the engine."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aie_engine import EngineDeadError
from aie_server import HttpLimits, ServerConfig

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

# fields that are the same for both endpoints: (field, value, param)
COMMON: list[tuple[str, object, str]] = [
    ("temperature", "hot", "temperature"),
    ("temperature", -1, "temperature"),
    ("temperature", 2.5, "temperature"),
    ("temperature", True, "temperature"),
    ("temperature", 10**400, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_p", [], "top_p"),
    ("min_p", -0.1, "min_p"),
    ("top_k", 1.5, "top_k"),
    ("top_k", -2, "top_k"),
    ("top_k", 10**30, "top_k"),
    ("seed", "x", "seed"),
    ("seed", 2**64, "seed"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -5, "max_tokens"),
    ("max_tokens", 10**12, "max_tokens"),
    ("max_tokens", "10", "max_tokens"),
    ("max_tokens", True, "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
    ("stop", 5, "stop"),
    ("stop", [""], "stop"),
    ("stop", ["a", 1], "stop"),
    ("stop", ["a"] * 17, "stop"),
    ("stop", "a" * 257, "stop"),
    ("stop_token_ids", [-1], "stop_token_ids"),
    ("stop_token_ids", [300], "stop_token_ids"),
    ("stop_token_ids", [True], "stop_token_ids"),
    ("stop_token_ids", "1", "stop_token_ids"),
    ("stop_token_ids", [1] * 65, "stop_token_ids"),
    ("ignore_eos", 1, "ignore_eos"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("skip_special_tokens", "no", "skip_special_tokens"),
    ("model", 7, "model"),
    ("n", 65, "n"),
    ("n", 0, "n"),
    ("n", -1, "n"),
    ("n", True, "n"),
    ("n", 1.5, "n"),
    ("best_of", 3, "best_of"),
    ("best_of", 65, "best_of"),
    ("logit_bias", [5], "logit_bias"),
    ("logit_bias", {"hi": 1}, "logit_bias"),
    ("logit_bias", {"-1": 1}, "logit_bias"),
    ("logit_bias", {"300": 1}, "logit_bias"),
    ("logit_bias", {"9" * 5000: 1}, "logit_bias"),
    ("logit_bias", {"\u0665": 1}, "logit_bias"),
    ("logit_bias", {"5": None}, "logit_bias"),
    ("logit_bias", {"5": "x"}, "logit_bias.5"),
    ("logit_bias", {"5": 100.5}, "logit_bias.5"),
    ("logit_bias", {"5": 1, "05": 1}, "logit_bias"),
    ("logit_bias", {str(token): 1 for token in range(1025)}, "logit_bias"),
    ("presence_penalty", 2.5, "presence_penalty"),
    ("presence_penalty", True, "presence_penalty"),
    ("frequency_penalty", "x", "frequency_penalty"),
    ("frequency_penalty", -2.1, "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("repetition_penalty", 101, "repetition_penalty"),
    ("typical_p", 0, "typical_p"),
    ("typical_p", 1.5, "typical_p"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 1000, "min_tokens"),
    ("bad_words", "x", "bad_words"),
    ("bad_words", [""], "bad_words"),
    ("bad_words", [5], "bad_words"),
    ("bad_words", ["x"] * 65, "bad_words"),
    ("bad_words", ["x" * 257], "bad_words"),
    ("allowed_token_ids", [], "allowed_token_ids"),
    ("allowed_token_ids", 5, "allowed_token_ids"),
    ("allowed_token_ids", [300], "allowed_token_ids"),
    ("allowed_token_ids", [1] * 301, "allowed_token_ids"),
    ("prompt_logprobs", 21, "prompt_logprobs"),
    ("prompt_logprobs", -1, "prompt_logprobs"),
    ("return_token_ids", 1, "return_token_ids"),
    ("priority", 101, "priority"),
    ("priority", "high", "priority"),
    ("cache_salt", "", "cache_salt"),
    ("cache_salt", 5, "cache_salt"),
    ("cache_salt", "x" * 257, "cache_salt"),
    ("structured_outputs", {"json": 5}, "structured_outputs.json"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("truncate_prompt_tokens", 0, "truncate_prompt_tokens"),
    ("length_penalty", 2, "length_penalty"),
    ("use_beam_search", True, "use_beam_search"),
]
ONLY_CHAT: list[tuple[str, object, str]] = [
    ("messages", [], "messages"),
    ("messages", "hi", "messages"),
    ("messages", ["hi"], "messages[0]"),
    ("messages", [{"content": "hi"}], "messages[0].role"),
    ("messages", [{"role": "pope", "content": "hi"}], "messages[0].role"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ("messages", [{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ("messages", MESSAGES * 2049, "messages"),
    ("messages", [{"role": "user", "content": "x" * 300}], "messages"),
    ("messages", [{"role": "user", "content": "x" * 300_000}], "messages"),
    ("max_tokens", 250, "messages"),
    ("tools", [{"type": "function"}], "tools[0].function"),
    ("tool_choice", "required", "tool_choice"),
    ("chat_template", "{{ x }}", "chat_template"),
    ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs"),
    ("chat_template_kwargs", {"tokenize": True}, "chat_template_kwargs"),
    ("chat_template_kwargs", {"thinking": [1]}, "chat_template_kwargs.thinking"),
    ("chat_template_kwargs", 5, "chat_template_kwargs"),
    ("logprobs", 1, "logprobs"),
    ("top_logprobs", 3, "top_logprobs"),
    ("top_logprobs", 21, "top_logprobs"),
    ("continue_final_message", True, "continue_final_message"),
    ("echo", True, "echo"),
]
ONLY_COMPLETIONS: list[tuple[str, object, str]] = [
    ("prompt", None, "prompt"),
    ("prompt", "", "prompt"),
    ("prompt", [], "prompt"),
    ("prompt", [""], "prompt"),
    ("prompt", [[]], "prompt"),
    ("prompt", {}, "prompt"),
    ("prompt", 5, "prompt"),
    ("prompt", ["a", 5], "prompt"),
    ("prompt", [1, "a"], "prompt"),
    ("prompt", [1.5], "prompt"),
    ("prompt", [True], "prompt"),
    ("prompt", [-1], "prompt"),
    ("prompt", [300], "prompt"),
    ("prompt", [10**30], "prompt"),
    ("prompt", [[1], [300]], "prompt"),
    ("prompt", ["a"] * 65, "prompt"),
    ("prompt", [1] * 256, "prompt"),
    ("prompt", [1] * 10_000, "prompt"),
    ("prompt", "x" * 256, "prompt"),
    ("prompt", "x" * 5_000_000, "prompt"),
    ("prompt", ["ok", "x" * 256], "prompt"),
    ("max_tokens", 255, "prompt"),
    ("logprobs", True, "logprobs"),
    ("logprobs", 21, "logprobs"),
    ("logprobs", -1, "logprobs"),
    ("echo", 1, "echo"),
    ("suffix", "end", "suffix"),
]
# fields that are fine alone
TOGETHER: list[tuple[dict[str, object], str]] = [
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"allowed_token_ids": [65], "bad_words": ["A"]}, "allowed_token_ids"),
    ({"allowed_token_ids": [256], "min_tokens": 2}, "allowed_token_ids"),
    ({"allowed_token_ids": [65, 256], "min_tokens": 2, "stop_token_ids": [65]}, "allowed_token_ids"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"best_of": 2}, "best_of"),
]
TABLE = [
    *((CHAT, {"messages": MESSAGES, field: value}, param) for field, value, param in [*COMMON, *ONLY_CHAT]),
    *((COMPLETIONS, {"prompt": "hi", field: value}, param) for field, value, param in [*COMMON, *ONLY_COMPLETIONS]),
    *(
        (path, {**asked, **fields}, param)
        for path, asked in [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "hi"})]
        for fields, param in TOGETHER
    ),
    (COMPLETIONS, {"prompt": ["a"] * 10, "n": 7}, "n"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "x"}, "tokens"),
    ("/detokenize", {"tokens": [300]}, "tokens"),
]


def test_each_bad_field_is_named(harness: Any) -> None:
    """One server and one connection for the whole table: no error may cost the connection."""
    client = harness.connect()
    for path, body, param in TABLE:
        answer = client.post(path, body).answer()
        shown = f"{path} {str(body)[:100]} → {answer.status} {answer.body[:300]!r}"
        assert answer.status == 400, shown
        assert answer.error["param"] == param, shown
        assert answer.error["type"] == "invalid_request_error", shown
        assert len(answer.body) < 1000, "the input is echoed"
    assert harness.engine.requests == []


BAD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"5",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"{'prompt': 'hi'}",
    b'{"prompt": "hi", "temperature": NaN}',
    b'{"prompt": "hi", "temperature": Infinity}',
    b'{"prompt": "hi", "temperature": 1e309}',
    b'{"prompt": "hi", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"prompt": "hi"} trailing',
    b'{"prompt": "\xc3"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\udc00x"}',
    b'{"prompt": "\\ud83d\\u0041"}',
    b'{"prompt": "a\nb"}',
    b"[" * 100_000,
    b'{"prompt":' * 5_000,
    b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"prompt": "a", "prompt": "b"}',
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(harness: Any, path: str) -> None:
    client = harness.connect()
    for body in BAD_BODIES:
        answer = client.post(path, body).answer()
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), body[:60]


def test_context_errors_name_limit_and_count(harness: Any) -> None:
    error = harness.complete("x" * 300).error
    assert error["code"] == "context_length_exceeded"
    assert "300 tokens" in error["message"] and "256 tokens" in error["message"]
    error = harness.complete("x" * 100, max_tokens=200).error
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("100", "200", "300", "256"))


def test_unknown_fields_and_harmless_values_are_ignored(harness: Any) -> None:
    answer = harness.chat(
        user="me",
        metadata={"a": 1},
        store=False,
        made_up=[1],
        n=1,
        tools=[],
        presence_penalty=0.0,
        logit_bias=None,
        response_format={"type": "text"},
        top_k=-1,
        max_tokens=4.0,
        stream_options=None,
        service_tier="auto",
    )
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("name", ["fake", "default", None])
def test_names_of_the_model(harness: Any, name: str | None) -> None:
    assert harness.complete(model=name).json["model"] == "fake"


def test_unknown_model(harness: Any) -> None:
    answer = harness.complete(model="gpt-5")
    assert (answer.status, answer.error["param"], answer.error["code"]) == (404, "model", "model_not_found")
    assert "fake" in answer.error["message"]


def test_unknown_route(harness: Any) -> None:
    answer = harness.get("/v1/nothing")
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST, OPTIONS"),
        ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("BREW", "/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_wrong_method_names_the_right_ones(harness: Any, method: str, path: str, allow: str) -> None:
    answer = harness.connect().get(path, method).answer()
    assert (answer.status, answer.headers["Allow"], answer.error["code"]) == (405, allow, "method_not_allowed")


def test_head_has_the_length_and_no_body(harness: Any) -> None:
    client = harness.connect()
    answer = client.get("/version", "HEAD").answer(has_body=False)
    assert answer.status == 200 and int(answer.headers["Content-Length"]) > 0
    assert client.get("/version").answer().status == 200, "the next answer begins where the body would have been"


@pytest.mark.parametrize("path", ["*", CHAT, "/health"])
def test_options(harness: Any, path: str) -> None:
    answer = harness.connect().get(path, "OPTIONS").answer()
    assert answer.status == 204 and "OPTIONS" in answer.headers["Allow"] and answer.body == b""


def test_errors_of_the_engine_keep_status_code_and_retry_after(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    engine.fail_submit = EngineDeadError("The engine is being restarted.", retry_after_s=2.2)
    harness.serve(engine)
    answer = harness.complete()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "3")
    assert answer.error == {
        "message": "The engine is being restarted.",
        "type": "overloaded_error",
        "param": None,
        "code": "engine_died",
    }


def test_a_bug_says_nothing_of_the_inside(harness: Any, make_engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    engine.fail_submit = RuntimeError("secret path /etc/x")
    harness.serve(engine)
    answer = harness.connect().post(COMPLETIONS, {"prompt": "hi"}, {"X-Request-Id": "abc"}).answer()
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert b"secret" not in answer.body
    assert "request abc failed" in caplog.text and "secret path" in caplog.text


def test_second_of_several_prompts_refused_leaves_nothing_running(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    engine.fail_submit, engine.fail_from = EngineDeadError("full"), 1
    harness.serve(engine)
    assert harness.complete(["a", "b", "c"]).status == 503
    assert engine.cancelled == [engine.requests[0].request_id]


def test_body_limit_of_the_configuration(harness: Any) -> None:
    config = ServerConfig()
    harness.serve(config=replace(config, http=replace(config.http, max_body_bytes=100)))
    answer = (
        harness.connect()
        .send(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\n\r\n" + b" " * 101)
        .answer()
    )
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_large_integers_in_ignored_fields_do_no_harm(harness: Any) -> None:
    body = json.dumps({"prompt": "hi", "made_up": 10**300, "user": "x" * 10_000}).encode()
    assert harness.connect().post(COMPLETIONS, body).answer().status in (200, 400)


def test_client_that_sends_a_body_too_large_before_it_reads_learns_why(harness: Any) -> None:
    """Closing while it still sends would be a reset, which looks like a broken server."""
    body = b'{"prompt": "' + b"a" * HttpLimits().max_body_bytes + b'"}'
    answer = harness.post("/v1/completions", body)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
