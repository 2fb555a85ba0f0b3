"""The engine's loop: one thread that alone touches the core, and a queue through which everybody else speaks to it.

A command is a function of the core. While there is work, commands are taken between steps without waiting; while there
is none, the thread sleeps in the queue and costs nothing.
"""

import logging
import os
import queue
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
import psutil

from aie_engine.core import EngineCore
from aie_engine.garbage_watch import watch_garbage
from aie_engine.requests import TokenEvent
from aie_engine.stats import EngineStats

__all__ = ["Command", "Deliver", "EngineLoop", "Inbox"]

STATS_EVERY_S = 0.25

Command = Callable[[EngineCore], None]
Inbox = queue.SimpleQueue[Command | None]  # None: stop

_log = logging.getLogger("aie.engine")


class Deliver(Protocol):
    """Takes the news of one step, and the figures when they are due: at intervals, and before the engine falls idle."""

    def __call__(self, events: list[TokenEvent], stats: EngineStats | None) -> None: ...


class EngineLoop:
    """`run` in one thread; `put` and `stop` from any."""

    def __init__(
        self, core: EngineCore, deliver: Deliver, *, inbox: Inbox | None = None, stats_every_s: float = STATS_EVERY_S
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._stats_every_s = stats_every_s
        self._inbox: Inbox = queue.SimpleQueue() if inbox is None else inbox
        self._process = psutil.Process()
        self._garbage = watch_garbage()
        self._stats_due_s = core.clock()
        core.wake = partial(self._inbox.put, _nothing)

    def put(self, command: Command) -> None:
        """Have `command` called in the engine's thread, before its next step."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End every open request and leave `run`."""
        self._inbox.put(None)

    def stats(self) -> EngineStats:
        """For the engine's own thread: the core's figures with those of the process."""
        garbage = self._garbage
        return msgspec.structs.replace(
            self._core.stats(), rss_bytes=self._process.memory_info().rss, worker_pid=os.getpid(),
            gc_runs=garbage.runs, gc_pause_s=garbage.pause_s, gc_frozen=garbage.frozen,
        )  # fmt: skip

    def run(self) -> None:
        """Steps until `stop`, or until the core is dead (`core.dead_reason` says why)."""
        core = self._core
        try:
            while core.dead_reason is None and self._take_commands():
                self._step()
        except Exception as error:  # the scheduler's or our own fault: its books are no longer to be trusted
            _log.exception("the engine's loop failed")
            core.die(f"The engine failed ({type(error).__name__}).")
        core.cancel_all()
        self._deliver(core.step(), self.stats())

    def _take_commands(self) -> bool:
        """Run what is queued, sleeping first if there is nothing else to do; False to stop."""
        now = self._core.clock()
        due_s = self._core.next_step_at(now)
        timeout_s = None if due_s is None else max(0.0, due_s - now)
        while True:
            try:
                command = self._inbox.get(timeout=timeout_s) if timeout_s != 0 else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if command is None:
                return False
            command(self._core)
            timeout_s = 0

    def _step(self) -> None:
        core = self._core
        events = core.step()
        now = core.clock()
        is_due = now >= self._stats_due_s or not core.has_work
        if is_due:
            self._stats_due_s = now + self._stats_every_s
        if events or is_due:
            self._deliver(events, self.stats() if is_due else None)


def _nothing(core: EngineCore) -> None:
    """A command for the sake of waking up."""
