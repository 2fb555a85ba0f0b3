"""The worker process: the engine's loop behind a pipe. `worker_main` is all that a spawned process runs.

Threads: the main thread is the engine's loop; a reader turns frames into commands for it. When the pipe closes, the
front process is gone, and so is this one, at once if it cooperates and by force if a step hangs.
"""

import contextlib
import logging
import os
import queue
import random
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from aie_engine import frames
from aie_engine.build import EngineParts, build_engine
from aie_engine.config import EngineConfig
from aie_engine.core import EngineCore
from aie_engine.loop import Command, EngineLoop, Inbox
from aie_engine.processes import set_title
from aie_engine.requests import TokenEvent
from aie_engine.stats import EngineStats
from aie_engine.timeline_report import Explanation
from aie_tensor import AieError

__all__ = ["worker_main"]

_GRACE_S = 5.0  # for the running step, once the front is gone

_log = logging.getLogger("aie.engine")


def worker_main(connection: Connection, config_bytes: bytes, index: int) -> None:
    """Serve frames on `connection` until told to stop, until the engine dies, or until the other end closes."""
    # Ctrl-C in a terminal reaches every process of the group. Only the front decides when the work is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_title(f"aie-engine-{index}")
    config = frames.decode_config(config_bytes)
    config = replace(config, seed=config.seed + index)
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    worker = _Worker(connection, config, f"engine-{index}")
    try:
        worker.run()
    except OSError:
        pass  # the front is gone; there is nobody left to tell
    finally:
        worker.done.set()


class _Worker:
    """Sending is for the main thread alone, receiving for the reader's."""

    def __init__(self, connection: Connection, config: EngineConfig, name: str) -> None:
        self.done = threading.Event()
        self._connection = connection
        self._config = config
        self._name = name
        self._inbox: Inbox = queue.SimpleQueue()
        self._parts: EngineParts
        self._loop: EngineLoop

    def run(self) -> None:
        # Reading begins before loading, so that a front that goes away in the meantime is noticed.
        threading.Thread(target=self._read, name="aie-engine-reader", daemon=True).start()
        try:
            self._parts = build_engine(self._config, lambda line: self._send(frames.Progress(line)), worker=self._name)
        except AieError as error:
            self._send(frames.StartFailed(str(error), error.code, error.status, error.exit_code))
            return
        except Exception as error:
            _log.exception("the engine could not start")
            message = f"The engine could not start: {type(error).__name__}: {error}"
            self._send(frames.StartFailed(message, AieError.code, AieError.status, AieError.exit_code))
            return
        self._loop = EngineLoop(self._parts.core, self._deliver, inbox=self._inbox)
        self._send(frames.Ready(self._parts.info))
        self._loop.run()
        if self._parts.core.dead_reason is not None:
            self._send(frames.Died(self._parts.core.dead_reason))
        self._parts.close()

    def _send(self, frame: frames.FromWorker) -> None:
        # When the other end is gone there is nobody to tell: `_read` sees that, too, and ends the loop.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(frames.encode(frame))

    def _deliver(self, events: list[TokenEvent], stats: EngineStats | None) -> None:
        self._send(frames.StepFrame(events, stats))

    def _snapshot(self) -> dict[str, object] | None:
        try:
            return self._parts.memory.snapshot()
        except Exception:  # a question about memory must not end the engine
            _log.exception("the memory snapshot failed")
            return None

    def _read(self) -> None:
        """Until the other end closes; then see to it that this process ends, even if a step hangs."""
        try:
            while True:
                self._inbox.put(self._command(frames.decode_to_worker(self._connection.recv_bytes())))
        except (EOFError, OSError):
            pass
        except msgspec.DecodeError:  # from here on nothing that comes can be trusted to begin where a frame begins
            _log.exception("the front process sent what is no frame")
        self._inbox.put(None)
        if not self.done.wait(_GRACE_S):
            os._exit(1)

    def _command(self, frame: frames.ToWorker) -> Command | None:
        match frame:
            case frames.Submit(request):
                return lambda core: core.add(request)
            case frames.Cancel(request_id):
                return lambda core: core.cancel(request_id)
            case frames.Ask(number, "stats"):
                return lambda core: self._send(frames.Answer(number, stats=self._loop.stats()))
            case frames.Ask(number, "memory"):
                return lambda core: self._send(frames.Answer(number, memory=self._snapshot()))
            case frames.Ask(number, "requests", request_ids, num_ended):
                return lambda core: self._send(frames.Answer(number, requests=_explain(core, request_ids, num_ended)))
            case _:
                return None


def _explain(core: EngineCore, request_ids: tuple[str, ...] | None, num_ended: int) -> Explanation | None:
    try:
        return core.timelines.answer(request_ids, num_ended, core.clock())
    except Exception:  # nor must a question about requests
        _log.exception("the requests could not be explained")
        return None
