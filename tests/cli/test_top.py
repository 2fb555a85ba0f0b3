"""`aie top`: the text format, what the figures come to, the picture as text, and servers that behave badly."""

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from typer.testing import CliRunner

from aie.app import app
from aie.bench.client import Endpoint
from aie.top.explain import explain_lines
from aie.top.figures import figures_of, rates
from aie.top.history import History
from aie.top.look import Look, Requests, explain_request, look_at
from aie.top.prometheus import Buckets, parse
from aie.top.screen import draw, plain_lines
from aie.top.summary import document, summaries
from aie.top.watch import JsonLines, Lines, Screen, watch
from aie.top.words import count, duration, printable
from aie_engine import EnvironmentLacksError, InvalidInputError

OURS = """\
# HELP aie_num_requests_running Requests in the running batch.
# TYPE aie_num_requests_running gauge
aie_num_requests_running{{model_name="tiny"}} 3
aie_num_requests_waiting{{model_name="tiny"}} 2
aie_kv_cache_usage_perc{{model_name="tiny"}} 0.75
aie_kv_blocks{{model_name="tiny",state="used"}} 60
aie_kv_blocks{{model_name="tiny",state="free"}} 20
aie_prompt_tokens_total{{model_name="tiny"}} {prompt}
aie_generation_tokens_total{{model_name="tiny"}} {generated}
aie_prefix_cache_queries_total{{model_name="tiny"}} {prompt}
aie_prefix_cache_hits_total{{model_name="tiny"}} {hits}
aie_spec_decode_num_draft_tokens_total{{model_name="tiny"}} 0
aie_spec_decode_num_accepted_tokens_total{{model_name="tiny"}} 0
aie_num_preemptions_total{{model_name="tiny"}} {preempted}
aie_engine_steps_total{{model_name="tiny"}} {steps}
aie_engine_step_requests_total{{model_name="tiny"}} {step_requests}
aie_engine_step_seconds_total{{model_name="tiny"}} 2
aie_engine_execute_seconds_total{{model_name="tiny"}} 1.5
aie_engine_resident_memory_bytes{{model_name="tiny"}} 104857600
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="0.1"}} {fast}
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="0.5"}} {all}
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="+Inf"}} {all}
aie_time_to_first_token_seconds_count{{model_name="tiny"}} {all}
aie_prediction_inputs_waiting{{model_name="mini"}} 4
aie_prediction_inputs_running{{model_name="mini"}} 8
aie_prediction_inputs_total{{model_name="mini"}} {prompt}
aie_prediction_batch_inputs_total{{model_name="mini"}} {prompt}
aie_prediction_batches_total{{model_name="mini",reason="full"}} {steps}
aie_prediction_batches_total{{model_name="mini",reason="waited"}} 10
aie_prediction_phase_seconds_bucket{{model_name="mini",phase="queue",le="0.01"}} {all}
aie_prediction_phase_seconds_bucket{{model_name="mini",phase="queue",le="+Inf"}} {all}
aie_prediction_batch_utilisation{{model_name="mini"}} 0.5
aie_process_resident_memory_bytes 52428800
"""
FIRST = {
    "prompt": 100, "generated": 50, "hits": 0, "preempted": 0, "steps": 10, "step_requests": 10, "fast": 10, "all": 10,
}  # fmt: skip
SECOND = {
    "prompt": 500, "generated": 450, "hits": 300, "preempted": 2, "steps": 50, "step_requests": 130, "fast": 60,
    "all": 210,
}  # fmt: skip

