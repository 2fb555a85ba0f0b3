"""GET /debug/requests: what the server noted and the engine said, laid end to end; and who may see it."""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aie_engine import ENGINE_PHASES, EngineConfig, EngineDeadError, LocalEngine, Share, TimelineReport, load_text_model
from aie_server import HttpLimits, ServedModel, Server, ServerConfig
from aie_server.api.request_names import Names
from aie_server.api.request_times import SERVER_PHASES, choice_times, front_times
from aie_server.api.request_view import Engines, full_view
from aie_server.request_book import RequestTrace

KEYS = ("alice-key", "bob-key")


def report_of(engine_id: str, added_s: float, *, is_open: bool = False, **fields: Any) -> TimelineReport:
    phases = dict.fromkeys(ENGINE_PHASES, 0) | fields.pop("phases", {"turn": 500, "prefill": 3000, "decode": 6000})
    counts = dict.fromkeys(
        ("cached_tokens", "prefill_steps", "recomputed_tokens", "drafted_tokens", "accepted_tokens", "num_events"), 0
    )
    return TimelineReport(
        request_id=engine_id, state=fields.pop("state", "stop"), is_open=is_open, added_s=added_s,
        total_us=sum(phases.values()), phases_us=phases, first_token_us=3500, prompt_tokens=2, prefill_tokens=2,
        decode_steps=4, generated_tokens=5, preemptions=0, lost_tokens=0,
        preempted_by=fields.pop("preempted_by", []), held_by=fields.pop("held_by", []),
        stalled_by=fields.pop("stalled_by", []), events=[], **counts,
    )  # fmt: skip


def trace_of(started_s: float = 50.0, **instants: Any) -> RequestTrace:
    made = RequestTrace("mine", "127.0.0.1", "/v1/completions", "m", started_s, started_s + 0.001, started_s + 0.002)
    for name, value in instants.items():
        setattr(made, name, value)
    return made


def test_the_parts_lie_end_to_end() -> None:
    trace = trace_of(admitted_s=50.004, submitted_s=50.009, finished_s=50.030)
    first, second = trace.add_choice(0, "mine-0"), trace.add_choice(1, "mine-1")
    first.done_s, second.done_s = 50.021, 50.025
    times = choice_times(trace, first, report_of("mine-0", 50.010), now=99.0)
    assert {phase: us for phase, us in times.phases_us.items() if us} == {
        "read": 1000, "validate": 1000, "gate": 2000, "tokenize": 5000, "hand_over": 1000, "turn": 500,
        "prefill": 3000, "decode": 6000, "detokenize": 1500, "others": 4000, "write": 5000,
    }  # fmt: skip
    assert times.total_us == 30_000 == sum(times.phases_us.values())
    assert set(times.phases_us) <= {*SERVER_PHASES, *ENGINE_PHASES}


def test_an_answer_that_ends_before_its_engine_request_lasts_as_long_as_that() -> None:
    trace = trace_of(admitted_s=50.002, submitted_s=50.002, finished_s=50.005)
    choice = trace.add_choice(0, "mine-0")
    choice.done_s = 50.004
    times = choice_times(trace, choice, report_of("mine-0", 50.0019), now=99.0)
    assert times.total_us == 2000 + 9500 == sum(times.phases_us.values())
    assert times.phases_us["hand_over"] == times.phases_us["detokenize"] == times.phases_us["write"] == 0


def test_one_that_its_engine_has_forgotten_and_one_that_never_got_in() -> None:
    trace = trace_of(admitted_s=50.002, submitted_s=50.003, finished_s=50.010)
    choice = trace.add_choice(0, "mine-0")
    choice.done_s = 50.008
    times = choice_times(trace, choice, None, now=99.0)
    assert times.phases_us["engine"] == 5000 and times.total_us == 10_000
    refused, got_in = front_times(trace_of(finished_s=50.007), now=99.0)
    assert not got_in and refused.phases_us == {"read": 1000, "validate": 1000, "gate": 5000}


