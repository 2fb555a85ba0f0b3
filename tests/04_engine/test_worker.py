"""The engine in a process of its own: the same promises, and every way in which a process can go."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from aie_engine import (
    EngineConfig,
    EngineDeadError,
    GenerateRequest,
    InvalidInputError,
    LocalEngine,
    QueueFullError,
    TokenStream,
    WorkerEngine,
)
from aie_engine.patience import Patience

Ask = Callable[..., GenerateRequest]


def config_for(model: Path, **more: object) -> EngineConfig:
    return EngineConfig(model, kernels="numpy", kv_memory_bytes=4 << 20, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[WorkerEngine]:
    made = WorkerEngine(config_for(tiny_model))
    yield made
    made.close()


@pytest.fixture
def doomed(tiny_model: Path) -> Iterator[WorkerEngine]:
    """A worker that the test will do something bad to."""
    made = WorkerEngine(config_for(tiny_model, max_batch_size=4, max_queue=2))
    yield made
    made.close(timeout_s=0.2)


def tokens_of(stream: TokenStream) -> list[int]:
    return [token for event in stream for token in event.token_ids]


def test_a_request_that_cannot_be_sent_takes_no_place(engine: WorkerEngine, request_for: Ask) -> None:
    for _ in range(engine.info.max_batch_size + engine.info.max_queue + 1):
        with pytest.raises(UnicodeEncodeError):
            engine.submit(request_for("half a pair \ud800", [5], 1))
    assert len(tokens_of(engine.submit(request_for("whole", [5], 1, ignore_eos=True)))) == 1


def test_a_frame_that_is_none_ends_the_worker_and_keeps_nobody_waiting(doomed: WorkerEngine, request_for: Ask) -> None:
    stream = doomed.submit(request_for("r", [5], 200, ignore_eos=True))
    stream.get(10)
    doomed._pipe.send_bytes(b"\xc1")
    while not stream.finished:
        last = stream.get(10)
    assert last.finish_reason == "cancelled"
    doomed._reader.join(10)
    assert not doomed.is_alive


def test_a_worker_says_what_a_thread_says(engine: WorkerEngine, tiny_model: Path, request_for: Ask) -> None:
    requests = [request_for(f"r{index}", [index + 5, 9, 3], 24, ignore_eos=True) for index in range(8)]
    local = LocalEngine(config_for(tiny_model))
    expected = [tokens_of(stream) for stream in [local.submit(request) for request in requests]]
    local.close()
    assert [tokens_of(stream) for stream in [engine.submit(request) for request in requests]] == expected
    assert engine.info.vocab_size == local.info.vocab_size
    assert engine.info.kernels == "numpy"


def test_figures_come_from_the_worker(engine: WorkerEngine, request_for: Ask) -> None:
    before = engine.stats()
    assert before.worker_pid == engine.pid != os.getpid()
    tokens_of(engine.submit(request_for("r", [4, 5], 6, ignore_eos=True)))
    after = engine.stats()
    assert after.tokens_decode - before.tokens_decode == 6
    assert (after.num_running, after.kv_usage) == (0, 0.0)
    assert after.rss_bytes == pytest.approx(psutil.Process(engine.pid).memory_info().rss, rel=0.5)


def test_the_process_has_a_name(engine: WorkerEngine) -> None:
    if sys.platform == "linux":
        assert Path(f"/proc/{engine.pid}/comm").read_text().strip() == "aie-engine-0"


def test_cancelling(engine: WorkerEngine, request_for: Ask) -> None:
    stream = engine.submit(request_for("long", [4] * 50, 150, ignore_eos=True))
    stream.get(10)
    stream.cancel()
    *_, last = stream
    assert last.finish_reason == "cancelled"
    assert engine.stats().kv_usage == 0.0
    engine.cancel("never heard of")


def test_bad_requests_are_refused_before_they_travel(engine: WorkerEngine, request_for: Ask) -> None:
    with pytest.raises(InvalidInputError, match="token ids"):
        engine.submit(request_for("r", [10**6]))
    assert len(engine._streams) == 0


def test_signals_of_the_terminal_are_left_to_the_front(engine: WorkerEngine, request_for: Ask) -> None:
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    assert len(tokens_of(engine.submit(request_for("r", [4], 3, ignore_eos=True)))) == 3
    assert engine.is_alive


def test_a_killed_worker_is_noticed_at_once_by_everybody(doomed: WorkerEngine, request_for: Ask) -> None:
    os.kill(doomed.pid, signal.SIGSTOP)  # so that the requests are surely open when it dies
    streams = [doomed.submit(request_for(str(index), [4], 200, ignore_eos=True)) for index in range(6)]
    with pytest.raises(QueueFullError):
        doomed.submit(request_for("more", [4]))
    os.kill(doomed.pid, signal.SIGKILL)
    for stream in streams:
        *_, last = stream
        assert last.error is not None
        assert (last.error.code, last.error.status) == ("engine_died", 503)
        assert "SIGKILL" in last.error.message
    assert not doomed.is_alive
    with pytest.raises(EngineDeadError) as caught:
        doomed.submit(request_for("late", [4]))
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)
    doomed.cancel("late")
    assert doomed.stats().worker_pid == doomed.pid
    with pytest.raises(EngineDeadError, match="nobody can say"):
        doomed.memory()
    assert doomed.last_memory_events == (), "without memdebug there is no recorder"


def test_a_worker_that_hangs_keeps_nobody_waiting_and_is_killed(doomed: WorkerEngine, request_for: Ask) -> None:
    os.kill(doomed.pid, signal.SIGSTOP)
    doomed.submit(request_for("r", [4]))
    stats = doomed.stats()
    assert stats.num_running == 1
    assert 0.9 < stats.last_step_age_s < 60  # since the request came: the time before was idle
    process = psutil.Process(doomed.pid)
    stuck = threading.Thread(target=lambda: [doomed.cancel("x" * 100_000) for _ in range(100)])
    stuck.start()  # fills the pipe, and then waits for a reader
    doomed.close(timeout_s=0.2)
    stuck.join(10)
    assert not stuck.is_alive()
    assert not process.is_running()


def test_a_worker_that_hangs_is_asked_in_vain_at_length_only_once(doomed: WorkerEngine) -> None:
    os.kill(doomed.pid, signal.SIGSTOP)
    doomed._patience = Patience(0.05)
    doomed._patience.unanswered(60.0)
    for _ in range(3):
        with pytest.raises(EngineDeadError, match="did not explain"):
            doomed.explain()
    os.kill(doomed.pid, signal.SIGCONT)
    while doomed._patience.left(10.0) < 10.0:  # the answers that came too late are heard, too
        doomed.stats()
    assert not doomed.explain().requests


def test_closing_ends_what_is_open(doomed: WorkerEngine, request_for: Ask) -> None:
    stream = doomed.submit(request_for("r", [4], 200, ignore_eos=True))
    doomed.close()
    assert [event.finish_reason for event in stream][-1] in ("cancelled", "length")
    assert not doomed.is_alive
    with pytest.raises(EngineDeadError, match="closed"):
        doomed.submit(request_for("late", [4]))


def test_nothing_is_left_of_a_worker(tiny_model: Path, request_for: Ask) -> None:
    me = psutil.Process()
    WorkerEngine(config_for(tiny_model)).close()  # the first also starts multiprocessing's own helper, which stays
    fds, threads, children = me.num_fds(), set(threading.enumerate()), set(multiprocessing.active_children())
    for _ in range(2):
        engine = WorkerEngine(config_for(tiny_model))
        pid = engine.pid
        tokens_of(engine.submit(request_for("r", [4], 3)))
        engine.close()
        assert not psutil.pid_exists(pid)
    assert me.num_fds() == fds
    assert set(threading.enumerate()) <= threads
    assert set(multiprocessing.active_children()) <= children


def test_a_model_that_cannot_be_loaded_is_a_typed_error_here(tiny_model: Path, tmp_path: Path) -> None:
    me = psutil.Process()
    fds = me.num_fds()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing that makes sense")
    with pytest.raises(InvalidInputError) as caught:
        WorkerEngine(config_for(broken))
    with pytest.raises(InvalidInputError) as local:
        LocalEngine(config_for(broken))
    assert str(caught.value) == str(local.value)
    assert (caught.value.code, caught.value.exit_code) == (local.value.code, local.value.exit_code)
    assert me.num_fds() <= fds + 2  # at most multiprocessing's helper, when this test is the first


def test_progress_is_told_while_the_worker_starts(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("AIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    lines: list[str] = []
    config = EngineConfig(tiny_model, kernels="auto", kv_memory_bytes=4 << 20)
    engine = WorkerEngine(config, lines.append)
    kernels = engine.info.kernels
    engine.close()
    assert kernels == "native" or any("NumPy" in line for line in lines)


def test_a_worker_without_its_front_goes_too(tiny_model: Path) -> None:
    script = f"""
import os
from aie_engine import EngineConfig, WorkerEngine
if __name__ == "__main__":
    engine = WorkerEngine(EngineConfig({str(tiny_model)!r}, kernels="numpy", kv_memory_bytes=4 << 20))
    print(engine.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    front = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    worker_pid = int(front.stdout)
    if psutil.pid_exists(worker_pid):
        psutil.Process(worker_pid).wait(timeout=10)
    assert not psutil.pid_exists(worker_pid)


def test_a_front_that_forgets_to_close_still_ends(tiny_model: Path) -> None:
    script = f"""
from aie_engine import EngineConfig, WorkerEngine
if __name__ == "__main__":
    engine = WorkerEngine(EngineConfig({str(tiny_model)!r}, kernels="numpy", kv_memory_bytes=4 << 20))
    print(engine.pid)
"""
    front = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert front.stderr == ""
    assert not psutil.pid_exists(int(front.stdout))
