"""`aie top` and the event stream: what is read of it, how it is put in words, and servers that send nonsense."""

import json
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aie.bench.client import Endpoint
from aie.top.event_words import event_lines
from aie.top.feed import EventFeed
from aie.top.listening import look_and_listen
from aie.top.screen import draw
from aie.top.summary import document

WAIT_S = 5.0
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BATCH = {"n": 1, "at": 0.0, "event": "batch", "model": "mini", "size": 8, "cut": "full", "waited_ms": 4.0,
         "compute_ms": 12.5}  # fmt: skip


def sent(*events: object) -> bytes:
    return STREAM + b"".join(b"event: x\ndata: %b\n\n" % json.dumps(event).encode() for event in events)


def words(*events: dict[str, Any], at_most: int = 20) -> list[str]:
    return [line for line, _ in event_lines([events], at_most)]


# In words


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BATCH, "batch     mini of 8, cut: full, waited 4 ms, computed in 12.5 ms"),
        ({"event": "started", "request_id": "r1", "model": "tiny"}, "started   r1  tiny"),
        (
            {"event": "ended", "request_id": "r1", "model": "tiny", "status": 200, "why": "length", "duration_ms": 7.5},
            "ended     r1  tiny 200, length, 7.5 ms",
        ),
        (
            {"event": "rejected", "request_id": "r2", "status": 503, "why": "queue_full"},
            "rejected  r2   503, queue_full",
        ),
        (
            {"event": "steps", "model": "tiny", "steps": 10, "mean_batch": 2.5, "max_batch": 3, "generated_tokens": 20,
             "prompt_tokens": 7},
            "steps     tiny 10, batch mean 2.5, max 3: 20 tokens, 7 of prompts",
        ),
        (
            {"event": "preempted", "model": "tiny", "request_id": "r1", "by": "big", "lost_tokens": 12},
            "preempted r1  by big, 12 tokens lost",
        ),
        (
            {"event": "worker", "model": "mini", "worker": "worker 0", "state": "new", "restarts": 2},
            "worker    mini worker 0: new, restart 2",
        ),
        (
            {"event": "reload", "model": "tiny", "state": "failed", "why": "It is broken."},
            "reload    tiny failed: It is broken.",
        ),
        ({"event": "lost", "count": 40}, "lost      40 events, because they were read too slowly"),
        ({"event": "of another version", "model": "tiny"}, "of another version tiny"),
    ],
)  # fmt: skip
def test_each_kind(event: dict[str, Any], text: str) -> None:
    (line,) = words(event)
    assert line[8:].strip() == text


def test_crowds_are_one_line_that_says_how_many_and_why() -> None:
    batches = [BATCH | {"size": size, "cut": cut} for size, cut in [(8, "full")] * 6 + [(2, "waited")] * 2]
    ends = [{"event": "ended", "request_id": f"r{n}", "model": "tiny", "why": "stop"} for n in range(4)]
    assert [line[9:] for line in words(*batches, *ends)] == [
        "ended     ×4 tiny: stop 100 %",
        "batch     ×8 mini cut: full 75 % · waited 25 %; of 2–8, mean 6.5",
    ], "what matters more last, where it is seen in a few lines"
    few = words(*batches[:3])
    assert len(few) == 3, "a few are told one by one"


def test_crowds_of_steps_and_of_preemptions_are_summed_up() -> None:
    steps = {"event": "steps", "model": "tiny", "steps": 10, "mean_batch": 2.0, "max_batch": 3, "generated_tokens": 20,
             "prompt_tokens": 0}  # fmt: skip
    more = steps | {"steps": 30, "mean_batch": 4.0, "max_batch": 8, "generated_tokens": 100, "prompt_tokens": 9}
    lost = [{"event": "preempted", "model": "tiny", "lost_tokens": 5} for _ in range(4)]
    assert [line[9:] for line in words(steps, steps, steps, more, *lost)] == [
        "steps     tiny 60, batch mean 3, max 8: 160 tokens, 9 of prompts",
        "preempted ×4 tiny: 20 tokens lost",
    ]


def test_the_latest_are_kept_and_trouble_is_seen() -> None:
    looks = [[{"event": "reload", "model": f"m{look}", "state": "serves"}] for look in range(9)]
    assert [line.split()[1] for line, _ in event_lines(looks, 3)] == ["m6", "m7", "m8"]
    assert event_lines(looks, 0) == []
    styles = dict(event_lines([[{"event": "rejected"}, {"event": "worker", "state": "lost", "model": "m"}]], 5))
    assert list(styles.values()) == ["yellow", "red"]


# On the screen


