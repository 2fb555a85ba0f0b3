"""Traffic as it was: traces, lengths from a file, conversations."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.client import Outcome
from aie.bench.lengths_file import read_lengths
from aie.bench.load import LevelResult, Sampler, as_row, run_level
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.report import summarize
from aie.bench.streaming_plan import Traffic, closed_levels
from aie.bench.trace import Cut, read_trace
from aie.bench.trace_plan import trace_level
from aie.bench.workload import parse_cancel, plan_requests, plan_sessions
from aie_engine import InvalidInputError

MOONCAKE = [
    {"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30000, "input_length": 1300, "output_length": 26, "hash_ids": [46, 47, 2353]},
    {"timestamp": 33000, "input_length": 40, "output_length": 7, "hash_ids": [9]},
    {"timestamp": 33000, "input_length": 900, "output_length": 3},
]
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,Conversation log
"""


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)) + "\n\n")
    return path


def test_mooncake(mooncake):
    trace = read_trace(mooncake, Cut())
    assert [one.at_s for one in trace.requests] == [0, 3, 6, 6]
    assert [(one.input_tokens, one.output_tokens) for one in trace.requests][:2] == [(1100, 52), (1300, 26)]
    assert (trace.requests[1].blocks, trace.block_tokens, trace.num_failed) == ((46, 47, 2353), 512, 0)


def test_burst_gpt(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text("\ufeff" + BURST)
    trace = read_trace(path, Cut(time_scale=0.1, length_scale=0.5))
    assert [one.at_s for one in trace.requests] == pytest.approx([0, 11.35])
    assert [(one.input_tokens, one.output_tokens) for one in trace.requests] == [(236, 9), (208, 138)]
    assert trace.num_failed == 1


def test_a_trace_is_cut_after_it_is_stretched(mooncake):
    assert len(read_trace(mooncake, Cut(requests=2)).requests) == 2
    assert len(read_trace(mooncake, Cut(duration_s=6.0)).requests) == 2
    assert len(read_trace(mooncake, Cut(duration_s=6.0, time_scale=0.5)).requests) == 4
    mooncake.write_text(mooncake.read_text() + "garbage")
    assert len(read_trace(mooncake, Cut(requests=4)).requests) == 4  # what comes later is not even read


def test_prompts_begin_alike_where_their_hashes_do(mooncake):
    level = trace_level(read_trace(mooncake, Cut()), seed=1, cancel=parse_cancel("1@3"))
    prompts = [one.prompt.split() for one in level.requests]
    assert [len(words) for words in prompts] == [1045, 1235, 38, 855]  # at 0.95 words per token
    shared = 2 * 486
    assert prompts[0][:shared] == prompts[1][:shared] and prompts[0][shared:] != prompts[1][shared:1045]
    assert prompts[3][:50] != prompts[0][:50]  # without hashes its text is its own
    assert list(level.due) == [0, 3, 6, 6] and [one.max_tokens for one in level.requests] == [52, 26, 7, 3]
    assert [one.hang_up_after for one in level.requests] == [3] * 4 and level.rate.mean == 0.667
    again, other = (trace_level(read_trace(mooncake, Cut()), seed=seed) for seed in (1, 2))
    assert [one.prompt for one in again.requests] == [one.prompt for one in level.requests]
    assert other.requests[2].prompt != level.requests[2].prompt


def test_a_trace_that_memory_would_not_hold(tmp_path):
    path = tmp_path / "t"
    path.write_text('{"timestamp": 0, "input_length": 9000000, "output_length": 5}\n' * 6)
    with pytest.raises(InvalidInputError, match="--length-scale"):
        read_trace(path, Cut())
    assert trace_level(read_trace(path, Cut(requests=1, length_scale=1e-6)), seed=0).rate.mean == 1.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 is neither"),
        ("hello", "line 1 is neither"),
        ("a,b\n1,2", "line 1 names no column 'Timestamp'"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp": 1', "line 2 is no JSON object"),
        ('{"timestamp": 1}', "line 1 has no input_length"),
        ('{"timestamp": "x", "input_length": 2, "output_length": 3}', "line 1 has 'x' as timestamp"),
        ('{"timestamp": true, "input_length": 2, "output_length": 3}', "line 1 has 'True' as timestamp"),
        ('{"timestamp": 1' + "0" * 400 + ', "input_length": 2, "output_length": 3}', "line 1 has '10*' as timestamp"),
        ('{"timestamp": ' + "[" * 100_000, "line 1 is no JSON object"),
        ('Timestamp,Request tokens,Response tokens\n"' + "9" * 200_000, "is no CSV"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 3}', "line 1 has 0 as input_length"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 3}', "line 1 has 1.5 as input_length"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": "x"}', "line 1 has hash_ids"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 0}', "no request to send"),
        ("Timestamp,Request tokens,Response tokens\n5,1,1\n4,1,1", "line 3 is earlier"),
        ("Timestamp,Request tokens,Response tokens\n5,1", "line 2 has no Response tokens"),
        ("Timestamp,Request tokens,Response tokens\n5,one,1", "line 2 has 'one' as Request tokens"),
    ],
)
def test_a_malformed_trace_is_one_sentence_with_its_line(tmp_path, text, says):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=says):
        read_trace(path, Cut())


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for read in (lambda path: read_trace(path, Cut()), read_lengths):
        with pytest.raises(InvalidInputError, match="cannot be read"):
            read(tmp_path / "missing")
        with pytest.raises(InvalidInputError, match="is no text"):
            read(tmp_path / "bytes")