def test_one_that_its_engine_does_not_know_yet_is_on_its_way() -> None:
    trace = trace_of(admitted_s=50.002, submitted_s=50.003)
    trace.add_choice(0, "mine-0")
    view: Any = full_view(trace, Engines(), Names([trace], None), now=50.013)
    (choice,) = view["choices"]
    assert choice["state"] == "handed over" and "not taken it in yet" in choice["why_no_engine"]
    assert choice["phases_us"]["hand_over"] == 10_000 and "engine" not in choice["phases_us"]
    assert choice["total_us"] == 13_000 == sum(choice["phases_us"].values())


def test_names_of_others_are_nobodys_business() -> None:
    mine, theirs = trace_of(), trace_of()
    theirs.client_key = "key-b"
    mine.client_key = "key-a"
    mine.add_choice(0, "mine-0")
    theirs.request_id = "their-secret"
    theirs.add_choice(0, "their-secret-1")
    shares = [Share("their-secret-1", 50, 3), Share("mine-0", 40), Share("forgotten-7", 30), Share("", 20, times=2)]
    names = Names([mine, theirs], "key-a")
    assert names.shares(shares) == [
        {"who": "another client", "us": 80, "blocks": 3},
        {"who": "mine", "us": 40},
        {"who": "others", "us": 20, "times": 2},
    ]
    everything = Names([mine, theirs], None)
    assert [share["who"] for share in everything.shares(shares)] == ["their-secret", "mine", "forgotten-7", "others"]


def test_the_book_forgets(harness: Any) -> None:
    server = harness.serve()
    server._requests._kept = deque(maxlen=3)
    for index in range(5):
        harness.post("/v1/completions", {"prompt": "hi"}, **{"X-Request-Id": f"r{index}"})
    listing = harness.get("/debug/requests?limit=2").json
    assert [entry["request_id"] for entry in listing["recent"]] == ["r4", "r3"]
    assert (listing["num_kept"], listing["max_kept"], listing["open"]) == (3, 512, [])
    assert harness.get("/debug/requests/r1").status == 404


def test_a_finished_request_in_full(harness: Any) -> None:
    harness.post("/v1/completions", {"prompt": ["hi", "you"]}, **{"X-Request-Id": "mine"})
    ids = [request.request_id for request in harness.engine.requests]
    engine = harness.engine
    trace = harness._servers[-1]._requests.snapshot()[1][0]
    assert [choice.engine_id for choice in trace.choices] == ids
    engine.timelines[ids[0]] = report_of(
        ids[0], trace.submitted_s, held_by=[Share("stranger-9", 700, 12)], stalled_by=[Share(ids[1], 300)]
    )
    found = harness.get("/debug/requests/mine").json
    assert (found["state"], found["status"], found["model"], found["num_of_same_id"]) == ("done", 200, "fake", 1)
    first, second = found["choices"]
    assert first["total_us"] == sum(first["phases_us"].values()) >= 9500
    assert first["engine"]["held_by"] == [{"who": "stranger-9", "us": 700, "blocks": 12}]
    assert first["engine"]["stalled_by"] == [{"who": "mine#1", "us": 300}]
    assert (first["engine"]["prompt_tokens"], first["engine"]["generated_tokens"]) == (2, 5)
    assert first["finish_reason"] == second["finish_reason"] == "stop" and first["first_token_us"] > 0
    assert second["engine"] is None and "forgotten" in second["why_no_engine"]
    assert second["total_us"] == sum(second["phases_us"].values()) and second["phases_us"]["engine"] >= 0
    assert found["total_us"] == max(first["total_us"], second["total_us"])


