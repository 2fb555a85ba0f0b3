"""However `aie bench` ends, its report is valid and nothing of it is left running."""

import asyncio
import json
import signal
import subprocess
import sys

import psutil
import pytest

from aie.bench import target
from aie.bench.uninterrupted import uninterrupted

MODELS = b'{"data": [{"id": "m"}]}'


def bench(scripted, tmp_path, end, *flags, answers, processes=1):
    """Runs it against a server that answers so many requests and lets the others wait; when it has two of these,
    `end(process, its children)` is called. Gives the exit code, what it said, the report, and who is left."""
    report = tmp_path / "report.json"

    async def go():
        posts = []
        busy = asyncio.Event()

        async def answer(asked, writer):
            if asked.method == "GET":
                body = MODELS if asked.path == "/v1/models" else b""
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                return
            posts.append(asked)
            if len(posts) > 2 + answers:  # two to warm up
                if len(posts) == 2 + answers + 2:
                    busy.set()
                await asyncio.Event().wait()
            writer.write(scripted.HEAD + scripted.text() + scripted.usage(1) + scripted.END)

        async with scripted(answer) as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aie", "bench", "--url", server.endpoint.url, "--processes", str(processes),
                "--json", str(report), *flags,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            talking = asyncio.create_task(process.communicate())
            await asyncio.wait([talking, asyncio.create_task(busy.wait())], return_when="FIRST_COMPLETED")
            assert not talking.done(), talking.result()
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) == processes
            end(process, family)
            said = await talking
            _, alive = psutil.wait_procs(family, timeout=30)
            return process.returncode, *(text.decode() for text in said), json.loads(report.read_text()), alive

    return asyncio.run(go())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("processes", [1, 2])
def test_interrupted(scripted, tmp_path, number, processes):
    def end(process, _family):
        process.send_signal(number)

    flags = ("--concurrency", "2", "--requests", "40")
    code, out, err, report, alive = bench(scripted, tmp_path, end, *flags, answers=10, processes=processes)
    assert (code, alive, report["complete"]) == (130, [], False)
    assert report["levels"][0]["answered"] == 10 and "10/10" in out
    assert "Interrupted" in err and "Traceback" not in out + err


def test_the_load_generator_dies(scripted, tmp_path):
    def end(_process, family):
        family[0].kill()

    flags = ("--concurrency", "1,2", "--requests", "4")
    code, out, err, report, alive = bench(scripted, tmp_path, end, *flags, answers=4)
    assert (code, alive, report["complete"]) == (3, [], False)
    assert [level["answered"] for level in report["levels"]] == [4] and "4/4" in out  # the level before
    assert err.strip().splitlines()[-1].startswith("aie: A process of the load generator ended by signal 9;")
    assert "Traceback" not in out + err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_process_is_started_interrupts_wait(number):
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    reached = []
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            signal.raise_signal(number)
            reached.append(number)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert reached == [number]


def test_of_a_server_that_is_stopped_nobody_is_left(monkeypatch):
    """As where it dies in mid-start: a process that it started goes on without it."""
    monkeypatch.setattr(target, "_STOP_S", 0.2)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    server.stdout.readline()
    family = psutil.Process(server.pid).children()
    target._stop(server)
    server.stdout.close()
    assert server.returncode == -signal.SIGTERM and len(family) == 1
    assert psutil.wait_procs(family, timeout=30)[1] == []
