"""The engine in a process of its own, seen from the front process.

A thread reads the pipe and hands events to their streams. The worker's death closes the pipe, which is noticed at once,
whatever the worker died of: every open stream then gets an error as its last event, and `submit` refuses.
"""

import atexit
import itertools
import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from aie_engine import frames
from aie_engine.build import Report
from aie_engine.config import EngineConfig
from aie_engine.errors import EngineDeadError, WorkerUnavailableError, rebuild
from aie_engine.patience import Patience
from aie_engine.processes import EXIT_TIMEOUT_S, ending
from aie_engine.protocol import EngineInfo
from aie_engine.recorder import FlightRecorder
from aie_engine.registry import StreamRegistry
from aie_engine.requests import ErrorInfo, GenerateRequest
from aie_engine.sending import FrameSender
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_engine.timeline_report import Explanation
from aie_engine.worker import worker_main
from aie_tensor import AieError

__all__ = ["WorkerEngine"]

_ANSWER_TIMEOUT_S = 1.0  # a step is far shorter
_SLOW_ANSWER_TIMEOUT_S = 10.0  # a memory snapshot walks over every block; a step may be long
_RETRY_AFTER_S = 1.0

_log = logging.getLogger("aie.engine")


class WorkerEngine:
    """An `EngineClient`. The constructor starts the worker and returns when it is ready.

    report: takes lines for a person to read meanwhile. index: which of several workers this is.
    Raises what loading raises there, rebuilt here, and `EngineDeadError` if the worker dies before it is ready or
    is not ready within `start_timeout_s`.
    """

    def __init__(
        self, config: EngineConfig, report: Report | None = None, *, index: int = 0, start_timeout_s: float = 600.0
    ) -> None:
        self.last_memory_events: tuple[str, ...] = ()  # with `memdebug`, once the worker has died
        self._recorder = FlightRecorder() if config.memdebug and config.memory_ring is None else None
        if self._recorder is not None:
            config = replace(config, memory_ring=self._recorder.path)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=True)
        self._process = context.Process(
            target=worker_main,
            args=(theirs, frames.encode_config(config), index),
            name=f"aie-engine-{index}",
            daemon=True,
        )
        try:
            self._process.start()
        except BaseException:
            self._pipe.close()
            self._remove_recorder()
            raise
        finally:
            theirs.close()  # else this process would hold the worker's end open, and its death would go unnoticed
        self._pid = self._process.pid or 0
        self._close_lock = threading.Lock()
        self._is_closed = False
        self._death_reason: str | None = None  # told by the worker
        self._questions = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[frames.Answer | None]] = {}
        self._patience = Patience(_ANSWER_TIMEOUT_S)
        try:
            info = _await_ready(self._pipe, self._process, report, time.monotonic() + start_timeout_s)
        except BaseException as error:  # Ctrl-C too: the worker ignores it
            self._process.kill()
            if isinstance(error, EngineDeadError):
                self._tell_last_events()
            self._release()
            raise
        self._stats = EngineStats(worker_pid=self._pid)
        self._streams = StreamRegistry(info, self.cancel)
        self._info = info
        self._reader = threading.Thread(target=self._read, name=f"aie-engine-{index}-reader", daemon=True)
        self._sender = FrameSender(self._pipe.send_bytes, name=f"aie-engine-{index}-sender")
        self._reader.start()
        # The worker ignores SIGTERM, with which multiprocessing would end it at exit, and then wait for it forever.
        atexit.register(self.close)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def is_alive(self) -> bool:
        return not self._streams.is_dead

    @property
    def pid(self) -> int:
        return self._pid

    def submit(self, request: GenerateRequest) -> TokenStream:
        stream = self._streams.open(request)
        try:
            self._send(frames.Submit(request))
        except OSError:
            self._streams.forget(request.request_id)
            raise EngineDeadError("The engine's worker has died.", retry_after_s=_RETRY_AFTER_S) from None
        except BaseException:  # what cannot be encoded was never sent
            self._streams.forget(request.request_id)
            raise
        return stream

    def cancel(self, request_id: str) -> None:
        with suppress(OSError):  # the worker is dead: its streams have been ended, or are about to be
            self._send(frames.Cancel(request_id))

    def stats(self) -> EngineStats:
        """Asks the worker, which answers between two steps, within a second."""
        answer = self._ask(frames.Ask(next(self._questions), "stats"))
        if answer is not None and answer.stats is not None:
            return answer.stats
        return self._streams.without_answer(self._stats)

    def memory(self) -> Mapping[str, object]:
        answer = self._ask(frames.Ask(next(self._questions), "memory"), _SLOW_ANSWER_TIMEOUT_S)
        if answer is None:
            raise EngineDeadError(
                f"The engine's worker did not say what it holds within {_SLOW_ANSWER_TIMEOUT_S:g} s."
                if self.is_alive
                else "The engine's worker has died; nobody can say what it held."
            )
        if answer.memory is None:
            raise AieError("The engine's worker failed to say what it holds; its log says why.")
        return answer.memory

    def explain(self, request_ids: Sequence[str] | None = None, *, num_ended: int = 0) -> Explanation:
        names = None if request_ids is None else tuple(request_ids)
        question = frames.Ask(next(self._questions), "requests", names, num_ended)
        answer = self._ask(question, _SLOW_ANSWER_TIMEOUT_S)
        if answer is None:
            raise EngineDeadError(
                f"The engine's worker did not explain its requests within {_SLOW_ANSWER_TIMEOUT_S:g} s."
                if self.is_alive
                else "The engine's worker has died, and what it knew of its requests is lost."
            )
        if answer.requests is None:
            raise AieError("The engine's worker failed to explain its requests; its log says why.")
        return answer.requests

    def close(self, timeout_s: float = 10.0) -> None:
        """Asks the worker to end; one that does not within `timeout_s` is killed."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            atexit.unregister(self.close)
            # By another thread, since a worker that reads no more does not close its pipe either.
            killer = threading.Timer(timeout_s, self._kill)
            killer.start()
            with suppress(OSError):
                self._send(frames.Stop())
            self._reader.join()
            killer.cancel()
            killer.join()
            self._sender.close()
            self._release()

    def _kill(self) -> None:
        _log.warning("the engine's worker (pid %d) does not end and is killed", self._pid)
        self._process.kill()

    def _release(self) -> None:
        """Reap a process that has ended or is about to, and close what belongs to it."""
        self._process.join(EXIT_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._pipe.close()
        self._remove_recorder()

    def _send(self, frame: frames.ToWorker) -> None:
        is_end = isinstance(frame, frames.Cancel | frames.Stop)
        self._sender.send(frames.encode(frame), is_end=is_end)

    def _ask(self, question: frames.Ask, timeout_s: float = _ANSWER_TIMEOUT_S) -> frames.Answer | None:
        """The worker's answer, or None if it is dead or takes too long."""
        if not self.is_alive:
            return None
        answers = self._answers[question.number] = queue.SimpleQueue()
        timeout_s = self._patience.left(timeout_s)
        try:
            self._send(question)
            return answers.get(timeout=timeout_s)
        except queue.Empty:
            self._patience.unanswered(timeout_s)
            return None
        except (OSError, WorkerUnavailableError):
            return None
        finally:
            del self._answers[question.number]

    def _read(self) -> None:
        try:
            while True:
                self._take(frames.decode_from_worker(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            pass
        except msgspec.DecodeError:
            _log.exception("the engine's worker (pid %d) sent what is no frame", self._pid)
        self._streams.fail_all(ErrorInfo("engine_died", self._explain_death(), 503, _RETRY_AFTER_S))
        for answers in list(self._answers.values()):
            answers.put(None)

    def _take(self, frame: frames.FromWorker) -> None:
        self._patience.heard()
        match frame:
            case frames.StepFrame(events, stats):
                self._stats = stats or self._stats
                self._streams.deliver(events)
            case frames.Answer(number, stats):
                self._stats = stats or self._stats
                waiting = self._answers.get(number)
                if waiting is not None:
                    waiting.put(frame)
            case frames.Died(reason):
                self._death_reason = reason
            case _:
                raise AssertionError(f"a worker that is ready does not send {frame}")

    def _explain_death(self) -> str:
        if self._death_reason is not None:
            return self._death_reason
        if self._is_closed:
            return "The engine was closed."
        how = ending(self._process)
        _log.error("the engine's worker (pid %d) %s", self._pid, how)
        self._tell_last_events()
        return f"The engine's worker {how}."

    def _tell_last_events(self) -> None:
        """What the dead worker did with memory last, from the file that outlived it."""
        if self._recorder is None:
            return
        self.last_memory_events = self._recorder.last_events()
        lines = "\n".join(self.last_memory_events)
        _log.error(
            "its last %d memory events, oldest first:\n%s", len(self.last_memory_events), lines or "(none recorded)"
        )

    def _remove_recorder(self) -> None:
        if self._recorder is not None:
            self._recorder.remove()


def _await_ready(pipe: Connection, process: BaseProcess, report: Report | None, until_s: float) -> EngineInfo:
    try:
        while pipe.poll(max(0.0, until_s - time.monotonic())):
            match frames.decode_from_worker(pipe.recv_bytes()):
                case frames.Ready(info):
                    return info
                case frames.Progress(line) if report is not None:
                    report(line)
                case frames.StartFailed(message, code, status, exit_code):
                    raise rebuild(message, code=code, status=status, exit_code=exit_code)
    except (EOFError, OSError):
        raise EngineDeadError(f"The engine's worker {ending(process)} before it was ready.") from None
    raise EngineDeadError("The engine's worker was not ready in time.")
