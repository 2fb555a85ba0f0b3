"""`aie top` as a person reads it: the picture, in words, on any terminal."""

from typing import Any

import pytest

from aie.top.explain import explain_lines
from aie.top.history import History
from aie.top.screen import draw
from aie.top.words import count, duration, printable

# As a person reads it


def test_the_picture(top: Any) -> None:
    history = top.history_of(top.first(10.0), top.second(14.0, top.LISTING))
    text = top.text_of(draw(history, "http://here", when="12:00:00"))
    for part in (
        "aie top  http://here  12:00:00  aie, front 50.0 MiB", "3 running, 2 waiting, mean 3",
        "75 %, 60 of 80 blocks", "100/s generated, 100/s prompt, 75 % of prompts from the prefix cache",
        "held by big (44 blocks)", "10/s, 2 preempted",
        "p50 233 ms  p90 447 ms  p99 495 ms  (n=200 in 4 s)", "100.0 MiB resident",
        "waits waits for 3 s: too few KV blocks are free (9 needed with some to grow, 2 free)",
        "8 running, 4 waiting, 100/s", "mean 10, cut because full 100 %, 50 % full since the start", "open (2)",
        "KV blocks 94 % · queue 6 %; held by big (44 blocks)", "decode 67 % · stalled 33 %; stalled by waits 3 s;",
        "preempted 2 times", "7+40", "3 more are open, of other clients", "batch of 8, cut: full", "3 in",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert text.index("runs") < text.index("waits   "), "the oldest first"


def test_the_picture_of_little(top: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llama = top.text_of(draw(top.history_of(top.look_of(top.LLAMA, 1.0)), "http://llama", when="12:00:00"))
    assert "2 running, 5 waiting, mean 1.75" in llama and "llama-server" in llama and "None" not in llama
    ours = top.first(1.0, why="http://here has no /debug/requests")
    assert "no requests are shown: http://here has no /debug/requests" in top.text_of(
        draw(top.history_of(ours), "http://here", when="12:00:00")
    )
    narrow = top.text_of(draw(top.history_of(top.second(1.0, top.LISTING)), "u", when="12:00:00"), width=40)
    assert max(len(line) for line in narrow.splitlines()) <= 40
    assert (
        top.text_of(draw(History(), "http://here", when="12:00:00", trouble="gone. Trying again.")).count("gone") == 1
    )


def test_what_a_terminal_would_obey_is_not_shown(top: Any) -> None:
    assert printable({"a\x1b[2J": ["b\x07", 1, None]}) == {"a?[2J": ["b?", 1, None]}
    labels = '{model_name="[red]x\x1b[31m"}'
    text = f"aie_num_requests_running{labels} 1\naie_engine_steps_total{labels} 1\n"
    shown = top.text_of(draw(top.history_of(top.look_of(text, 1.0)), "http://here", when="12:00:00"))
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
