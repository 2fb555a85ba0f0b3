"""A stream on the CPU: a queue of work, and a thread that does it in order.

On a GPU the hardware copies and computes at the same time if the program says what may overlap; this is the same
contract with a thread in the place of the hardware. Overlap is real as far as the work lets go of Python's lock: native
calls do, and NumPy's loops over large arrays.

    copy = CpuStream("copy"); compute = CpuStream("compute")
    copy.submit(load)           ─┐ event
    staged = copy.record()       │
    compute.wait_event(staged)  ◀┘
    compute.submit(run)

Errors. Work that raises ends its stream for now: what is queued behind it is passed over, since it would read what was
never written. Events still pass, so nobody waits for ever, and they carry the error: to the host that waits for one,
and to streams that wait for one, whose later work is passed over, too. `synchronize` raises the error and begins anew.
"""

import queue
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from aie_engine.device_streams.checker import HOST, Clock, StreamBuffer, StreamChecker
from aie_engine.device_streams.errors import StreamError
from aie_tensor import AieError, InvalidInputError, skip_frames_of

__all__ = ["CpuEvent", "CpuStream", "synchronize_all"]

skip_frames_of(__file__)


class CpuEvent:
    """A point in a stream's work; an `Event` of stage 1."""

    def __init__(self, stream: str, checker: StreamChecker | None, clock: Clock) -> None:
        self._stream = stream
        self._checker = checker
        self.clock = clock
        self.error: AieError | None = None  # what the stream failed with before this point
        self._passed = threading.Event()

    def done(self) -> bool:
        """True once all work queued before it has run or was passed over. Never blocks, and never raises."""
        return self._passed.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until it is done. Raises the error of the work before it, and `TimeoutError` after `timeout_s`."""
        if not self._passed.wait(timeout_s):
            raise TimeoutError(f"an event of stream {self._stream!r} did not pass within {timeout_s} s")
        if self._checker is not None:
            self._checker.wait(HOST, self.clock)
        if self.error is not None:
            raise self.error

    def wait_quietly(self) -> AieError | None:
        """For streams: block until it is done; the error instead of raising it."""
        self._passed.wait()
        return self.error

    def reach(self, error: AieError | None) -> None:
        """For its stream only."""
        self.error = error
        self._passed.set()


class CpuStream:
    """A `Stream` of stage 1. `submit`, `record` and `wait_event` return at once.

    checker: is told of everything that is queued, and raises where an event is missing.
    """

    def __init__(self, name: str, *, checker: StreamChecker | None = None) -> None:
        self._name = name
        self._checker = checker
        if checker is not None:
            checker.join(name)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: AieError | None = None  # only the thread writes it, but for `synchronize` between two works
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"stream-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._name

    def submit(
        self,
        work: Callable[[], object],
        *,
        label: str = "",
        reads: Iterable[StreamBuffer] = (),
        writes: Iterable[StreamBuffer] = (),
    ) -> None:
        """Queue `work`. label: for people. reads, writes: what it touches, for the checker."""
        label = label or getattr(work, "__name__", "work")
        with self._lock:
            self._check_open()
            if self._checker is not None:
                self._checker.queue(self._name, label, reads=reads, writes=writes)
            self._work.put(lambda: self._do(work, label))

    def record(self) -> CpuEvent:
        """A new event behind everything queued so far."""
        with self._lock:
            self._check_open()
            clock = {} if self._checker is None else self._checker.record(self._name)
            event = CpuEvent(self._name, self._checker, clock)
            self._work.put(lambda: event.reach(self._error))
        return event

    def wait_event(self, event: CpuEvent) -> None:
        """What is queued from now on begins after `event` has passed. Does not block the caller."""
        with self._lock:
            self._check_open()
            if self._checker is not None:
                self._checker.wait(self._name, event.clock)
            self._work.put(lambda: self._await(event))

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block until all is done. Raises the error of work that failed, once; the stream then runs again."""
        event = self.record()
        try:
            event.wait(timeout_s)
        except AieError:
            self._work.put(self._forget)
            raise

    def close(self) -> None:
        """Do what is queued, then end the thread. A second call does nothing; errors that nobody asked for are lost."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._work.put(None)
        self._thread.join()
        if self._checker is not None:
            self._checker.leave(self._name)

    def __enter__(self) -> "CpuStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidInputError(f"stream {self._name!r} is closed, and takes no more work")

    def _run(self) -> None:
        while (step := self._work.get()) is not None:
            step()
            del step  # what it holds must not live until the next work comes

    def _do(self, work: Callable[[], object], label: str) -> None:
        if self._error is not None:
            return
        try:
            work()
        except AieError as error:
            self._error = error
        except BaseException as error:  # the thread must go on to the events that others wait for
            self._error = StreamError(f"{label!r} on stream {self._name!r} failed: {type(error).__name__}: {error}")
            self._error.__cause__ = error

    def _await(self, event: CpuEvent) -> None:
        error = event.wait_quietly()
        if self._error is None:
            self._error = error

    def _forget(self) -> None:
        self._error = None


def synchronize_all(streams: Iterable[CpuStream]) -> None:
    """Wait for all; then raise the first error there was, in the order of the streams. All run again."""
    errors: list[AieError] = []
    for stream in streams:
        try:
            stream.synchronize()
        except AieError as error:
            errors.append(error)
    if errors:
        raise errors[0]