def test_lengths_from_a_file(tmp_path):
    path = tmp_path / "lengths"
    path.write_text("# input output\n100 5\n\n 200\t50 \n")
    assert read_lengths(path) == ((100, 5), (200, 50))
    plan = plan_requests(60, input_tokens=(1, 1), output_tokens=(1, 1), seed=1, pairs=read_lengths(path))
    assert {(len(one.prompt.split()), one.max_tokens) for one in plan} == {(95, 5), (190, 50)}


@pytest.mark.parametrize("line", ["1", "1 2 3", "0 5", "x 5", "-1 5", "1.5 2", "9999999 1", "9" * 5000 + " 1"])
def test_bad_lengths_in_a_file(tmp_path, line):
    path = tmp_path / "lengths"
    path.write_text(f"1 2\n{line}\n")
    with pytest.raises(InvalidInputError, match="line 2"):
        read_lengths(path)


# Conversations


def talk(scripted, sessions, clients, *, fail_at="?", **options):
    """What a server heard that answers the turn of n messages with the words `n, ` and `fine`, and a request that ends
    with `fail_at` with an error; and the result."""
    heard = []

    async def answer(asked, writer):
        said = asked.body["messages"]
        heard.append((asked.headers.get("x-session-id"), said))
        if said[-1]["content"] == fail_at:
            writer.write(b"HTTP/1.1 500 no\r\nConnection: close\r\n\r\nno")
            return
        events = [{"choices": [{"delta": {"content": piece}}]} for piece in (f"{len(said)}, ", "fine")]
        writer.write(scripted.HEAD + b"".join(map(scripted.event, events)) + scripted.usage(2) + scripted.END)

    async def run():
        async with scripted(answer) as server:
            sampler = Sampler(server.endpoint, None, lambda: None)
            return await run_level(
                server.endpoint, "m", sessions, clients, sampler=sampler, timeout_s=30, chat=True, **options
            )

    return heard, asyncio.run(run())


