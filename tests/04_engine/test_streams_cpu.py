"""Streams backed by threads: order, events, errors, and that two of them do run at the same time. No clock is read."""

import threading

import numpy as np
import pytest

from aie_engine.device_streams import (
    MAX_STREAMS,
    CpuStream,
    MissingDependencyError,
    StagedPipeline,
    StreamBuffer,
    StreamChecker,
    StreamError,
    StreamPool,
)
from aie_tensor import Event, InvalidInputError, MemoryPool, Stream

TIMEOUT_S = 30.0  # of a test that would otherwise hang


@pytest.fixture
def streams():
    """Makes streams, and closes them."""
    made = []

    def make(*names, checker=None):
        made.extend(CpuStream(name, checker=checker) for name in names)
        return made[-len(names) :]

    yield make
    for stream in made:
        stream.close()


def test_they_are_streams_and_events_of_stage_1(streams):
    (stream,) = streams("copy")
    event = stream.record()
    assert isinstance(stream, Stream) and isinstance(event, Event) and stream.name == "copy"
    event.wait(TIMEOUT_S)
    assert event.done()


def test_work_runs_in_order_and_later(streams):
    (stream,) = streams("s")
    gate, seen = threading.Event(), []
    stream.submit(lambda: gate.wait(TIMEOUT_S))
    for number in range(50):
        stream.submit(lambda number=number: seen.append(number))
    event = stream.record()
    assert not event.done() and not seen
    gate.set()
    stream.synchronize()
    assert event.done() and seen == list(range(50))


def test_two_streams_work_at_the_same_time(streams):
    both = threading.Barrier(2, timeout=TIMEOUT_S)  # passes only when both are inside
    for stream in (pair := streams("a", "b")):
        stream.submit(both.wait)
    for stream in pair:
        stream.synchronize()


def test_a_stream_waits_for_an_event_of_another(streams):
    first, second = streams("first", "second")
    gate, seen = threading.Event(), []
    first.submit(lambda: gate.wait(TIMEOUT_S))
    first.submit(lambda: seen.append("first"))
    second.wait_event(first.record())
    second.submit(lambda: seen.append("second"))
    free = threading.Event()
    first.submit(free.set)
    gate.set()
    second.synchronize()
    assert seen == ["first", "second"]


