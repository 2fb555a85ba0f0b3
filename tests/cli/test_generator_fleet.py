"""The processes of the load generator: what they are told, what they tell, and that none is left."""

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import psutil
import pytest

from aie.bench.fleet import Fleet, GeneratorDiedError, most_at_once
from aie.bench.generator import STOPPED, Call, Closed, Conversation, Endpoint, Open, Outcome, Plan, Turn
from aie.bench.generator.channel import Frames, frame
from aie.bench.generator.outcome import fill, values_of
from aie.bench.generator.plan import shares

NOWHERE = Endpoint("127.0.0.1", 1, "", False)


def whole(number, **more):
    return Call(f"/{number}", b"{}", answer="whole", **more)


async def ok(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def run(server, calls, loop, processes=1, timeout_s=30, **told):
    """What a fleet of its own makes of a plan."""

    async def go():
        async with server:
            with Fleet(processes) as fleet:
                return await fleet.run(Plan(server.endpoint, calls, loop, timeout_s), **told)

    return asyncio.run(go())


# The plan, dealt out


@pytest.mark.parametrize(("clients", "processes"), [(1, 1), (1, 4), (5, 2), (7, 3), (32, 4)])
def test_clients_are_dealt_out_to_the_last(clients, processes):
    calls = [whole(number) for number in range(50)]
    parts = shares(Plan(NOWHERE, calls, Closed(clients, 3.0), 1.0), processes)
    assert len(parts) == min(clients, processes) and sum(part.loop.clients for part in parts) == clients
    assert all(part.loop.duration_s == 3.0 and part.loop.clients >= 1 for part in parts)
    assert sorted((call.path for part in parts for call in part.calls), key=lambda path: int(path[1:])) == [
        call.path for call in calls
    ]
    for part in parts:  # as many calls as befits its clients
        assert len(part.calls) / 50 == pytest.approx(part.loop.clients / clients, abs=0.1)


@pytest.mark.parametrize(("cap", "processes"), [(None, 3), (1, 3), (2, 3), (7, 3)])
def test_a_schedule_is_dealt_out_as_it_is(cap, processes):
    calls, due = [whole(number) for number in range(20)], [number / 10 for number in range(20)]
    parts = shares(Plan(NOWHERE, calls, Open(due, cap), 1.0), processes)
    together = sorted((at, call.path) for part in parts for at, call in zip(part.loop.due, part.calls, strict=True))
    assert together == sorted(zip(due, (call.path for call in calls), strict=True))
    if cap is not None:
        assert sum(part.loop.max_in_flight for part in parts) == cap and len(parts) == min(cap, processes)


def test_a_plan_without_requests_is_one_part():
    assert len(shares(Plan(NOWHERE, [], Open([]), 1.0), 3)) == 1


def test_messages_may_be_cut_anywhere():
    messages = [("news", number, [random.Random(number).random()] * number) for number in range(9)]
    stream = b"".join(map(frame, messages))
    for size in (1, 7, 100, len(stream)):
        frames = Frames()
        found = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
        assert found == messages


def test_an_outcome_arrives_as_it_was():
    sent = Outcome(1.0, 2.0, 3.0, 4.0, 5, 6, 200, None, [0.1, 0.2], 0.5, 1.5, 2, "s", None, False, "p", 7)
    got = Outcome()
    fill(got, pickle.loads(pickle.dumps(values_of(sent))))
    assert got == sent


def test_how_many_were_under_way():
    assert most_at_once([Outcome(sent_s=at, end_s=at + 1) for at in (0, 1, 1.5, 3)]) == 2
    assert most_at_once([]) == 0


# Runs


@pytest.mark.parametrize("processes", [1, 2])
def test_every_call_is_sent_once_and_its_part_comes_back(scripted, processes):
    heard = Counter()

    async def answer(asked, writer):
        heard[asked.method, asked.path, asked.raw] += 1
        await ok(asked, writer)

    calls = [whole(number, part="ab"[number % 2], method="PUT") for number in range(40)]
    started, done = [], []
    ran = run(scripted(answer), calls, Closed(6), processes, on_start=started.append, on_done=done.append)
    assert heard == Counter({("PUT", call.path, b"{}"): 1 for call in calls})
    assert Counter(one.part for one in ran.outcomes) == {"a": 20, "b": 20}
    assert {id(one) for one in started} == {id(one) for one in done} == {id(one) for one in ran.outcomes}
    assert all(one.error is None and one.num_bytes == 2 for one in ran.outcomes)
    assert ran.most_in_flight <= 6 and len(ran.cpu) == processes and all(share > 0 for share in ran.cpu)
    assert all(ran.start_s <= one.sent_s <= one.first_byte_s <= one.end_s for one in ran.outcomes)
    assert ran.wall_s >= max(one.end_s for one in ran.outcomes) - ran.start_s


def test_a_client_keeps_its_connection(scripted):
    server = scripted(ok, keeps=True)
    ran = run(server, [whole(number, keep_alive=True) for number in range(30)], Closed(3))
    assert server.num_connections <= 3 and all(one.error is None for one in ran.outcomes)


def test_a_kept_connection_that_was_closed_is_nobodys_fault(scripted):
    served = Counter()

    async def answer(asked, writer):
        served[writer] += 1
        if served[writer] == 2:
            raise ConnectionResetError  # without a word, after it was asked
        await ok(asked, writer)

    server = scripted(answer, keeps=True)
    ran = run(server, [whole(number, keep_alive=True) for number in range(4)], Closed(1))
    assert [one.error for one in ran.outcomes] == [None] * 4 and server.num_connections == 4


def test_a_new_connection_that_is_closed_is_an_error(scripted):
    async def answer(asked, writer):
        raise ConnectionResetError

    ran = run(scripted(answer), [whole(1, keep_alive=True)], Closed(1))
    assert [one.error for one in ran.outcomes] == ["the connection was closed before an answer"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_cap_holds_for_all_processes_together(scripted, processes):
    ran = run(scripted(ok), [whole(number) for number in range(30)], Open([0.0] * 30, 3), processes)
    assert len(ran.outcomes) == 30 and ran.most_in_flight <= 3
    assert all(one.due_s == ran.start_s for one in ran.outcomes)


def test_conversations_in_the_open_loop_are_due_after_their_answers(scripted):
    heard = []

    async def answer(asked, writer):
        heard.append((asked.headers["x-session-id"], asked.body["messages"]))
        writer.write(scripted.HEAD + scripted.text("fine") + scripted.usage(1) + scripted.END)

    turn = Turn(b'{"messages": ', b'{"role": "user", "content": "hi"}', b"}")
    later = Turn(turn.before, turn.message, turn.after, wait_s=0.01)
    talks = [Conversation("/", (turn, later, later), f"s{number}") for number in range(3)]
    ran = run(scripted(answer), talks, Open([0.0, 0.0, 0.001]))
    for number in range(3):
        mine = sorted((one for one in ran.outcomes if one.session == f"s{number}"), key=lambda one: one.turn)
        assert [one.turn for one in mine] == [0, 1, 2] and all(one.error is None for one in mine)
        for earlier, one in pairwise(mine):
            assert one.due_s >= earlier.end_s + 0.01 and one.sent_s >= one.due_s
        assert [len(said) for name, said in heard if name == f"s{number}"] == [1, 3, 5]
    assert heard[-1][1][1] == {"role": "assistant", "content": "fine"}


def waiting_server(scripted, count):
    """Answers the first event, and the rest only when it is cancelled: with an event that is set when all are there."""
    all_there = asyncio.Event()
    arrived = []

    async def answer(asked, writer):
        writer.write(scripted.HEAD + scripted.text())
        arrived.append(asked.path)
        if len(arrived) == count:
            all_there.set()
        await asyncio.Event().wait()

    return scripted(answer), all_there


def test_stopped_and_hung_up_on(scripted):
    async def go():
        server, all_there = waiting_server(scripted, 4)
        first = []
        async with server:
            with Fleet() as fleet:
                plan = Plan(server.endpoint, [Call("/", b"{}")] * 9, Closed(4), 30)
                running = asyncio.create_task(fleet.run(plan, on_first=first.append))
                await all_there.wait()
                while len(first) < 4:
                    await asyncio.sleep(0.001)
                assert all(one.first_token_s is not None and one.end_s == 0.0 for one in first)
                fleet.stop(hang_up=True)
                return first, await running

    first, ran = asyncio.run(go())
    assert [(one.error, one.kind) for one in ran.outcomes] == [(STOPPED, "stopped")] * 4
    assert {id(one) for one in first} == {id(one) for one in ran.outcomes}


def test_stopped_without_haste_what_is_under_way_ends(scripted):
    async def go():
        gate = asyncio.Event()

        async def answer(asked, writer):
            fleet.stop()
            await gate.wait()
            await ok(asked, writer)

        server = scripted(answer)
        async with server:
            with Fleet() as fleet:
                calls = [whole(number) for number in range(9)]
                running = asyncio.create_task(fleet.run(Plan(server.endpoint, calls, Open([0.0, 1e6, *[1e6] * 7]), 30)))
                await asyncio.sleep(0)
                gate.set()
                return await running

    assert [one.error for one in asyncio.run(go()).outcomes] == [None]


def test_a_run_that_is_called_off_disturbs_none_after_it(scripted):
    async def go():
        server, all_there = waiting_server(scripted, 3)
        quick = scripted(ok)
        async with server, quick:
            with Fleet() as fleet:
                running = asyncio.create_task(fleet.run(Plan(server.endpoint, [Call("/", b"{}")] * 3, Closed(3), 30)))
                await all_there.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                return await fleet.run(Plan(quick.endpoint, [whole(1)], Closed(1), 30))

    assert [one.error for one in asyncio.run(go()).outcomes] == [None]


def children():
    return [one for one in psutil.Process().children() if "aie.bench.generator" in " ".join(one.cmdline())]


def test_a_process_that_dies_is_one_sentence_and_what_ended_is_kept(scripted):
    async def go():
        async def answer(asked, writer):
            if asked.path == "/1":
                await heard.wait()
                children()[0].kill()
            await ok(asked, writer)

        heard, done = asyncio.Event(), []

        def on_done(outcome):
            done.append(outcome)
            heard.set()

        server = scripted(answer)
        async with server:
            with Fleet() as fleet:
                calls = [whole(number) for number in range(3)]
                with pytest.raises(GeneratorDiedError, match="ended by signal 9; the figures are of what came before"):
                    await fleet.run(Plan(server.endpoint, calls, Closed(1), 30), on_done=on_done)
                assert len(done) == 1 and isinstance(fleet.death, GeneratorDiedError)
                again = await fleet.run(Plan(server.endpoint, [whole(7)], Closed(1), 30))
                assert [one.error for one in again.outcomes] == [None]

    asyncio.run(go())
    assert not children()


def test_who_is_told_may_fail_and_the_run_ends(scripted):
    def fails(_outcome):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(scripted(ok), [whole(1)], Closed(1), on_done=fails)
    assert not children()


def test_another_clock_is_translated(scripted, monkeypatch):
    """As on a system whose clock differs from process to process: every time is on ours."""

    def another(self, its_clock_s):
        self.ahead_s = -1000.0

    monkeypatch.setattr("aie.bench.process.Process.meet", another)
    ran = run(scripted(ok), [whole(1)], Closed(1))
    # In truth it is the same clock: so the start had long been, and what was sent then was sent in a thousand seconds.
    assert ran.outcomes[0].sent_s > ran.start_s + 900


def test_a_parent_that_is_killed_leaves_nobody():
    script = "from aie.bench.fleet import Fleet\nimport time\nfleet = Fleet(2)\nfleet.start()\nprint(flush=True)\n"
    parent = subprocess.Popen([sys.executable, "-c", f"{script}time.sleep(600)"], stdout=subprocess.PIPE)
    parent.stdout.readline()
    found = psutil.Process(parent.pid).children()
    assert len(found) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(found, timeout=60)
    assert not alive


def test_a_folder_full_of_other_modules_is_not_imported_from(scripted, tmp_path, monkeypatch):
    for name in ("socket", "asyncio", "aie"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert [one.error for one in run(scripted(ok), [whole(1)], Closed(1)).outcomes] == [None]


def test_a_process_that_cannot_start_says_why(scripted, monkeypatch):
    monkeypatch.setattr("aie.bench.process._WHAT_IT_RUNS", "raise ValueError('no such thing')")
    with pytest.raises(GeneratorDiedError, match=r"ended with code 1 \(ValueError: no such thing\)"):
        run(scripted(ok), [whole(1)], Closed(1))


def test_a_process_imports_little():
    script = "import sys, aie.bench.generator.worker\nprint(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    assert "asyncio" in names and not {"numpy", "rich", "typer", "aie_engine", "psutil"} & {*names}