def test_each_turn_sends_all_that_was_said(scripted):
    planned = plan_requests(6, input_tokens=(3, 9), output_tokens=(2, 5), seed=1)
    sessions = plan_sessions(planned, 3, "s")
    heard, result = talk(scripted, sessions, 2)
    assert len(sessions) == 2 and len(result.outcomes) == 6
    for number, session in enumerate(sessions):
        mine = [messages for name, messages in heard if name == f"s-{number}"]
        assert [len(messages) for messages in mine] == [1, 3, 5]
        assert mine[2][:-1] == [*mine[1], {"role": "assistant", "content": "3, fine"}]
        asked = [message["content"] for message in mine[2] if message["role"] == "user"]
        assert asked == [session.prompt, *(one.prompt for one in session.later)]
    assert all(one.pieces is None for one in result.outcomes if one.turn < 2)  # memory is given back
    row = summarize(result)
    assert len(row.turn_ttft_p50) == 3 and any("by turn of the conversation: 1 " in line for line in notes([row]))
    assert {as_row(one, result)["turn"] for one in result.outcomes} == {0, 1, 2}


def test_a_conversation_ends_where_nobody_answers(scripted):
    planned = plan_requests(4, input_tokens=(9, 9), output_tokens=(2, 5), seed=1)
    heard, result = talk(scripted, plan_sessions(planned, 4, "s"), 1, fail_at=planned[1].prompt)
    assert len(heard) == 2 and [one.error is None for one in result.outcomes] == [True, False]


def test_the_clock_ends_conversations_between_turns(scripted):
    planned = plan_requests(4, input_tokens=(9, 9), output_tokens=(2, 5), seed=1)
    # A pause that is longer than the test lets no second turn begin.
    heard, result = talk(scripted, plan_sessions(planned, 4, "s"), 1, duration_s=1e-3, think_s=2e-3)
    assert len(result.outcomes) == len(heard) <= 1


def test_single_requests_have_no_session(scripted):
    heard, result = talk(scripted, plan_requests(2, input_tokens=(3, 9), output_tokens=(2, 5), seed=1), 1)
    assert [name for name, _ in heard] == [None, None] and summarize(result).turn_ttft_p50 == ()


def test_conversations_are_counted_in_requests():
    traffic = Traffic((3, 9), (2, 5), chat=True, turns=3)
    (by_count, by_default) = (
        closed_levels(traffic, [4], requests=requests, duration_s=None)[0] for requests in (10, None)
    )
    assert by_count.num_requests == 10 and [len(one.later) for one in by_count.requests] == [2, 2, 2, 0]
    assert len(by_default.requests) == 16 and by_default.num_requests == 48
    assert len({one.session for one in by_default.requests}) == 16


def test_turns_that_were_never_answered_are_left_out():
    outcomes = [Outcome(0, 0.25, 0.25, 0.25, 1, 1, 200, turn=0, session="a"),
                Outcome(0, None, None, 1.0, 1, 1, 500, "HTTP 500", turn=1, session="a")]  # fmt: skip
    assert summarize(LevelResult(1, outcomes, 1.0)).turn_ttft_p50 == (250.0,)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trace": "x", "rate": "3"}, "leave --rate out"),
        ({"trace": "x", "input_tokens": "3"}, "leave --input-tokens out"),
        ({"trace": "x", "time_scale": 0.0}, "--time-scale"),
        ({"length_scale": 2.0}, "--trace FILE"),
        ({"endpoint": "embeddings", "model": "m", "trace": "x"}, "--trace is for models that generate"),
        ({"endpoint": "embeddings", "model": "m", "lengths": "file:x"}, "is for models that generate"),
        ({"lengths": "files"}, "file:PATH"),
        ({"turns": 3}, "--endpoint chat"),
        ({"turns": 0}, "--turns"),
        ({"think_s": 3.0}, "give --turns"),
        ({"think_s": -1.0, "turns": 2, "endpoint": "chat"}, "negative"),
    ],
)
def test_options_that_contradict_each_other(options, says):
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**options)


def test_a_bad_trace_is_refused_before_anything_is_sent(tmp_path):
    path = tmp_path / "trace"
    path.write_text("hello")
    run = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:9", "--trace", str(path)])
    assert isinstance(run.exception, InvalidInputError) and "line 1" in str(run.exception)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_file_without_lines_has_an_end():
    with pytest.raises(InvalidInputError, match="line 1 is neither a JSON object"):
        read_trace(Path("/dev/zero"), Cut())
