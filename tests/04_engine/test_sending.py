"""Frames to a worker that does not read: nobody waits, and who comes next is told at once."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aie_engine import EngineConfig, EngineDeadError, WorkerEngine, WorkerUnavailableError
from aie_engine.sending import FrameSender

WAIT_S = 10.0


class Pipe:
    """Takes so much at once; then whoever writes waits until somebody reads, or nobody is left who could."""

    def __init__(self, holds: int = 1) -> None:
        self.room = threading.Semaphore(holds)
        self.writing = threading.Semaphore(0)  # one for each write that was begun
        self.taken: list[bytes] = []
        self.is_gone = False

    def write(self, data: bytes) -> None:
        self.writing.release()
        assert self.room.acquire(timeout=WAIT_S)
        if self.is_gone:
            raise BrokenPipeError
        self.taken.append(data)

    def read(self, num: int) -> None:
        self.room.release(num)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sender(pipe: Pipe, clock: Clock) -> Iterator[FrameSender]:
    made = FrameSender(pipe.write, max_bytes=100, patience_s=1.0, clock=clock)
    yield made
    pipe.read(1000)
    made.close()
    assert not made._thread.is_alive()


def test_what_is_sent_arrives_in_its_order(sender: FrameSender, pipe: Pipe) -> None:
    pipe.read(100)
    frames = [bytes([number]) for number in range(50)]
    for frame in frames:
        sender.send(frame)
    sender.close()
    assert pipe.taken == frames
    with pytest.raises(OSError, match="nobody reads"):
        sender.send(b"late")


def test_a_full_pipe_keeps_nobody_waiting(sender: FrameSender, pipe: Pipe, clock: Clock) -> None:
    for _ in range(2):
        sender.send(b"x" * 10)
        assert pipe.writing.acquire(timeout=WAIT_S)  # the second finds no room
    sender.send(b"y" * 80)
    with pytest.raises(WorkerUnavailableError) as caught:
        sender.send(b"z" * 20)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "worker_unavailable", 1.0)
    assert isinstance(caught.value, EngineDeadError), "which callers know how to take"
    sender.send(b"w")
    clock.now += 1.0
    with pytest.raises(WorkerUnavailableError):  # whatever room there is: nothing is read any more
        sender.send(b"v")
    sender.send(b"c", is_end=True)
    pipe.read(3)
    for _ in range(2):
        assert pipe.writing.acquire(timeout=WAIT_S)
    pipe.read(1000)
    sender.close()
    assert pipe.taken == [b"x" * 10] * 2 + [b"y" * 80, b"w", b"c"]


def test_one_frame_larger_than_the_bound_is_sent_when_nothing_waits(sender: FrameSender, pipe: Pipe) -> None:
    sender.send(b"x" * 1000)
    assert pipe.writing.acquire(timeout=WAIT_S)
    sender.close()
    assert pipe.taken == [b"x" * 1000]


def test_a_reader_that_is_gone_is_an_error_for_all_who_come(sender: FrameSender, pipe: Pipe) -> None:
    pipe.is_gone = True
    sender.send(b"x")
    sender._thread.join(WAIT_S)
    with pytest.raises(OSError, match="nobody reads") as caught:
        sender.send(b"y")
    assert isinstance(caught.value.__cause__, BrokenPipeError)


def test_a_worker_that_stands_still_refuses_and_goes_on_where_it_was(tiny_model: Path, request_for: Any) -> None:
    config = EngineConfig(tiny_model, kernels="numpy", kv_memory_bytes=4 << 20, max_queue=500)
    engine = WorkerEngine(config)
    try:
        os.kill(engine.pid, signal.SIGSTOP)
        streams = []
        with pytest.raises(WorkerUnavailableError):
            for number in range(500):  # far more than a pipe holds
                name = f"{number} " + "x" * 60_000
                streams.append(engine.submit(request_for(name, [4, 5], 2, ignore_eos=True)))
        assert 2 < len(streams) < 500
        streams[-1].cancel()  # waits for nobody either, and is not lost
        os.kill(engine.pid, signal.SIGCONT)
        lengths = [sum(len(event.token_ids) for event in stream) for stream in streams[:-1]]
        assert lengths == [2] * len(lengths)
        assert [event.finish_reason for event in streams[-1]][-1] in ("cancelled", "length")
        again = engine.submit(request_for("again", [4, 5], 2, ignore_eos=True))
        assert [event.finish_reason for event in again][-1] == "length"
    finally:
        engine.close(timeout_s=5)