@pytest.mark.parametrize(("columns", "lines"), [(60, 15), (80, 24), (200, 50), (20, 4)])
def test_it_fits_any_terminal(top: Any, columns: int, lines: int) -> None:
    events = [{"event": "started", "request_id": f"r{number}", "model": "tiny"} for number in range(3)]
    history = top.history_of(top.first(10.0), replace(top.second(14.0, top.LISTING), events=[*events, BATCH]))
    picture = draw(history, "http://here", when="12:00:00")
    picture.is_fitted = True
    shown = top.text_of(picture, columns, lines).splitlines()
    assert len(shown) <= lines and max(map(len, shown)) <= columns
    if lines >= 15:
        text = "\n".join(shown)
        assert "3 running, 2 waiting" in text and "8 running, 4 waiting" in text, "each model"
        assert "runs" in text and "mini of 8, cut: full" in text, "requests, and the latest event"
    if columns == 200:
        (row,) = [line for line in shown if "what happened" in line]
        assert row.startswith("open (2)"), "side by side"


def test_without_events_there_is_no_pane(top: Any) -> None:
    history = top.history_of(top.first(1.0, top.LISTING))
    assert "what happened" not in top.text_of(draw(history, "http://here", when="now"))
    quiet = top.history_of(replace(top.first(1.0), events=()))
    picture = draw(quiet, "http://here", when="now")
    picture.is_fitted = True
    assert "what happened  nothing yet" in top.text_of(picture, 100, 40)
    assert document(quiet, "u")["events"] == [] and document(history, "u")["events"] is None


# The stream


def heard(feed: EventFeed, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(1000):
        found += feed.take()
        if len(found) >= count:
            break
        threading.Event().wait(0.005)
    return found


def test_events_since_the_last_look(top: Any) -> None:
    with top.answering(sent(BATCH, {"event": "lost", "count": 3})) as url, EventFeed(Endpoint.parse(url)) as feed:
        feed.start()
        feed.start()
        assert [event["event"] for event in heard(feed, 2)] == ["batch", "lost"] and feed.take() == []


def test_nonsense_between_events_is_left_out(top: Any) -> None:
    answer = STREAM + (
        b": a comment\n\ndata: {\ndata: [1]\n\ndata: {\"event\": 7}\n\ndata: {\"event\": \"x\", \"size\": -1}\n\n"
        b"data: {\"event\": \"x\", \"waited_ms\": NaN}\n\ndata: " + b"[" * 50_000 + b"\n\nid: 4\nretry: 1\n\n"
        b'data: {"event": "worker", "model": "a\\u001b[2J"}\n\n'
    )  # fmt: skip
    with top.answering(answer) as url, EventFeed(Endpoint.parse(url)) as feed:
        feed.start()
        assert heard(feed, 1) == [{"event": "worker", "model": "a?[2J"}]


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 1),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi", 1),
        (STREAM + b"data: " + b"x" * 70_000, 1),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 3),
        (b"\xff\x00", 3),
        (b"", 3),
    ],
)
def test_who_has_none_is_left_alone_and_who_is_away_is_tried_again(top: Any, answer: bytes, tries: int) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    with top.answering(*[answer] * 3) as url:
        feed = EventFeed(Endpoint.parse(url), wait=wait)
        feed.start()
        assert feed._thread is not None
        feed._thread.join(WAIT_S)
        assert not feed._thread.is_alive() and not feed.is_heard and feed.take() == []
    assert len(waits) == (0 if tries == 1 else 3)


def test_a_stream_that_says_nothing_ends_with_the_feed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        feed = EventFeed(Endpoint.parse(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        feed.start()
        connection, _ = listener.accept()
        connection.sendall(STREAM)
        for _ in range(1000):
            if feed.is_heard:
                break
            threading.Event().wait(0.005)
        feed.close()
        assert feed._thread is not None and not feed._thread.is_alive()
        connection.close()


def test_only_a_server_of_ours_is_asked(top: Any) -> None:
    started: list[str] = []
    feed: Any = SimpleNamespace(start=lambda: started.append("start"), take=lambda: [BATCH], is_heard=True)
    endpoint = Endpoint.parse("http://here")
    foreign = look_and_listen(endpoint, feed, lambda _: top.look_of(top.LLAMA, 1.0))
    assert foreign.events is None and not started
    ours = look_and_listen(endpoint, feed, lambda _: top.first(1.0))
    assert ours.events == [BATCH] and started == ["start"]
    silent: Any = SimpleNamespace(start=lambda: None, take=list, is_heard=False)
    assert look_and_listen(endpoint, silent, lambda _: top.first(1.0)).events is None
