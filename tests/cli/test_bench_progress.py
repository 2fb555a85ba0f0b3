"""What is seen while a level runs."""

import asyncio
import io

import pytest
from rich.console import Console

from aie.bench.client import HUNG_UP, Outcome
from aie.bench.dashboard import draw, spark
from aie.bench.progress import Progress, Seen, choose_ui
from aie.bench.running import Running
from aie_engine import InvalidInputError


def outcome(ttft=0.1, gaps=(0.02, 0.04), **changed):
    first = 5.0 + ttft
    end = first + sum(gaps)
    return Outcome(**{"sent_s": 5.0, "first_token_s": first, "last_token_s": end, "end_s": end, "status": 200,
                      "gaps_s": list(gaps), **changed})  # fmt: skip


def test_what_is_open_and_what_has_ended():
    now = [10.0]
    running = Running(clock=lambda: now[0])
    alive, done = outcome(gaps=()), outcome()
    running.started(alive)
    running.started(done)
    running.flowed(1 + 3)
    now[0] = 12.0
    first = running.look()
    assert (first.elapsed_s, first.in_flight, first.num_ended, first.ttft_ms) == (2.0, 2, 0, (None, None))
    assert first.tokens_per_s == 2.0  # four events in two seconds, one of them of the request that has only begun
    running.flowed(1 + 5)
    running.ended(done)
    running.ended(outcome(error="HTTP 503: full", status=503, first_token_s=None, gaps=()))
    running.ended(outcome(error=HUNG_UP))
    now[0] = 13.0
    second = running.look()
    assert (second.in_flight, second.ends) == (1, {"answered": 1, "rejected": 1, "cancelled": 1})
    assert second.tokens_per_s == 5.0 + 3.0 and second.history == (2.0, 8.0)  # five more of one, all of another
    assert second.ttft_ms == (pytest.approx(100), pytest.approx(100))
    assert second.itl_ms == (pytest.approx(20), pytest.approx(40))
    assert [one.error for one in running.outcomes] == [None, "HTTP 503: full", HUNG_UP]


def test_waiting_for_its_turn_counts_as_waiting():
    running = Running(clock=lambda: 0.0)
    running.ended(outcome(due_s=4.0))
    assert running.look().ttft_ms[0] == pytest.approx(1100)


def test_models_that_answer_at_once_have_no_first_token():
    now = [0.0]
    running = Running(clock=lambda: now[0])
    running.ended(Outcome(sent_s=1.0, end_s=1.25, status=200))
    now[0] = 0.5
    out = io.StringIO()
    Console(file=out, width=80).print(draw("x", None, running.look(), memory_bytes=None, gauges={}))
    assert "E2E" in out.getvalue() and "P50 250 ms" in out.getvalue() and "TTFT" not in out.getvalue()
    assert ["answers/s", "2"] in [line.split() for line in out.getvalue().splitlines()]


def test_sparks():
    assert spark([0, 1, 4, 8]) == "▁▂▅█" and spark([0, 0]) == "▁▁" and spark([]) == ""


def shown(progress_ui, terminal=True):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    progress = Progress("8 clients", 20, ui=progress_ui, console=console)
    progress.server = Seen(lambda: 3 << 20, lambda: {"running": 4.0, "waiting": 2.0, "kv_usage": 0.5})
    progress.started(outcome())
    progress.step(outcome())
    progress.step(outcome(error="the stream was cut off", first_byte_s=5.0))
    progress.refresh()
    progress.end()
    return out.getvalue()


def test_the_picture(capsys):
    text = shown("live")
    for part in ("8 clients", "2 of 20 done, 1 in flight", "1 ok", "1 cut", "0 late", "P50 100 ms", "4 running",
                 "2 waiting", "KV cache 50%", "3.0 MiB", "tokens/s"):  # fmt: skip
        assert part in text, part
    (last,) = capsys.readouterr().err.splitlines()
    assert last.startswith("8 clients: 2 of 20 done in ") and last.endswith("1 not answered")


def test_plain_lines_and_nothing_at_all(capsys):
    assert shown("plain") == "" and len(capsys.readouterr().err.splitlines()) == 1
    assert shown("none") == "" and capsys.readouterr().err == ""


def test_a_server_that_tells_nothing_has_no_line():
    running = Running(clock=lambda: 0.0)
    out = io.StringIO()
    Console(file=out, width=80).print(draw("x", None, running.look(), memory_bytes=None, gauges={}))
    assert "server" not in out.getvalue() and "0 done" in out.getvalue()


def test_a_terminal_that_went_away_ends_the_picture_and_not_the_test():
    def gone():
        raise BrokenPipeError

    progress = Progress("x", 1, ui="plain")
    progress.refresh = gone
    asyncio.run(progress.show())


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {}, "live"),
        (False, {}, "plain"),
        (True, {"NO_COLOR": "1"}, "plain"),
        (True, {"TERM": "dumb"}, "plain"),
        (True, {"CI": "true"}, "plain"),
    ],
)
def test_who_gets_the_picture(monkeypatch, terminal, environment, expected):
    for name in ("NO_COLOR", "TERM", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    assert choose_ui(None) == expected and choose_ui("none") == "none" and choose_ui("live") == "live"
    with pytest.raises(InvalidInputError, match="--ui"):
        choose_ui("loud")