def test_an_open_request_shows_where_it_stands(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    harness.serve(engine)
    client = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": True}, {"X-Request-Id": "slow"})
    asked = engine.wait_for_request()
    (entry,) = harness.get("/debug/requests").json["open"]
    assert (entry["request_id"], entry["state"], entry["status"]) == ("slow", "handed over", None)
    trace = harness._servers[-1]._requests.snapshot()[0][0]
    engine.timelines[asked.request_id] = report_of(asked.request_id, trace.submitted_s, is_open=True, state="decode")
    (entry,) = harness.get("/debug/requests").json["open"]
    assert entry["state"] == "decode" and entry["phases_us"]["decode"] == 6000 and entry["num_choices"] == 1
    assert entry["total_us"] == sum(entry["phases_us"].values())
    engine.emit("x", finish_reason="length")
    client.answer()
    assert harness.get("/debug/requests/slow").json["state"] in ("done", "answering")


def test_the_latest_of_several_with_one_id(harness: Any) -> None:
    for prompt in ("a", "bb"):
        harness.post("/v1/completions", {"prompt": prompt}, **{"X-Request-Id": "again"})
    found = harness.get("/debug/requests/again").json
    assert found["num_of_same_id"] == 2
    last = harness._servers[-1]._requests.snapshot()[1][0]
    assert last.choices[0].engine_id == harness.engine.requests[1].request_id


@pytest.mark.parametrize("request_id", ["never-came", "a%2Fb", "%ff", "x" * 500])
def test_unknown_ones_are_a_typed_404_that_says_how_many_are_kept(harness: Any, request_id: str) -> None:
    harness.complete()
    answer = harness.get(f"/debug/requests/{request_id}")
    assert (answer.status, answer.error["code"]) == (404, "request_not_found")
    assert "last 512" in answer.error["message"] and len(answer.error["message"]) < 400
    assert harness.post("/debug/requests/x", {}).status == 405


@pytest.mark.parametrize("query", ["?limit=-1", "?limit=x", "?limit=", "?limit=9999999", "?limt=3", "?model=fake"])
def test_queries_that_are_none(harness: Any, query: str) -> None:
    assert harness.get(f"/debug/requests{query}").status == 400


def test_refused_ones_and_engines_that_do_not_answer(harness: Any) -> None:
    harness.complete(temperature="hot")
    harness.complete("hi" * 200)
    listing = harness.get("/debug/requests").json
    (entry,) = listing["recent"]  # fields that are no fields are not a request for the book
    assert entry["status"] == 400 and set(entry["phases_us"]) <= {"read", "validate", "gate", "tokenize"}
    harness.engine.fail_explain = EngineDeadError("it is dead")
    harness.complete()
    listing = harness.get("/debug/requests").json
    assert listing["unanswered"] == {"fake": "it is dead"} and len(listing["recent"]) == 2


def test_everybody_sees_only_their_own(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    harness.serve(engine, api_keys=KEYS)
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    for number, (name, key) in enumerate((("of-alice", alice), ("of-bob", bob))):
        harness.connect().post("/v1/completions", {"prompt": "hi"}, {**key, "X-Request-Id": name})
        engine.wait_for_request(number)
    assert harness.get("/debug/requests").status == harness.get("/debug/requests/of-bob").status == 401
    listing = harness.get("/debug/requests", **alice).json
    assert [entry["request_id"] for entry in listing["open"]] == ["of-alice"] and listing["num_open_of_others"] == 1
    theirs, unknown = (harness.get(f"/debug/requests/{name}", **alice) for name in ("of-bob", "of-zoe"))
    assert theirs.status == unknown.status == 404
    assert theirs.error["message"].replace("bob", "zoe") == unknown.error["message"], "as if it did not exist"

    ids = [request.request_id for request in engine.requests]
    engine.timelines[ids[0]] = report_of(ids[0], 1.0, is_open=True, state="waiting", held_by=[Share(ids[1], 700, 12)])
    for path in ("/debug/requests", "/debug/requests/of-alice"):
        seen = harness.get(path, **alice)
        assert seen.status == 200 and b"bob" not in seen.body and b"another client" in seen.body
    assert harness.get("/debug/requests/of-bob", **bob).json["choices"][0]["engine"] is None


def test_the_real_engine_adds_up(harness: Any, tiny_gguf: Path) -> None:
    """Over HTTP, with several choices at once: every microsecond has a phase, and the tokens are the answer's."""
    engine = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4))
    try:
        with Server([ServedModel("tiny", engine, load_text_model(tiny_gguf))], port=0) as server:
            client = harness.connect(server)
            body = {"prompt": ["The scheduler takes", "One"], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
            client.post("/v1/completions", body, {"X-Request-Id": "real"})
            usage = client.answer().json["usage"]
            found = client.get("/debug/requests/real").answer().json
            for choice in found["choices"]:
                assert choice["total_us"] == sum(choice["phases_us"].values())
                assert choice["phases_us"]["prefill"] > 0 and choice["phases_us"]["decode"] > 0
                assert choice["engine"]["decode_steps"] == 4 and choice["state"] == "done"
            engines = [choice["engine"] for choice in found["choices"]]
            assert sum(one["generated_tokens"] for one in engines) == usage["completion_tokens"] == 10
            assert sum(one["prompt_tokens"] for one in engines) == usage["prompt_tokens"]
            record = server._requests.snapshot()[1][0]
            assert record.finished_s is not None
            seconds = record.finished_s - record.started_s
            assert found["total_us"] == pytest.approx(seconds * 1e6, abs=50), "the client's time, to clock differences"
            json.dumps(found)
    finally:
        engine.close()


def test_the_readme_says_what_each_phase_means() -> None:
    readme = (Path(__file__).parents[2] / "stages" / "05_server" / "README.md").read_text(encoding="utf-8")
    for phase, meaning in (SERVER_PHASES | ENGINE_PHASES).items():
        assert f"| `{phase}` | {meaning} |" in readme, phase


def test_an_engine_is_asked_in_pieces(harness: Any) -> None:
    for _ in range(3):
        assert harness.complete(["hi"] * 50, max_tokens=1).status == 200
    listing = harness.get("/debug/requests").json
    assert [len(ids) for ids in harness.engine.explained] == [64, 64, 22] and len(listing["recent"]) == 3
    assert {name for ids in harness.engine.explained for name in ids} == {
        request.request_id for request in harness.engine.requests
    }


def test_a_client_that_does_not_read_is_to_blame(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    harness.serve(engine, config=ServerConfig(http=replace(HttpLimits(), send_buffer_bytes=4096)))
    client = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": True}, {"X-Request-Id": "slow"})
    engine.wait_for_request()
    engine.emit("x" * 400_000, finish_reason="length")  # far more than one write can take
    client.answer()
    for _ in range(1000):  # a stream is recorded when its last byte has left
        found = harness.get("/debug/requests/slow").json
        if found["status"] is not None:
            break
    assert found["blocked_us"] > 0


def test_a_client_that_hangs_up(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    harness.serve(engine)
    client = harness.connect().post("/v1/completions", {"prompt": "hi"}, {"X-Request-Id": "gone"})
    engine.wait_for_request()
    client.close()
    engine.wait_for_cancel()
    for _ in range(1000):
        found = harness.get("/debug/requests/gone").json
        if found["status"] is not None:
            break
    assert (found["status"], found["state"], found["choices"][0]["finish_reason"]) == (499, "done", "cancelled")


def test_slow_requests_get_a_line_that_says_where_their_time_went(
    harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = harness.serve(config=ServerConfig(slow_request_s=0.0))
    harness.post("/v1/completions", {"prompt": "hi"}, **{"X-Request-Id": "first"})
    asked = harness.engine.requests[0].request_id
    trace = server._requests.snapshot()[1][0]
    phases = {"blocks": 9_000_000, "decode": 1_000_000}
    harness.engine.timelines[asked] = report_of(
        asked, trace.submitted_s, phases=phases, held_by=[Share("big-7", 9_000_000, 44)]
    )
    server._slow.note(trace)
    harness.engine.fail_explain = None
    server.close()  # waits until all lines are written
    lines = [record.getMessage() for record in caplog.records if record.name == "aie.slow"]
    assert len(lines) == 2 and all(line.startswith("slow request first: 0.") for line in lines)
    assert "status 200, /v1/completions, model fake: blocks 90 % (big-7), decode 10 %" in lines[1]
    caplog.clear()
    harness.serve(config=ServerConfig(slow_request_s=1e6))
    harness.complete()
    harness._servers[-1].close()
    assert not [record for record in caplog.records if record.name == "aie.slow"]