VLLM = """\
vllm:num_requests_running{engine="0",model_name="big"} 7.0
vllm:num_requests_running{engine="1",model_name="big"} 1.0
vllm:num_requests_waiting{engine="0",model_name="big"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="big"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="big"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="big"} 250.0
vllm:generation_tokens_total{engine="0",model_name="big"} 1.2e+03
vllm:time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="big"} 100.0
vllm:time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="big"} 100.0
process_resident_memory_bytes 1.0e+09
"""
SGLANG = """\
sglang:num_running_reqs{model_name="meta/Llama"} 161.0
sglang:num_queue_reqs{model_name="meta/Llama"} 2826.0
sglang:token_usage{model_name="meta/Llama"} 0.28
sglang:cache_hit_rate{model_name="meta/Llama"} 0.0075
sglang:generation_tokens_total{model_name="meta/Llama"} 7.5e+06
"""
LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 5
llamacpp:prompt_tokens_total 6886
llamacpp:tokens_predicted_total 3469
llamacpp:n_decode_total 100
llamacpp:n_busy_slots_per_decode 1.75
"""

LISTING: dict[str, Any] = {
    "open": [
        {
            "request_id": "waits", "state": "waiting", "status": None, "total_us": 3_200_000, "prompt_tokens": 120,
            "generated_tokens": 0, "phases_us": {"blocks": 3_000_000, "turn": 200_000}, "stalled_by": [],
            "held_by": [{"who": "big", "us": 3_000_000, "blocks": 44}],
        },
        {
            "request_id": "runs", "state": "decode", "status": None, "total_us": 9_000_000, "prompt_tokens": 7,
            "generated_tokens": 40, "phases_us": {"decode": 6_000_000, "stalled": 3_000_000}, "held_by": [],
            "stalled_by": [{"who": "waits", "us": 3_000_000}], "preemptions": 2,
        },
    ],
    "recent": [
        {"request_id": "went", "state": "done", "status": 200, "total_us": 850, "phases_us": {"queue": 850},
         "num_inputs": 3, "batch": {"size": 8, "cut": "full"}},
    ],
    "queues": {
        "tiny": {"request_id": "waits", "reason": "blocks", "for_us": 3_000_000, "blocks_needed": 9, "blocks_free": 2,
                 "holders": [{"who": "big", "blocks": 44}]},
    },
    "num_open_of_others": 3,
    "unanswered": {},
}  # fmt: skip


def look_of(text: str, at_s: float, requests: Any = None, why: str | None = None) -> Look:
    figures = figures_of(parse(text))
    assert figures is not None
    return Look(at_s, figures, Requests(**requests) if requests else None, why)


def history_of(*looks: Look) -> History:
    history = History()
    for look in looks:
        history.add(look)
    return history


def text_of(picture: Any, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(picture)
    return out.getvalue()


# The text format


def test_the_format_is_read_as_the_client_library_reads_it() -> None:
    registry = CollectorRegistry()
    Counter("c", "Counts\nlines.", ["who"], registry=registry).labels('a"b\\c\nd{},=').inc(2.5)
    histogram = Histogram("h", "Measures.", ["m"], buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.labels("x").observe(value)
    text = generate_latest(registry).decode()
    ours = parse(text)
    theirs = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert theirs and all((dict(one.labels), one.value) in ours.samples[one.name] for one in theirs)
    assert ours.buckets("h", m="x") == Buckets((0.1, 1.0, float("inf")), (2, 3, 4))
    assert ours.total("nothing") is None and ours.buckets("nothing") is None
    assert parse("a 1 1700000000\nb NaN\nc +Inf\nd{} 3\n# EOF\n").total("a") == 1


@pytest.mark.parametrize("text", ["", "# TYPE a gauge\n", "<html>hello</html>", "a\n", "a b c", '{"a": 1}', "a{b=1 2"])
def test_what_is_no_such_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d|no sample"):
        parse(text)


def test_quantiles_by_a_straight_line_in_the_bucket() -> None:
    buckets = Buckets((0.1, 0.2, 0.4, float("inf")), (10, 30, 30, 40))
    assert buckets.quantile(0.25) == pytest.approx(0.1)
    assert buckets.quantile(0.5) == pytest.approx(0.15)
    assert buckets.quantile(0.99) == 0.4, "above the last bound nothing is known"
    assert Buckets((0.1,), (0,)).quantile(0.5) is None
    before = Buckets((0.1, 0.2, 0.4, float("inf")), (10, 10, 10, 20))
    assert buckets.since(before).counts == (0, 20, 20, 20)
    assert buckets.since(Buckets(buckets.bounds, (50, 50, 50, 50))) == buckets, "the server began anew"
    assert buckets.since(Buckets((1.0,), (1,))) == buckets


# Figures


def test_rates_and_percentiles_between_two_looks() -> None:
    history = history_of(look_of(OURS.format(**FIRST), 10.0), look_of(OURS.format(**SECOND), 14.0))
    tiny, mini = sorted(summaries(history), key=lambda one: one.model.name, reverse=True)
    assert (tiny.generated_per_s, tiny.prompt_per_s, tiny.preemptions, tiny.steps_per_s) == (100.0, 100.0, 2, 10.0)
    assert (tiny.hit_share, tiny.mean_batch, tiny.accepted_share, tiny.execute_share) == (0.75, 3.0, None, None)
    ttft = tiny.latencies["ttft"]
    assert ttft.count == 200 and ttft.p50 == pytest.approx(100 + 400 * 50 / 150)
    assert tiny.latencies.keys() == {"ttft"} and mini.latencies.keys() == {"queue"}
    assert mini.model.is_predictor and (mini.inputs_per_s, mini.mean_batch) == (100.0, 10.0)
    assert mini.cuts == {"full": 1.0}, "of the batches of this time"


def test_few_observations_make_no_percentile() -> None:
    history = history_of(look_of(OURS.format(**FIRST), 10.0))
    tiny = next(one for one in summaries(history) if one.model.name == "tiny")
    assert tiny.latencies["ttft"].count == 10
    assert tiny.latencies["ttft"].p90 is not None and tiny.latencies["ttft"].p99 is None
    assert tiny.generated_per_s is None and tiny.window_s is None and tiny.seconds is None


def test_a_server_that_was_started_anew_counts_from_nothing() -> None:
    before, now = (figures_of(parse(OURS.format(**facts))) for facts in (SECOND, FIRST))
    assert before is not None and now is not None
    found = rates(before.models["tiny"], now.models["tiny"], 2.0)
    assert found.per_s("generated_tokens") == 25.0 and found.histograms["ttft"].count == 10


def test_the_window_moves_on() -> None:
    history = history_of(*(look_of(OURS.format(**FIRST), float(at)) for at in range(0, 100, 7)))
    assert history.lately("tiny").seconds == 35.0 and history.latest("tiny").seconds == 7.0


@pytest.mark.parametrize(
    ("text", "server", "name", "expected"),
    [
        (VLLM, "vLLM", "big", {"running": 8, "waiting": 4, "kv_usage": 0.5}),
        (SGLANG, "SGLang", "meta/Llama", {"running": 161, "waiting": 2826, "kv_usage": 0.28, "hit_rate": 0.0075}),
        (LLAMA, "llama-server", "", {"running": 2, "waiting": 5, "mean_batch": 1.75}),
        (OURS.format(**FIRST).replace("aie_", "vllm:"), "aie", "tiny", {"running": 3, "waiting": 2, "kv_usage": 0.75}),
        (OURS.format(**FIRST).replace("aie_", "my_"), "aie", "tiny", {"running": 3, "waiting": 2, "kv_usage": 0.75}),
    ],
)
def test_other_servers_names(text: str, server: str, name: str, expected: dict[str, float]) -> None:
    figures = figures_of(parse(text))
    assert figures is not None and figures.server == server
    gauges = figures.models[name].gauges
    assert {key: gauges[key] for key in expected} == expected
    assert "generated_tokens" in figures.models[name].counters


def test_what_serves_no_models() -> None:
    assert figures_of(parse("node_cpu_seconds_total 1\nup 1\n")) is None


# As a person reads it


def test_the_picture() -> None:
    history = history_of(look_of(OURS.format(**FIRST), 10.0), look_of(OURS.format(**SECOND), 14.0, LISTING))
    text = text_of(draw(history, "http://here", when="12:00:00"))
    for part in (
        "aie top  http://here  12:00:00  aie, front 50.0 MiB", "3 running, 2 waiting, mean 3",
        "75 %, 60 of 80 blocks", "100/s generated, 100/s prompt, 75 % of prompts from the prefix cache",
        "held by big (44 blocks)", "10/s, 2 preempted",
        "p50 233 ms  p90 447 ms  p99 495 ms  (n=200 in 4 s)", "100.0 MiB resident",
        "waits waits for 3 s: too few KV blocks are free (9 needed with some to grow, 2 free)",
        "8 running, 4 waiting, 100/s", "mean 10, 50 % full since the start, cut because full 100 %", "open (2)",
        "KV blocks 94 % · queue 6 %; held by big (44 blocks)", "decode 67 % · stalled 33 %; stalled by waits 3 s;",
        "preempted 2 times", "7+40", "3 more are open, of other clients", "batch of 8, cut: full", "3 in",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert text.index("runs") < text.index("waits   "), "the oldest first"


def test_the_picture_of_little(capsys: pytest.CaptureFixture[str]) -> None:
    llama = text_of(draw(history_of(look_of(LLAMA, 1.0)), "http://llama", when="12:00:00"))
    assert "2 running, 5 waiting, mean 1.75" in llama and "llama-server" in llama and "None" not in llama
    ours = look_of(OURS.format(**FIRST), 1.0, why="http://here has no /debug/requests")
    assert "no requests are shown: http://here has no /debug/requests" in text_of(
        draw(history_of(ours), "http://here", when="12:00:00")
    )
    narrow = text_of(draw(history_of(look_of(OURS.format(**SECOND), 1.0, LISTING)), "u", when="12:00:00"), width=40)
    assert max(len(line) for line in narrow.splitlines()) <= 40
    assert text_of(draw(History(), "http://here", when="12:00:00", trouble="gone. Trying again.")).count("gone") == 1


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert printable({"a\x1b[2J": ["b\x07", 1, None]}) == {"a?[2J": ["b?", 1, None]}
    labels = '{model_name="[red]x\x1b[31m"}'
    text = f"aie_num_requests_running{labels} 1\naie_engine_steps_total{labels} 1\n"
    shown = text_of(draw(history_of(look_of(text, 1.0)), "http://here", when="12:00:00"))
    assert "\x1b" not in shown and "[red]x?[31m" in shown


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0 µs"), (850, "850 µs"), (12_345, "12.3 ms"), (999_600, "1 s"), (4_560_000, "4.56 s"), (200e6, "3 min 20 s")],
)
def test_durations(us: float, text: str) -> None:
    assert duration(us) == text
    assert (count(0.254), count(18.24), count(1234.5), count(3.0)) == ("0.254", "18.2", "1234", "3")


def test_one_request_in_full() -> None:
    entry = {
        "request_id": "mine", "path": "/v1/completions", "model": "tiny", "state": "done", "status": 200,
        "total_us": 10_000, "blocked_us": 700, "num_of_same_id": 2, "choices": [{
            "index": 0, "state": "done", "finish_reason": "length", "total_us": 10_000, "first_token_us": 5000,
            "phases_us": {"read": 0, "blocks": 4000, "stalled": 1000, "decode": 5000}, "engine": {
                "prompt_tokens": 12, "cached_tokens": 8, "generated_tokens": 5, "decode_steps": 3, "drafted_tokens": 4,
                "accepted_tokens": 1, "preemptions": 1, "lost_tokens": 20, "recomputed_tokens": 12,
                "preempted_by": [{"who": "big", "times": 1}], "held_by": [{"who": "big", "us": 4000, "blocks": 44}],
                "stalled_by": [{"who": "another client", "us": 1000}],
            }}],
    }  # fmt: skip
    lines = list(explain_lines(entry))
    assert lines[0] == "mine  /v1/completions  tiny  HTTP 200  10 ms"
    assert "length, first token after 5 ms, 12 prompt tokens (8 from the prefix cache), 5 generated" in lines[3]
    assert "1 of 4 guesses right" in lines[3]
    assert [line.split("%")[1].split()[0] for line in lines[4:7]] == ["decode", "blocks", "stalled"]
    assert "40 %  blocks" in lines[5] and lines[5].endswith("too few KV blocks were free: big (44 blocks)")
    assert lines[6].endswith("took on top: another client 1 ms")
    assert lines[7] == "  preempted 1 times by big: 20 tokens lost, 12 computed again"


# Watching


class Looks:
    """A server as a list: a look, or the sentence with which it fails."""

    def __init__(self, *answers: Look | str) -> None:
        self.answers = list(answers)
        self.slept: list[float] = []

    def __call__(self) -> Look:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise EnvironmentLacksError(answer)
        return answer

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.answers:
            raise KeyboardInterrupt


def run(looks: Looks, output: Any, **options: Any) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        looks.sleep(seconds)

    watch(looks, output, interval_s=2.0, sleep=sleep, clock=lambda: now[0], **options)


def test_it_goes_on_when_the_server_comes_back() -> None:
    lines: list[str] = []
    looks = Looks(look_of(OURS.format(**FIRST), 1.0), "It is gone.", "It is gone.", look_of(OURS.format(**SECOND), 7.0))
    with pytest.raises(KeyboardInterrupt):
        run(looks, Lines(lines.append, lambda: "12:00"))
    assert [line for line in lines if "gone" in line] == ["12:00 It is gone. Trying again."], "told once"
    assert len(lines) == 5 and lines[1].startswith("12:00 tiny: batch 3 running, 2 waiting")
    assert any("66.7/s generated" in line for line in lines[-2:]), "over the six seconds that it was away"
    assert looks.slept == [2.0] * 4


def test_the_first_look_must_succeed() -> None:
    with pytest.raises(EnvironmentLacksError, match="not there"):
        run(Looks("not there"), Lines(print))
    with pytest.raises(EnvironmentLacksError, match="went away"):
        run(Looks(look_of(LLAMA, 1.0), "went away"), Lines(print), once=True)


def test_once_is_two_looks_and_json_is_an_object_per_look() -> None:
    lines: list[str] = []
    first, second = look_of(OURS.format(**FIRST), 1.0), look_of(OURS.format(**SECOND), 3.0, LISTING)
    run(Looks(first, second), JsonLines(lines.append, "http://here"), once=True)
    (found,) = [json.loads(line) for line in lines]
    assert found["models"]["tiny"]["generated_per_s"] == 200.0 and found["models"]["tiny"]["running"] == 3
    assert found["models"]["tiny"]["ttft_ms"]["count"] == 200 and found["open"][0]["request_id"] == "waits"
    assert found == document(history_of(first, second), "http://here")
    with pytest.raises(KeyboardInterrupt):
        run(Looks(first, "gone."), JsonLines(lines.append, "http://here"))
    assert json.loads(lines[-1]) == {"url": "http://here", "trouble": "gone. Trying again."}


def test_on_a_terminal_the_last_picture_stays() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=30, markup=False, highlight=False, emoji=False)
    looks = Looks(look_of(OURS.format(**FIRST), 1.0), "It is gone.")
    with pytest.raises(KeyboardInterrupt), Screen(console, "http://here", wall_clock=lambda: "12:00") as screen:
        run(looks, screen)
    assert "\x1b[?1049h" in out.getvalue() and "\x1b[?1049l" in out.getvalue(), "the other screen, and back"
    assert "It is gone. Trying again." in out.getvalue().rpartition("\x1b[?1049l")[2]


# Servers that behave badly, over real sockets


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives these answers, one for each connection, and then hangs up on everybody."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(left.pop(0) if left else b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def http(body: str | bytes, status: str = "200 OK") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


METRICS = http(OURS.format(**FIRST))
AN_OPEN_ONE = '{"open": [%s], "recent": [], "queues": {}, "num_open_of_others": 0, "unanswered": {}}'


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ((), "No server of models answers at"),
        ((b"\x00\xff\n\r\n",), "No server of models answers at"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc",), "it closed the connection"),
        ((http("<html>hello</html>"),), "/metrics is no Prometheus text: line 1 is no sample"),
        ((http("up 1\n"),), "has no metrics of a server of models"),
        ((http("", "401 Unauthorized"),), "/metrics asks for a key (HTTP 401); give --api-key, or AIE_API_KEY"),
        ((http("", "404 Not Found"),), "has no /metrics. It may have been started without metrics"),
        ((http("", "500 Oh no"),), "/metrics answers HTTP 500"),
    ],
)
def test_one_sentence_and_code_3(answers: tuple[bytes, ...], sentence: str) -> None:
    with answering(*answers) as url:
        with pytest.raises(EnvironmentLacksError) as caught:
            look_at(Endpoint.parse(url))
        assert sentence in str(caught.value) and caught.value.exit_code == 3, caught.value


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http("{}", "404 Not Found"), "has no /debug/requests"),
        (http('{"error": {"message": "No."}}', "401 Unauthorized"), "asks for a key (HTTP 401)"),
        (http("garbage"), "answers HTTP 200"),
        (http('{"open": 3}'), "answers what is no list of requests"),
        (http(AN_OPEN_ONE % '{"state": "waiting", "total_us": 3}'), "answers what is no list of requests"),
        (
            http(AN_OPEN_ONE % '{"request_id": "r", "state": "x", "total_us": "3"}'),
            "answers what is no list of requests",
        ),
        (http(AN_OPEN_ONE % '{"request_id": "r", "state": "x", "total_us": NaN}'), "answers HTTP 200"),
        (http("[" * 100_000), "answers HTTP 200"),
        (http('{"error": {"message": "Too much.", "code": "x"}}', "503 No"), "answers HTTP 503: Too much"),
        (b"", "it closed the connection"),
    ],
)
def test_without_requests_there_are_still_figures(answer: bytes, why: str) -> None:
    with answering(METRICS, answer) as url:
        look = look_at(Endpoint.parse(url), clock=lambda: 5.0)
    assert look.requests is None and look.why_no_requests is not None and why in look.why_no_requests
    assert look.at_s == 5.0 and look.figures.models["tiny"].gauges["running"] == 3


def test_a_key_that_is_refused_is_no_half_success() -> None:
    refused = pytest.raises(EnvironmentLacksError, match="give another --api-key")
    with answering(METRICS, http("{}", "401 Unauthorized")) as url, refused:
        look_at(Endpoint.parse(url, "wrong"))


def test_a_request_that_is_forgotten_and_a_server_that_has_none() -> None:
    gone = http('{"error": {"message": "It is forgotten.", "code": "request_not_found"}}', "404 Not Found")
    with answering(gone, http("{}", "404 Not Found")) as url:
        with pytest.raises(InvalidInputError, match="It is forgotten"):
            explain_request(Endpoint.parse(url), "mine")
        with pytest.raises(EnvironmentLacksError, match="has no /debug/requests"):
            explain_request(Endpoint.parse(url), "mine")


def test_a_request_of_another_shape_is_no_request() -> None:
    strange = http('{"request_id": "r", "state": "done", "total_us": 5, "path": "/", "model": "m", "choices": [7]}')
    with answering(strange) as url, pytest.raises(EnvironmentLacksError, match="answers what is no request"):
        explain_request(Endpoint.parse(url), "r")


def test_what_is_no_finite_number_was_not_told() -> None:
    with answering(http(OURS.format(**FIRST | dict.fromkeys(FIRST, "-Inf") | {"generated": "NaN"}))) as url:
        look = look_at(Endpoint.parse(url))
    history = History()
    history.add(look)
    assert text_of(draw(history, "u", when="now")) and all("inf" not in line for line in plain_lines(history))
    json.dumps(document(history, "u"), allow_nan=False)


def test_tls_where_there_is_none_is_said_so() -> None:
    with answering(http("")) as url, pytest.raises(EnvironmentLacksError, match="no TLS there"):
        look_at(Endpoint.parse(url.replace("http:", "https:")))


def test_ended_by_a_signal_it_gives_the_terminal_back() -> None:
    with answering(*[METRICS, http("{}", "404 Not Found")] * 50) as url:
        ours, its = pty.openpty()
        process = subprocess.Popen([sys.executable, "-m", "aie", "top", url, "--interval", "60"], stdout=its)
        os.close(its)
        shown, is_ended = b"", False
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 65536):
                shown += piece
                if not is_ended and b"\x1b[?1049h" in shown and b"tiny" in shown:
                    process.terminate()
                    is_ended = True
        assert process.wait(30) == 0
        os.close(ours)
    assert b"\x1b[?1049l" in shown and b"\x1b[?25h" in shown, "its screen, and its cursor"


# The command


@pytest.mark.parametrize(
    "arguments", [["http://[::1"], ["ftp://x"], ["--interval", "-1"], ["--interval", "nan"], ["--interval", "0"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["top", *arguments])
    assert isinstance(result.exception, InvalidInputError), result.output


def test_the_command_once_on_a_real_server(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aie_engine import EngineConfig, LocalEngine, load_text_model
    from aie_server import ServedModel, Server

    monkeypatch.delenv("AIE_API_KEY", raising=False)
    engine = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4))
    try:
        with Server([ServedModel("tiny", engine, load_text_model(tiny_gguf))], port=0, api_keys=["k"]) as server:
            _ask(server.address, "mine")
            invoke: Callable[..., Any] = CliRunner().invoke
            shown = invoke(app, ["top", server.url, "--once", "--interval", "0", "--api-key", "k"])
            assert shown.exit_code == 0 and "0 running, 0 waiting" in shown.output and "mine" in shown.output
            closed = invoke(app, ["top", server.url, "--once", "--interval", "0"])
            assert closed.exit_code == 0 and "asks for a key" in closed.output
            full = invoke(app, ["top", server.url, "--request", "mine", "--api-key", "k"])
            assert full.exit_code == 0 and "3 generated in 2 steps" in full.output, full.output
            found = json.loads(invoke(app, ["top", server.url, "--request", "mine", "--json", "--api-key", "k"]).output)
            assert found["choices"][0]["engine"]["generated_tokens"] == 3
            plain = invoke(app, ["top", server.url, "--once", "--json", "--interval", "0", "--api-key", "k"]).output
            assert json.loads(plain)["recent"][0]["request_id"] == "mine"
    finally:
        engine.close()


def _ask(address: tuple[str, int], request_id: str) -> None:
    body = json.dumps({"prompt": "One", "max_tokens": 3, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nX-Request-Id: {request_id}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(head.encode() + body)
        while client.recv(65536):
            pass
