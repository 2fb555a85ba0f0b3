"""What operators see: health, metrics, version, routes, keys, models, access log; and tokenizing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aie_engine import AieError, EngineDeadError, EngineStats
from aie_server import Metrics, ServerConfig


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class SlowDownError(AieError):
    status = 429
    code = "rate_limited"
    retry_after_s = 0.2


class ClosedGate:
    default_deadline_s = None

    def admit(self, request: Any) -> Any:
        raise AssertionError("not asked here")

    def ready(self) -> tuple[bool, str]:
        return False, "the circuit breaker is open"


def test_health_is_ok(harness: Any) -> None:
    answer = harness.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_health_tells_why_a_request_would_not_be_served(harness: Any, make_engine: Any) -> None:
    harness.serve(gate=ClosedGate())
    answer = harness.get("/health")
    assert (answer.status, answer.json["reason"]) == (503, "the circuit breaker is open")
    engine = make_engine()
    harness.serve(engine)
    engine.figures = EngineStats(num_running=1, last_step_age_s=61)
    assert "not finished a step for 61 s" in harness.get("/health").json["reason"]
    engine.figures = EngineStats(num_running=0, last_step_age_s=1000)
    assert harness.get("/health").status == 200
    engine.is_alive = False
    answer = harness.get("/health")
    assert (answer.status, answer.json["reason"]) == (503, "the engine of fake is not running")


def test_metrics_parse_and_add_up(harness: Any) -> None:
    harness.engine.figures = EngineStats(
        num_running=3, num_waiting=2, kv_usage=0.25, num_preemptions=4, steps=10, batch_size_sum=25, rss_bytes=1000,
        num_kv_blocks=8, num_free_blocks=6, memory_reserved_bytes=90, memory_live_bytes=60, memory_requested_bytes=50,
        memory_cached_bytes=20, memory_pending_bytes=10, memory_mapped_bytes=7,
    )  # fmt: skip
    server = harness.serve()
    harness.complete(stream=True, max_tokens=20)
    harness.complete(max_tokens=3)
    harness.complete(temperature="hot")
    harness.get("/secret/path")
    found: dict[Any, float] = {}
    for _ in range(1000):  # a request is counted when its last byte has left, and the client may be faster
        answer = harness.get("/metrics")
        found = samples(answer.body.decode())
        if (
            sum(
                value
                for (name, labels), value in found.items()
                if "/metrics" not in str(labels) and name == "aie_requests_total"
            )
            == 4
        ):
            break
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    model = (("model_name", "fake"),)

    def of_model(name: str, **labels: str) -> float:
        return found[(name, tuple(sorted((*model, *labels.items()))))]

    assert of_model("aie_num_requests_running") == 3
    assert of_model("aie_num_requests_waiting") == of_model("aie_queue_length") == 2
    assert of_model("aie_kv_cache_usage_perc") == 0.25
    assert of_model("aie_num_preemptions_total") == 4
    assert of_model("aie_batch_size") == 2.5
    states = ("reserved", "live", "requested", "cached", "pending", "mapped")
    assert [of_model("aie_memory_bytes", state=state) for state in states] == [90, 60, 50, 20, 10, 7]
    assert [of_model("aie_kv_blocks", state=state) for state in ("used", "free")] == [2, 6]
    assert of_model("aie_prompt_tokens_total") == 4
    assert of_model("aie_generation_tokens_total") == 14 + 3
    assert of_model("aie_request_success_total", finished_reason="stop") == 1
    assert of_model("aie_request_success_total", finished_reason="length") == 1
    assert of_model("aie_time_to_first_token_seconds_count") == 2
    assert of_model("aie_e2e_request_latency_seconds_count") == 2
    assert of_model("aie_request_generation_tokens_sum") == 17
    assert of_model("aie_time_to_first_token_seconds_bucket", le="+Inf") == 2
    assert found[("aie_requests_total", (("route", "/v1/completions"), ("status", "200")))] == 2
    assert found[("aie_requests_total", (("route", "/v1/completions"), ("status", "400")))] == 1
    assert found[("aie_requests_total", (("route", "unmatched"), ("status", "404")))] == 1
    assert found[("aie_process_resident_memory_bytes", ())] > 1e6
    assert "secret" not in server.metrics.render(), "a path that a client chose became a label"


def test_metrics_prefix_of_other_boards(harness: Any) -> None:
    harness.serve(config=ServerConfig(metrics_prefix="vllm:"))
    assert ("vllm:num_requests_running", (("model_name", "fake"),)) in samples(harness.get("/metrics").body.decode())


def test_registry_escapes_and_accumulates() -> None:
    registry = Metrics("x_")
    counter = registry.counter("c_total", "Counts.", ("who",)).labels('a"b\\c\nd')
    counter.inc()
    counter.inc(2.5)
    histogram = registry.histogram("h", "Measures.", (0.1, 1.0)).labels()
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    found = samples(registry.render())
    assert found[("x_c_total", (("who", 'a"b\\c\nd'),))] == 3.5
    assert [found[("x_h_bucket", (("le", bound),))] for bound in ("0.1", "1", "+Inf")] == [2, 3, 4]
    assert (found[("x_h_sum", ())], found[("x_h_count", ())]) == (7.65, 4)


def test_totals_of_a_restarted_engine_go_on_from_where_they_were() -> None:
    counter = Metrics().counter("steps_total", "Steps.").labels()
    for total in (5, 9, 2, 4):
        counter.set_total(total)
    assert counter.value == 9 + 4


@pytest.mark.parametrize("path", ["/health", "/metrics", "/version", "/"])
def test_what_is_open_without_a_key(harness: Any, path: str) -> None:
    harness.serve(api_keys=["secret-key"])
    assert harness.get(path).status == 200


WRONG = [None, "", "Bearer", "Bearer wrong", "Basic secret-key", "secret-key", "Bearer ü"]


@pytest.mark.parametrize("authorization", WRONG)
def test_everything_else_needs_the_key(harness: Any, authorization: str | None) -> None:
    harness.serve(api_keys=["secret-key", "other"])
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in ("/v1/models", "/v1/nothing"):
        answer = harness.get(path, **headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert b"secret" not in answer.body


@pytest.mark.parametrize("key", ["secret-key", "other", "schlüssel"])  # headers are bytes; the client sends UTF-8
def test_right_key(harness: Any, key: str) -> None:
    harness.serve(api_keys=["secret-key", "other", "schlüssel"])
    assert harness.get("/v1/models", Authorization=f"Bearer {key}").status == 200


def test_memory_is_what_the_engine_says(harness: Any) -> None:
    harness.engine.snapshot = {"version": 1, "sample_every": 64, "groups": [{"what": "kv"}]}
    answer = harness.get("/debug/memory")
    assert (answer.status, answer.json) == (200, {"fake": harness.engine.snapshot})
    for query in ("?model=fake", "?model=default", "?model=fake&model=default", "?&&"):
        assert harness.get(f"/debug/memory{query}").json == {"fake": harness.engine.snapshot}


def test_memory_without_call_stacks_names_the_flag(harness: Any) -> None:
    harness.engine.snapshot = {"version": 1, "sample_every": 0, "pools": [{"name": "engine-0"}]}
    snapshot = harness.get("/debug/memory").json["fake"]
    assert snapshot["pools"] == [{"name": "engine-0"}] and "--memdebug" in snapshot["hint"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=other", 404, "model_not_found"),
        ("?model=", 404, "model_not_found"),
        ("?mdl=fake", 400, "invalid_input"),
    ],
)
def test_memory_of_nobody(harness: Any, query: str, status: int, code: str) -> None:
    answer = harness.get(f"/debug/memory{query}")
    assert (answer.status, answer.error["code"]) == (status, code)


def test_memory_of_a_dead_engine_is_unavailable(harness: Any) -> None:
    harness.engine.fail_memory = EngineDeadError("The engine's worker has died.")
    answer = harness.get("/debug/memory")
    assert (answer.status, answer.error["code"], answer.headers["Retry-After"]) == (503, "engine_died", "1")


def test_memory_needs_the_key(harness: Any) -> None:
    harness.serve(api_keys=["secret-key"])
    assert harness.get("/debug/memory").status == 401
    assert harness.get("/debug/memory", Authorization="Bearer secret-key").status == 200


def test_memory_names_the_requests_of_the_key_that_asks_alone(harness: Any) -> None:
    harness.serve(api_keys=["key-a", "key-b"])
    for key in "ab":
        fields = {"Authorization": f"Bearer key-{key}", "X-Request-Id": f"from-{key}"}
        assert harness.post("/v1/completions", {"prompt": "hi"}, **fields).status == 200
    ids = [request.request_id for request in harness.engine.requests]
    blocks = [{"owner": f"token ids of request {one}", "nbytes": 64} for one in ids]
    used = [[index, f"kv of request {one}"] for index, one in enumerate(ids)]
    pool = {"name": "engine-0", "segments": [{"blocks": [*blocks, {"owner": "weights"}]}], "slabs": [{"used": used}]}
    groups = [{"what": "kv", "stack": ["blocks.py:7 in take"], "requests": [*ids, "long-forgotten"]}]
    harness.engine.snapshot = {"version": 1, "sample_every": 1, "pools": [pool], "groups": groups}
    seen = harness.get("/debug/memory", Authorization="Bearer key-a").json["fake"]
    assert seen["groups"][0]["requests"] == ["from-a", "another client"]
    assert [block["owner"] for block in seen["pools"][0]["segments"][0]["blocks"]] == [
        "token ids of request from-a", "token ids of request another client", "weights",
    ]  # fmt: skip
    assert seen["pools"][0]["slabs"][0]["used"] == [[0, "kv of request from-a"], [1, "kv of request another client"]]
    assert "from-b" not in str(seen) and ids[1] not in str(seen)
    assert seen["groups"][0]["stack"] == ["blocks.py:7 in take"]


def test_models(harness: Any) -> None:
    assert harness.get("/v1/models").json == {
        "object": "list",
        "data": [
            {
                "id": "fake",
                "object": "model",
                "created": 1,
                "owned_by": "aie",
                "root": "fake",
                "parent": None,
                "max_model_len": 256,
            }
        ],
    }


def test_one_model(harness: Any) -> None:
    assert harness.get("/v1/models/fake").json["id"] == "fake"
    answer = harness.get("/v1/models/org%2Fother")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "org/other" in answer.error["message"]
    assert harness.get("/v1/models/").error["code"] == "route_not_found"


def test_index_lists_the_routes(harness: Any) -> None:
    answer = harness.get("/")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert all(path in answer.body.decode() for path in ("/v1/chat/completions", "/health", "/detokenize"))


def test_tokenize_and_back(harness: Any) -> None:
    answer = harness.post("/tokenize", {"prompt": "@bos é", "return_token_strs": True}).json
    assert answer == {
        "count": 8,
        "max_model_len": 256,
        "tokens": [257, *"@bos é".encode()],
        "token_strs": ["<turn>", "@", "b", "o", "s", " ", "�", "�"],
    }
    assert harness.post("/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": "<turn>@bos é"}
    assert harness.post("/tokenize", {"prompt": "@bos", "add_special_tokens": False}).json["count"] == 4
    assert harness.post("/tokenize", {"prompt": ""}).json == {
        "count": 0,
        "max_model_len": 256,
        "tokens": [],
        "token_strs": None,
    }


def test_tokenize_messages_as_chat_would(harness: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    tokens = harness.post("/tokenize", body).json["tokens"]
    assert bytes(tokens) == b"user: hi|\nassistant: "
    assert bytes(harness.post("/tokenize", {**body, "add_generation_prompt": False}).json["tokens"]) == b"user: hi|\n"


def test_access_log_has_one_line_that_nobody_can_forge(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = harness.serve()
    with caplog.at_level(logging.INFO, "aie.access"):
        harness.get("/x%0aY?key=secret", **{"X-Request-Id": "abc"})
        server.close()  # the line is written after the answer
    (line,) = caplog.messages
    assert "GET '/x%0aY' 404" in line and line.endswith(" abc") and "secret" not in line


def test_gate_is_asked_before_anything_is_tokenized(harness: Any) -> None:
    asked: list[Any] = []

    class Recorder:
        default_deadline_s = None

        def admit(self, request: Any) -> Any:
            asked.append(request)
            raise SlowDownError("Too fast.")

        def ready(self) -> tuple[bool, str]:
            return True, ""

    from aie_engine import AieError

    class SlowDownError(AieError):
        status = 429
        code = "rate_limited"
        retry_after_s = 0.2

    def encode(*_: object, **__: object) -> list[int]:
        raise AssertionError("a request that is refused must not cost a tokenization")

    harness.serve(gate=Recorder())
    harness.text.tokenizer.encode = encode
    for answer in (harness.complete(["ab", "c"]), harness.chat()):
        assert (answer.status, answer.headers["Retry-After"], answer.error["type"]) == (429, "1", "rate_limit_error")
    assert [(request.client_key, request.path) for request in asked] == [
        ("127.0.0.1", "/v1/completions"),
        ("127.0.0.1", "/v1/chat/completions"),
    ]
    assert harness.engine.requests == []


@pytest.mark.parametrize("prompt", ["x" * 300, [1] * 300, ""])
def test_prompt_that_is_found_wrong_behind_the_gate_leaves_it(harness: Any, prompt: object) -> None:
    inside: list[str] = []

    class Counter:
        default_deadline_s = None

        @contextmanager
        def admit(self, request: Any) -> Iterator[None]:
            inside.append(request.path)
            try:
                yield
            finally:
                inside.pop()

        def ready(self) -> tuple[bool, str]:
            return True, ""

    harness.serve(gate=Counter())
    assert harness.complete(prompt).status == 400
    assert inside == []


def test_tokenize_counts_what_no_context_could_hold(harness: Any) -> None:
    assert harness.post("/tokenize", {"prompt": "x" * 20_000}).json["count"] == 20_000
    harness.serve(config=ServerConfig(max_tokenize_chars=100))
    assert harness.post("/tokenize", {"prompt": "x" * 101}).error["param"] == "prompt"