def test_an_error_ends_the_stream_until_it_is_told(streams):
    first, second = streams("first", "second")
    seen = []
    first.submit(lambda: 1 // 0, label="divide")
    first.submit(lambda: seen.append("passed over"))
    event = first.record()
    second.wait_event(event)
    second.submit(lambda: seen.append("passed over, too"))
    with pytest.raises(StreamError, match="'divide' on stream 'first' failed: ZeroDivisionError") as caught:
        event.wait(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and event.done()
    for stream in (first, second):
        with pytest.raises(StreamError, match="divide"):
            stream.synchronize()
        stream.submit(lambda: seen.append("again"))
        stream.synchronize()
    assert seen == ["again", "again"]


def test_typed_errors_stay_what_they_are(streams):
    def refuse():
        raise InvalidInputError("no")

    (stream,) = streams("s")
    stream.submit(refuse)
    with pytest.raises(InvalidInputError, match="no"):
        stream.synchronize()


def test_close_does_what_is_queued_and_ends_the_thread():
    seen = []
    stream = CpuStream("s")
    for number in range(20):
        stream.submit(lambda number=number: seen.append(number))
    stream.close()
    stream.close()
    assert seen == list(range(20))
    assert not any(thread.name == "stream-s" for thread in threading.enumerate())
    for action in (lambda: stream.submit(seen.clear), stream.record, stream.synchronize):
        with pytest.raises(InvalidInputError, match="closed"):
            action()


def test_a_pools_streams_take_turns():
    with StreamPool(3, name="lane") as pool:
        assert [pool.next().name for _ in range(4)] == ["lane-0", "lane-1", "lane-2", "lane-0"]
        assert len(pool) == 3
        for stream in pool:
            stream.submit(lambda: 1 // 0)
        with pytest.raises(StreamError, match="lane-0"):
            pool.synchronize()
        pool.synchronize()
    for wrong in (0, MAX_STREAMS + 1):
        with pytest.raises(InvalidInputError, match="1 to 8"):
            StreamPool(wrong)


def test_a_block_is_held_back_until_the_streams_event_has_passed(streams):
    (stream,) = streams("copy")
    pool, gate = MemoryPool(segment_bytes=64 << 10), threading.Event()
    block = pool.allocate(64 << 10, owner="tile")
    address = block.address
    block.used_on(stream)
    stream.submit(lambda: gate.wait(TIMEOUT_S))
    block.release()
    early = pool.allocate(64 << 10, owner="next")
    assert early.address != address and pool.stats().pending_bytes == 64 << 10
    gate.set()
    stream.synchronize()
    late = pool.allocate(64 << 10, owner="next")
    assert late.address == address


def buffer(name="staging"):
    return StreamBuffer(name, np.zeros(4, np.float32))


def forgetful(copy, compute, staging):
    """What the checker is there for: compute reads what copy writes, and does not wait for it."""
    copy.submit(lambda: None, label="stage", writes=[staging])
    compute.submit(lambda: None, label="run", reads=[staging])


def test_a_missing_event_is_found_whatever_the_timing(streams):
    copy, compute = streams("copy", "compute", checker=StreamChecker())
    staging, gate = buffer(), threading.Event()
    for stream in (copy, compute):  # nothing runs at all before it is found
        stream.submit(lambda: gate.wait(TIMEOUT_S), label="gate")
    with pytest.raises(MissingDependencyError) as caught:
        forgetful(copy, compute, staging)
    gate.set()
    text = str(caught.value)
    assert "'run' on stream 'compute' would read the buffer 'staging', which 'stage' on stream 'copy' writes" in text
    assert caught.value.first_at[0].function == caught.value.second_at[0].function == "forgetful"
    assert caught.value.second_at[0].line == caught.value.first_at[0].line + 1
    assert text.count("in forgetful") == 2


def test_a_missing_event_is_found_even_if_all_had_run_in_order(streams):
    copy, compute = streams("copy", "compute", checker=StreamChecker())
    staging, ran = buffer(), threading.Event()
    copy.submit(ran.set, label="stage", writes=[staging])
    assert ran.wait(TIMEOUT_S)  # by luck it is over, and nothing that a stream knows of says so
    with pytest.raises(MissingDependencyError, match="no event orders the two"):
        compute.submit(lambda: None, label="run", reads=[staging])


def test_an_event_orders_and_so_does_the_hosts_waiting(streams):
    checker = StreamChecker()
    copy, compute, third = streams("copy", "compute", "third", checker=checker)
    staging = buffer()
    copy.submit(lambda: None, label="stage", writes=[staging])
    compute.wait_event(copy.record())
    compute.submit(lambda: None, label="run", reads=[staging])
    third.wait_event(compute.record())  # what compute had waited for, third has too
    third.submit(lambda: None, label="look", reads=[staging])
    with pytest.raises(MissingDependencyError, match=r"would write the buffer 'staging', which 'run' .* reads"):
        copy.submit(lambda: None, label="stage again", writes=[staging])
    with pytest.raises(MissingDependencyError, match="'fill' on the host would write"):
        checker.touch("fill", writes=[staging])
    compute.synchronize()
    third.synchronize()
    checker.touch("fill", writes=[staging])
    copy.submit(lambda: None, label="stage again", writes=[staging])


def test_readers_need_no_order_among_themselves(streams):
    a, b = streams("a", "b", checker=StreamChecker())
    shared = buffer()
    for stream in (a, b):
        stream.submit(lambda: None, reads=[shared])
    with pytest.raises(MissingDependencyError, match="stream 'b'"):
        a.submit(lambda: None, label="write", writes=[shared])


def test_an_event_recorded_too_early_does_not_order(streams):
    copy, compute = streams("copy", "compute", checker=StreamChecker())
    staging = buffer()
    early = copy.record()
    copy.submit(lambda: None, label="stage", writes=[staging])
    compute.wait_event(early)
    with pytest.raises(MissingDependencyError):
        compute.submit(lambda: None, label="run", reads=[staging])


@pytest.mark.parametrize("num_buffers", [1, 2, 3])
def test_a_staged_pipeline_gives_what_one_after_the_other_gives(streams, num_buffers):
    copy, compute = streams("copy", "compute", checker=StreamChecker())
    pipeline = StagedPipeline(
        lambda source, own: own.array.__setitem__(..., source),
        lambda own: float(own.array.sum()),
        copy=copy,
        compute=compute,
        buffers=[buffer(f"staging {index}") for index in range(num_buffers)],
    )
    assert pipeline.map(range(40)) == [4.0 * number for number in range(40)]
    assert pipeline.map([]) == []


def test_a_pipeline_stages_the_next_batch_while_one_is_computed(streams):
    copy, compute = streams("copy", "compute")
    staged_next = threading.Event()

    def stage(source, own):
        if source == 1:
            staged_next.set()

    pipeline = StagedPipeline(
        stage,
        lambda own: staged_next.wait(TIMEOUT_S),  # batch 0 ends only when batch 1 has been staged
        copy=copy,
        compute=compute,
        buffers=[buffer("one"), buffer("other")],
    )
    assert pipeline.map(range(2)) == [True, True]


def test_a_pipeline_that_fails_says_so_and_runs_again(streams):
    copy, compute = streams("copy", "compute")

    def run(own):
        if own.array[0] == 2:
            raise InvalidInputError("two is too many")
        return float(own.array[0])

    pipeline = StagedPipeline(
        lambda source, own: own.array.fill(source), run, copy=copy, compute=compute, buffers=[buffer(), buffer()]
    )
    with pytest.raises(InvalidInputError, match="too many"):
        pipeline.map(range(5))
    assert pipeline.map([7, 8]) == [7.0, 8.0]
    with pytest.raises(InvalidInputError, match="at least one buffer"):
        StagedPipeline(lambda source, own: None, run, copy=copy, compute=compute, buffers=[])
