"""GET /debug/events: what is told, to whom, and that nobody pays for it while nobody listens."""

import json
import threading
from functools import partial
from typing import Any

import msgspec
import pytest

from aie_engine import BatchFacts, EngineStats, QueueFullError, TimelineReport, WorkerStats
from aie_engine.timeline_report import TimelineEvent
from aie_server import LoadFigures, ServedModel, ServerConfig, VersionState
from aie_server.errors import ServerDrainingError, TooManyListenersError
from aie_server.event_sources import EventSources
from aie_server.events import EventHub

WAIT_S = 5.0


class Stream:
    """A listener over HTTP."""

    def __init__(self, harness: Any, **headers: str) -> None:
        self.client = harness.connect().get("/debug/events", headers=headers)
        self.status, self.headers = self.client.head()
        assert self.status == 200 and self.headers["Content-Type"].startswith("text/event-stream")
        assert self.client.chunk() == b": listening\n\n"
        self.events: list[dict[str, Any]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """The next of this kind."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if event["event"] == kind:
                    return event
            for part in self.client.chunk().decode().split("\n\n")[:-1]:
                name, data = part.split("\n")
                self.events.append(json.loads(data.removeprefix("data: ")))
                assert name == f"event: {self.events[-1]['event']}"


def drained(listener: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if k not in ("n", "at")} for one in listener.take(0)]


# The hub


def test_a_slow_listener_loses_the_oldest_and_is_told_how_many() -> None:
    hub = EventHub(max_queued=3, clock=lambda: 5.0)
    slow, quick = hub.listen(None), hub.listen(None)
    taken = []
    for number in range(5):
        hub.tell("batch", {"size": number})
        taken += quick.take(0)
    assert [one["size"] for one in taken] == [0, 1, 2, 3, 4]
    assert slow.take(0) == [
        {"event": "lost", "count": 2},
        *({"n": n + 1, "at": 5.0, "event": "batch", "size": n} for n in (2, 3, 4)),
    ]
    assert slow.take(0) == []


def test_few_may_listen_and_who_leaves_makes_room() -> None:
    hub = EventHub(max_listeners=2)
    first, _ = hub.listen(None), hub.listen(None)
    with pytest.raises(TooManyListenersError) as caught:
        hub.listen(None)
    assert caught.value.status == 503 and caught.value.retry_after_s > 0
    hub.leave(first)
    hub.leave(first)
    hub.listen(None)
    hub.close()
    with pytest.raises(ServerDrainingError):
        hub.listen(None)


def test_the_sources_are_asked_while_somebody_listens() -> None:
    calls: list[str] = []

    class Counted:
        begin = partial(calls.append, "begin")
        end = partial(calls.append, "end")

    hub = EventHub(Counted())
    assert not hub.is_heard
    one, two = hub.listen(None), hub.listen(None)
    hub.leave(one)
    assert hub.is_heard and calls == ["begin"]
    hub.leave(two)
    assert not hub.is_heard and calls == ["begin", "end"]


def test_who_waits_is_woken() -> None:
    hub = EventHub()
    listener = hub.listen(None)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(listener.take(WAIT_S)))
    thread.start()
    hub.tell("worker", {})
    thread.join(WAIT_S)
    assert [one["event"] for one in found] == ["worker"]


# The server


def test_a_request_from_its_start_to_its_end(harness: Any) -> None:
    stream = Stream(harness)
    harness.connect().post("/v1/completions", {"prompt": "hi", "max_tokens": 4}, {"X-Request-Id": "mine"}).answer()
    started, ended = stream.until("started"), stream.until("ended")
    assert (started["request_id"], started["model"], started["path"]) == ("mine", "fake", "/v1/completions")
    assert (ended["request_id"], ended["status"], ended["why"]) == ("mine", 200, "length")
    assert ended["prompt_tokens"] == 2 and ended["completion_tokens"] == 4 and ended["duration_ms"] > 0


def test_rejections_say_why(harness: Any) -> None:
    stream = Stream(harness)
    harness.engine.fail_submit = QueueFullError("Full.", retry_after_s=1.0)
    harness.complete()
    turned_away = stream.until("rejected")
    assert (turned_away["status"], turned_away["why"], turned_away["model"]) == (503, "queue_full", "fake")
    harness.post("/v1/completions", {"prompt": 7.5})
    bad = stream.until("rejected")
    assert (bad["status"], bad["why"]) == (400, "invalid_input")
    harness.post("/v1/completions", b"{")
    worse = stream.until("rejected")
    assert (worse["status"], "model" in worse) == (400, False)


def test_with_keys_one_sees_its_own_alone(harness: Any) -> None:
    harness.serve(api_keys=["alice", "bob"])
    assert harness.get("/debug/events").status == 401
    alice = Stream(harness, Authorization="Bearer alice")
    for key in ("bob", "alice"):
        harness.connect().post(
            "/v1/completions", {"prompt": "hi"}, {"Authorization": f"Bearer {key}", "X-Request-Id": f"of-{key}"}
        ).answer()
    assert alice.until("started")["request_id"] == "of-alice", "and nothing of the other before"
    assert alice.until("ended")["request_id"] == "of-alice"


def test_a_fifth_is_refused_and_a_drain_sends_all_home(harness: Any) -> None:
    server = harness.serve()
    streams = [Stream(harness) for _ in range(4)]
    refused = harness.get("/debug/events")
    assert (refused.status, refused.error["code"]) == (503, "too_many_listeners") and "Retry-After" in refused.headers
    assert server.drain(WAIT_S), "who listens holds nothing up"
    assert all(stream.client.answer_of_chunks().status == 200 for stream in streams), "each to its end"
    assert not server._events.is_heard


def test_who_hangs_up_is_noticed(harness: Any) -> None:
    server = harness.serve()
    stream = Stream(harness)
    stream.client.close()
    for _ in range(1000):
        if not server._events.is_heard:
            break
        threading.Event().wait(0.005)
    assert not server._events.is_heard


def test_without_a_listener_nothing_is_made(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(EventHub, "tell", lambda *args: told.append(args))
    server = harness.serve(config=ServerConfig())
    harness.complete()
    server.close()
    assert told == [] and server._events._number == 0


# What has to be asked


class Control:
    def __init__(self) -> None:
        self.of: dict[str, LoadFigures] = {}

    def figures(self) -> dict[str, LoadFigures]:
        return self.of

    def index(self) -> list[VersionState]:
        return [VersionState("fake", "2", "UNAVAILABLE", "It is broken.")]


@pytest.fixture
def sources(harness: Any) -> Any:
    """Sources of a server, looked at by hand, and a listener."""
    server = harness.serve()
    hub, control = EventHub(), Control()
    made = EventSources(
        hub,
        server.models,
        server.predictors,
        control,
        server._requests,
        server._keys,
        clock=lambda: 100.0,  # type: ignore[arg-type]
    )
    made.listener = hub.listen(None)  # type: ignore[attr-defined]
    made.control = control  # type: ignore[attr-defined]
    made.look()
    assert drained(made.listener) == []  # type: ignore[attr-defined]
    return made


def test_steps_since_the_last_look(harness: Any, sources: Any) -> None:
    harness.engine.figures = EngineStats(
        steps=10, batch_size_sum=25, batch_sizes={2: 5, 3: 5}, tokens_prefill=7, tokens_decode=20, num_running=3,
        num_waiting=1, kv_usage=0.5,
    )  # fmt: skip
    sources.look()
    assert drained(sources.listener) == [{
        "event": "steps", "model": "fake", "steps": 10, "mean_batch": 2.5, "max_batch": 3, "prompt_tokens": 7,
        "generated_tokens": 20, "running": 3, "waiting": 1, "kv_usage": 0.5,
    }]  # fmt: skip
    sources.look()
    assert drained(sources.listener) == []


def test_a_look_that_fails_is_told_and_does_not_end_the_looking(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            stop.set()
        raise ZeroDivisionError

    sources._every_s = 0.0
    monkeypatch.setattr(sources, "look", look)
    sources._run(stop)
    assert [one["event"] for one in drained(sources.listener)] == ["trouble", "trouble"]


def test_who_was_preempted_by_whom_and_only_once(harness: Any, sources: Any) -> None:
    engine = harness.engine
    harness.complete()
    (asked,) = engine.requests
    trace = sources._book.snapshot()[1][0]
    report = report_of_preempted(asked.request_id)
    engine.timelines[asked.request_id] = report
    for steps, preemptions in ((1, 1), (2, 2)):
        engine.figures = msgspec.structs.replace(engine.figures, num_preemptions=preemptions, steps=steps)
        sources.look()
    found = [one for one in drained(sources.listener) if one["event"] == "preempted"]
    assert found == [
        {"event": "preempted", "model": "fake", "request_id": trace.request_id, "by": "big-1", "lost_tokens": 12}
    ], "not what was before the listener came, either"


def report_of_preempted(engine_id: str) -> Any:
    counts = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "prefill_steps", "prefill_tokens", "recomputed_tokens", "decode_steps",
         "generated_tokens", "drafted_tokens", "accepted_tokens", "lost_tokens"), 0,
    )  # fmt: skip
    events = [TimelineEvent(2_000_000, "preempted", 3, "x"), TimelineEvent(9_000_000, "preempted", 12, "big-1")]
    return TimelineReport(
        request_id=engine_id, state="decode", is_open=True, added_s=95.0, total_us=0, phases_us={}, first_token_us=None,
        preemptions=2, preempted_by=[], held_by=[], stalled_by=[], events=events, num_events=2, **counts,
    )  # fmt: skip


def test_a_worker_that_is_lost_and_the_next_one(harness: Any, sources: Any) -> None:
    engine = harness.engine
    engine.is_alive = False
    sources.look()
    sources.look()
    engine.is_alive, engine.figures = True, EngineStats(worker_pid=4712)
    sources.look()
    assert drained(sources.listener) == [
        {"event": "worker", "model": "fake", "worker": "engine", "state": "lost"},
        {"event": "worker", "model": "fake", "worker": "engine", "state": "new", "pid": 4712},
    ]
    workers = [WorkerStats(0, 1, True, False, 0, 0, 0.0, 0)]
    sources._look_at_workers("mini", workers)
    sources._look_at_workers("mini", [msgspec.structs.replace(workers[0], is_ready=False)])
    sources._look_at_workers("mini", [msgspec.structs.replace(workers[0], restarts=1)])
    assert drained(sources.listener) == [
        {"event": "worker", "model": "mini", "worker": "worker 0", "state": "lost"},
        {"event": "worker", "model": "mini", "worker": "worker 0", "state": "new", "restarts": 1},
    ]


def test_another_version_is_no_lost_worker(harness: Any, sources: Any, make_engine: Any) -> None:
    engine = make_engine()
    engine.figures = EngineStats(worker_pid=4713)
    sources.control.of = {"fake": LoadFigures(1, 0, 0.5, 1)}
    harness._servers[-1].models.put(ServedModel("fake", engine, harness.text, created=2, version="2"))
    sources.look()
    (event,) = drained(sources.listener)
    assert (event["event"], event["state"], event["version"]) == ("reload", "serves", "2")


def test_a_reload_that_serves_one_that_fails_and_an_unload(harness: Any, sources: Any) -> None:
    sources._look_at_loads({"fake": "1"})
    sources.control.of = {"fake": LoadFigures(1, 0, 0.5, 1)}
    sources._look_at_loads({"fake": "2"})
    sources.control.of = {"fake": LoadFigures(1, 1, 0.5, 1)}
    sources._look_at_loads({"fake": "2"})
    sources._look_at_loads({})
    assert drained(sources.listener) == [
        {"event": "reload", "model": "fake", "state": "serves", "version": "2", "previous_version": "1"},
        {"event": "reload", "model": "fake", "state": "failed", "why": "It is broken."},
        {"event": "reload", "model": "fake", "state": "unloaded", "version": "2"},
    ]


def test_a_batch_as_the_predictor_tells_it(sources: Any) -> None:
    sources._batch("mini", BatchFacts(8, "full", 0.004, 0.0125, 0.001, 0.25, 1))
    assert drained(sources.listener) == [{
        "event": "batch", "model": "mini", "size": 8, "cut": "full", "worker": 1, "waited_ms": 4.0,
        "compute_ms": 12.5, "padding": 0.25,
    }]  # fmt: skip
