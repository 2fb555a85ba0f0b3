"""Are the load generator's times those at which things happened?

A scripted server in the same process notes on the same clock when it wrote each piece, and writes the next only after
the client has taken the last: so every time that the client notes lies between two of the server's, however slow the
machine is."""

import asyncio
import time
from collections import Counter
from itertools import pairwise

import pytest

from aie.bench.client import Outcome, send_streaming
from aie.bench.load import Sampler, run_open
from aie.bench.report import summarize
from aie.bench.workload import PlannedRequest

NUM_PIECES = 5
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


def test_every_time_lies_where_it_belongs(scripted):
    outcome, wrote, taken = Outcome(), [], []

    async def answer(_asked, writer):
        wrote.append(time.perf_counter())
        writer.write(scripted.HEAD + scripted.event(ROLE))  # the first bytes have no text: that is TTFR, and no TTFT
        await until(lambda: outcome.first_byte_s is not None)
        for number in range(NUM_PIECES):
            wrote.append(time.perf_counter())
            writer.write(scripted.text())
            await until(lambda number=number: outcome.first_token_s is not None and len(outcome.gaps_s) == number)
            taken.append(time.perf_counter())
        wrote.append(time.perf_counter())
        writer.write(scripted.usage(NUM_PIECES) + scripted.END)

    async def run():
        async with scripted(answer) as server:
            before = time.perf_counter()
            await send_streaming(server.endpoint, "/", {}, timeout_s=30, due_s=before - 1.0, into=outcome)
            return before, time.perf_counter()

    before, after = asyncio.run(run())
    assert outcome.error is None and outcome.num_output_tokens == NUM_PIECES
    assert before <= outcome.sent_s <= wrote[0] <= outcome.first_byte_s <= wrote[1] <= outcome.first_token_s
    at = [outcome.first_token_s]
    for gap in outcome.gaps_s:
        at.append(at[-1] + gap)
    for number, token_s in enumerate(at):
        assert wrote[number + 1] - 1e-6 <= token_s <= taken[number] + 1e-6  # sums of differences lose a few bits
    assert wrote[-1] <= outcome.end_s <= after
    # From send, and from schedule: a second earlier, and what it took to get going.
    assert outcome.ttft_s == outcome.first_token_s - outcome.sent_s
    assert outcome.ttft_from_schedule_s == pytest.approx(outcome.first_token_s - (before - 1.0))
    assert outcome.e2e_from_schedule_s == pytest.approx(outcome.end_s - (before - 1.0))
    assert outcome.tpot_s == pytest.approx((at[-1] - at[0]) / (NUM_PIECES - 1))
    assert wrote[2] - taken[0] <= outcome.gaps_s[0] + 1e-6 and outcome.gaps_s[0] <= taken[1] - wrote[1]


def test_a_burst_with_stalls_failures_and_hang_ups_is_counted_and_timed_right(scripted):
    """200 requests that are all due at once: the server decides what becomes of each, and holds every tenth back until
    all others have ended."""
    kinds = ("answered", "rejected", "failed", "cut", "garbage", "stalled", "silent", "answered", "answered", "closed")
    ends, arrived = Counter(), {}
    others_done = asyncio.Event()

    async def answer(asked, writer):
        prompt = asked.body["prompt"]
        arrived[prompt] = time.perf_counter()
        kind = kinds[int(prompt) % len(kinds)]
        if kind == "stalled":
            await others_done.wait()
        head, text, end = scripted.HEAD, scripted.text(), scripted.usage(NUM_PIECES) + scripted.END
        writer.write(
            {
                "rejected": b"HTTP/1.1 429 no\r\nContent-Length: 2\r\n\r\nno",
                "failed": b"HTTP/1.1 500 no\r\nContent-Length: 2\r\n\r\nno",
                "cut": head + text + text[:9],
                "garbage": b"SSH-2.0-hello\r\n\r\n",
                "silent": head + end,
                "closed": b"",
            }.get(kind, head + text * NUM_PIECES + end)
        )

    def done(outcome):
        ends[outcome.kind] += 1
        if sum(ends.values()) == 180:
            others_done.set()

    async def run():
        async with scripted(answer) as server:
            endpoint = server.endpoint
            planned = [PlannedRequest(str(number), NUM_PIECES) for number in range(200)]
            sampler = Sampler(endpoint, None, lambda: None)
            return await run_open(endpoint, "m", planned, [0.0] * 200, sampler=sampler, timeout_s=60, on_done=done)

    result = asyncio.run(run())
    row = summarize(result)
    # Of every ten: three answered and one that waited; refused; cut short with a first byte; failed before one, or
    # without a word.
    assert (row.requests, row.answered, row.ends["rejected"]) == (200, 80, 20)
    assert row.ends["cut"] + row.ends["failed"] == 100 and row.ends["cut"] >= 20
    assert row.failed == 120 and row.output_tokens == 80 * NUM_PIECES
    assert sum(row.errors.values()) == 120
    assert all(one.due_s == result.start_s and one.sent_s >= one.due_s for one in result.outcomes)
    assert min(arrived.values()) >= result.start_s and len(arrived) == 200
    answered = sorted((one for one in result.outcomes if one.error is None), key=lambda one: one.end_s)
    early, late = answered[:60], answered[60:]
    assert max(one.first_token_s for one in early) <= min(one.first_token_s for one in late)
    assert row.due_e2e.max == pytest.approx(1e3 * (answered[-1].end_s - result.start_s))
    assert row.requests_per_s == pytest.approx(80 / result.wall_s)
    assert row.wall_s >= answered[-1].end_s - result.start_s


def test_a_schedule_is_kept_in_order_and_its_lag_is_told(scripted):
    arrived = []

    async def answer(asked, writer):
        arrived.append(asked.body["prompt"])
        writer.write(scripted.HEAD + scripted.text() + scripted.usage(1) + scripted.END)

    due = [number / 500 for number in range(50)]  # 500 requests/s

    async def run():
        async with scripted(answer) as server:
            endpoint = server.endpoint
            planned = [PlannedRequest(str(number), 1) for number in range(50)]
            sampler = Sampler(endpoint, None, lambda: None)
            return await run_open(endpoint, "m", planned, due, sampler=sampler, timeout_s=60)

    result = asyncio.run(run())
    sent = sorted(result.outcomes, key=lambda one: one.due_s)
    assert sorted(arrived, key=int) == [str(number) for number in range(50)]
    assert [one.due_s - result.start_s for one in sent] == pytest.approx(due)
    assert all(one.lag_s >= 0 for one in sent)
    assert all(earlier.sent_s <= later.sent_s for earlier, later in pairwise(sent))
    assert summarize(result).lag.max == pytest.approx(1e3 * max(one.sent_s - one.due_s for one in sent))
