"""Compiling forms: a few threads, and so much time for each form.

A form compiles in milliseconds as a rule; the worst that the library lets through take it seconds, in which nothing can
interrupt it. So one thread would make everybody wait for the worst, and there are a few. What takes longer than
`timeout_s` is given up: its request ends, its thread is written off until the library returns, and another thread takes
its place. At most `max_threads` are there at once; were all of them written off, whoever waits for `wait_s` is told to
come again.

No thread watches the time: who asked for a form asks again at `expires_at`, and calls `give_up`.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol

from aie_engine.constraints.errors import ConstraintError, ConstraintsBusyError
from aie_engine.constraints.matching import Constraint
from aie_engine.constraints.spec import ConstraintSpec

__all__ = ["Compilation", "CompileThreads", "Maker"]

_CLOSE_S: Final = 5.0


class Maker(Protocol):
    """Compiles; `ConstraintMaker` is one. Called by several threads."""

    def make(self, spec: ConstraintSpec) -> Constraint: ...


class Compilation:
    """One form on its way through the threads."""

    def __init__(self, threads: "CompileThreads", spec: ConstraintSpec, now: float) -> None:
        self.made: Future[Constraint] = Future()
        self.spec = spec
        self.asked_s = now
        self.began_s: float | None = None  # when the library began with it
        self.is_over = False  # made, failed or given up
        self.is_abandoned = False  # given up, though its thread may go on
        self._threads = threads

    def expires_at(self, now: float) -> float:
        """When to ask `give_up`: never after it would say yes, if perhaps before."""
        began_s = self.began_s
        if began_s is not None:
            return began_s + self._threads.timeout_s
        return min(self.asked_s + self._threads.wait_s, now + self._threads.timeout_s)

    def give_up(self, now: float) -> None:
        """If its time is over, `made` fails with what its client should know."""
        spec, threads = self.spec, self._threads
        if self.began_s is None:
            if now >= self.asked_s + threads.wait_s and threads.abandon(self):
                self.made.set_exception(
                    ConstraintsBusyError(f"{spec.param} could not be compiled for {threads.wait_s:g} s; try again.")
                )
        elif now >= self.began_s + threads.timeout_s and threads.abandon(self):
            self.made.set_exception(
                ConstraintError(
                    f"{spec.param} takes longer than {threads.timeout_s:g} s to compile; ask for a simpler form.",
                    param=spec.param,
                )
            )

    def drop(self) -> None:
        """Nobody wants it any more."""
        if self._threads.abandon(self):
            self.made.set_exception(ConstraintError("Nobody waits for it any more."))


class CompileThreads:
    """new_maker: called once, by the first thread that compiles. num_threads: that compile at the same time;
    max_threads: with those that are written off. clock: on which `timeout_s` and `wait_s` are."""

    def __init__(
        self,
        new_maker: Callable[[], Maker],
        *,
        num_threads: int = 2,
        max_threads: int = 6,
        timeout_s: float = 15.0,
        wait_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout_s = timeout_s
        self.wait_s = wait_s
        self._new_maker = new_maker
        self._maker: Maker | None = None
        self._maker_lock = threading.Lock()
        self._num_threads = num_threads
        self._max_threads = max_threads
        self._clock = clock
        self._queue: queue.SimpleQueue[Compilation | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of all below, and of the two flags of compilations
        self._threads: dict[threading.Thread, Compilation | None] = {}  # all that live, and what each compiles
        self._is_closed = False

    def begin(self, spec: ConstraintSpec, when_over: Callable[[], None] | None = None) -> Compilation:
        """Compile `spec`. `when_over` is called by some thread when it is made, has failed or was given up."""
        compilation = Compilation(self, spec, self._clock())
        if when_over is not None:
            compilation.made.add_done_callback(lambda _: when_over())
        self._queue.put(compilation)
        with self._lock:
            self._start_threads()
        return compilation

    def abandon(self, compilation: Compilation) -> bool:
        """Whether it was not over yet; now it is, and its thread, if one has it, is written off."""
        with self._lock:
            if compilation.is_over:
                return False
            compilation.is_over = compilation.is_abandoned = True
            self._start_threads()
        return True

    def close(self) -> None:
        """Compile nothing more, and wait a little for what is being compiled: a thread that the library keeps longer
        ends on its own."""
        with self._lock:
            self._is_closed = True
            threads = list(self._threads)
        with suppress(queue.Empty):
            while (waiting := self._queue.get_nowait()) is not None:
                waiting.drop()
        for _ in threads:
            self._queue.put(None)
        until_s = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start_threads(self) -> None:
        while not self._is_closed and self._num_able() < self._num_threads and len(self._threads) < self._max_threads:
            thread = threading.Thread(target=self._work, name="aie-constraints", daemon=True)
            self._threads[thread] = None
            thread.start()

    def _num_able(self) -> int:
        return sum(compilation is None or not compilation.is_abandoned for compilation in self._threads.values())

    def _work(self) -> None:
        this = threading.current_thread()
        while (compilation := self._queue.get()) is not None:
            with self._lock:
                if compilation.is_over:
                    continue
                self._threads[this] = compilation
            self._compile(compilation)
            del compilation
            with self._lock:
                self._threads[this] = None
                if self._num_able() > self._num_threads:  # written off, and replaced
                    break
        with self._lock:
            del self._threads[this]

    def _compile(self, compilation: Compilation) -> None:
        try:
            maker = self._find_maker()
            compilation.began_s = self._clock()
            made = maker.make(compilation.spec)
            made.mask()
        except Exception as error:
            if self._ends(compilation):
                compilation.made.set_exception(error)
        else:
            if self._ends(compilation):
                compilation.made.set_result(made)
        finally:
            del compilation  # the error knows this frame, and would keep itself alive

    def _ends(self, compilation: Compilation) -> bool:
        """Whether anybody still wants to know."""
        with self._lock:
            was_over, compilation.is_over = compilation.is_over, True
        return not was_over

    def _find_maker(self) -> Maker:
        with self._maker_lock:
            if self._maker is None:
                self._maker = self._new_maker()
            return self._maker
