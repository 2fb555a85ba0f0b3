"""One worker process as the front process sees it: a thread that owns it, from its start to its end and its next start.

The thread sleeps until there is a command or the process dies (its pipe closes, whatever it died of). A process that
died is started again after a pause, which doubles with every death until a batch succeeds.
"""

import logging
import multiprocessing
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

import msgspec

from aie_engine.build import Report
from aie_engine.errors import EngineDeadError, PredictionFailedError, rebuild
from aie_engine.executors.shared_weights import SharedMemory
from aie_engine.predictors import frames
from aie_engine.predictors.books import Batch
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.made_of import SameFiles
from aie_engine.predictors.protocol import PredictorInfo
from aie_engine.predictors.requests import Array
from aie_engine.predictors.runner import BatchResult
from aie_engine.predictors.worker import predict_worker_main
from aie_engine.processes import EXIT_TIMEOUT_S, ending
from aie_tensor import AieError

__all__ = ["LaneOwner", "ProcessLane"]

_MAX_PAUSE_S = 10.0
_MAX_FAILED_STARTS = 5  # in a row; then the worker is given up

_Command = Batch | Future[Mapping[str, object]]

_log = logging.getLogger("aie.engine")


class LaneOwner(Protocol):
    """Who is told what happens; `BatchFront`, but for the last."""

    def is_running(self, lane: "ProcessLane", batch: Batch) -> bool: ...
    def finish(self, lane: "ProcessLane", batch: Batch, result: BatchResult) -> None: ...
    def lose(self, lane: "ProcessLane", reason: str) -> None: ...
    def revive(self, lane: "ProcessLane") -> None: ...
    def give_up(self, lane: "ProcessLane", reason: str) -> None: ...


class ProcessLane:
    """A `Lane`. `launch`, `await_ready`, `serve`; then `start` and `ask` from any thread; `stop` ends it."""

    def __init__(
        self,
        config: PredictorConfig,
        index: int,
        owner: LaneOwner,
        *,
        num_threads: int,
        start_timeout_s: float,
        pause_s: float,
        same_files: SameFiles,
        shared: SharedMemory | None = None,
    ) -> None:
        self.index = index
        self.num_restarts = 0
        self._config_bytes = frames.encode_config(config)
        self._owner = owner
        self._num_threads = num_threads
        self._same_files = same_files
        self._shared = shared  # the owner closes it
        self._start_timeout_s = start_timeout_s
        self._pause_s = pause_s
        self._batch_timeout_s = config.batch_timeout_s
        self._num_deaths = 0  # since the last batch that succeeded
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._woken, self._wake = multiprocessing.Pipe(duplex=False)
        self._stopping = threading.Event()
        self._is_starting = True
        self._thread = threading.Thread(target=self._run, name=f"aie-predict-{index}", daemon=True)
        self._pipe: Connection
        self._process: BaseProcess | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0 while there is none."""
        process = self._process
        return 0 if process is None or process.pid is None else process.pid

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=True)
        process = context.Process(
            target=predict_worker_main,
            args=(theirs, self._config_bytes, self.index, self._num_threads, self._shared),
            name=f"aie-predict-{self.index}",
            daemon=True,
        )
        try:
            process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()  # else this process would hold the worker's end open, and its death would go unnoticed
        self._process = process
        if self._batch_timeout_s is not None:
            _limit_pauses(self._pipe, self._batch_timeout_s / 2)

    def await_ready(self, report: Report | None) -> PredictorInfo:
        """Raises what loading raises there, rebuilt here, and `EngineDeadError` for a death or a start too slow."""
        until_s = time.monotonic() + self._start_timeout_s
        try:
            while self._pipe.poll(max(0.0, until_s - time.monotonic())):
                match frames.decode_from_worker(self._pipe.recv_bytes()):
                    case frames.Started(info, made_of):
                        self._same_files.check(made_of)
                        self._is_starting = False
                        return info
                    case frames.Progress(line) if report is not None:
                        report(line)
                    case frames.StartFailed(message, code, status, exit_code):
                        raise rebuild(message, code=code, status=status, exit_code=exit_code)
        except (EOFError, OSError):
            raise EngineDeadError(f"The predictor's worker {self._ending()} before it was ready.") from None
        raise EngineDeadError("The predictor's worker was not ready in time.")

    def serve(self) -> None:
        """From here on the thread owns the process."""
        self._thread.start()

    def start(self, batch: Batch) -> None:
        self._put(batch)

    def ask(self) -> Future[Mapping[str, object]]:
        """What the process holds, between two batches."""
        answer: Future[Mapping[str, object]] = Future()
        self._put(answer)
        return answer

    def stop(self) -> None:
        """End after the batch under way; `join` waits for it."""
        self._stopping.set()
        self._put(None)
        if self._is_starting:
            self.kill()

    def join(self, timeout_s: float) -> bool:
        """Whether thread and process have ended within `timeout_s`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """`SIGKILL`; the thread notices."""
        process = self._process
        if process is not None:
            with suppress(ValueError):  # already reaped
                process.kill()

    def release(self) -> None:
        """Reap the process, and close what belongs to it."""
        process, self._process = self._process, None
        if process is None:
            return
        self._pipe.close()
        process.join(EXIT_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    def _put(self, command: _Command | None) -> None:
        self._inbox.put(command)
        with suppress(OSError):  # the thread has ended
            self._wake.send_bytes(b"!")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._is_dead_while_idle():
                    self._begin_anew()
                    continue
                command = self._inbox.get()
                if command is None:
                    break
                self._woken.recv_bytes()
                if isinstance(command, Future):
                    self._tell(command)
                elif self._owner.is_running(self, command):  # else it came as the process died, and went to another
                    self._compute(command)
            with suppress(OSError):
                self._pipe.send_bytes(frames.encode(frames.Halt()))
        finally:
            self.release()
            self._wake.close()
            self._woken.close()

    def _is_dead_while_idle(self) -> bool:
        """Sleeps until there is a command (False) or the process is dead: a worker never speaks unasked."""
        ready = wait([self._woken, self._pipe])
        return self._pipe in ready

    def _compute(self, batch: Batch) -> None:
        items = [frames.to_frames(member.item) for member in batch.members]
        answer = self._exchange(frames.Compute(items))
        if not isinstance(answer, frames.Computed):
            self._begin_anew()
            return
        self._num_deaths = 0
        results: list[dict[str, Array] | AieError] = [
            _failure(answer.failures[place]) if place in answer.failures else frames.copied_from_frames(outputs)
            for place, outputs in enumerate(answer.items)
        ]
        self._owner.finish(self, batch, BatchResult(results, answer.pre_s, answer.compute_s))

    def _tell(self, asked: Future[Mapping[str, object]]) -> None:
        answer = self._exchange(frames.Tell())
        if isinstance(answer, frames.Holding) and answer.memory is not None:
            asked.set_result(answer.memory)
        elif isinstance(answer, frames.Holding):
            asked.set_exception(AieError("The predictor's worker failed to say what it holds; its log says why."))
        else:
            asked.set_exception(EngineDeadError("The predictor's worker has died; nobody can say what it held."))
            self._begin_anew()

    def _exchange(self, frame: frames.ToWorker) -> frames.FromWorker | None:
        """The answer; None from a worker that is dead, or that answers what is no frame."""
        try:
            self._pipe.send_bytes(frames.encode(frame))
            if not self._pipe.poll(self._batch_timeout_s):
                _log.error("worker %d of the predictor does not answer and is killed", self.index)
                self.kill()
            return frames.decode_from_worker(self._pipe.recv_bytes())
        except BlockingIOError:  # stopped in the middle of a frame that is larger than the pipe
            _log.error("worker %d of the predictor does not take or give its batch and is killed", self.index)
            self.kill()
            return None
        except (EOFError, OSError):
            return None
        except msgspec.DecodeError:
            _log.exception("worker %d of the predictor sent what is no frame", self.index)
            self.kill()
            return None

    def _begin_anew(self) -> None:
        """The process is dead: tell the front, and start another."""
        self._is_starting = True
        reason = f"The predictor's worker {self.index} {self._ending()}."
        _log.error("%s", reason)
        self.release()
        self._owner.lose(self, reason)
        for attempt in range(_MAX_FAILED_STARTS):
            pause_s = min(self._pause_s * 2 ** (self._num_deaths + attempt), _MAX_PAUSE_S)
            if self._stopping.wait(pause_s):
                return
            try:
                self.launch()
                if self._stopping.is_set():
                    self.kill()
                self.await_ready(None)
            except (AieError, OSError) as error:
                reason = f"The predictor's worker {self.index} does not start: {error}"
                _log.error("%s", reason)
                self.release()
                continue
            self._num_deaths += 1
            self.num_restarts += 1
            self._owner.revive(self)
            return
        self._stopping.set()
        self._owner.give_up(self, reason)

    def _ending(self) -> str:
        return "is gone" if self._process is None else ending(self._process)


def _limit_pauses(pipe: Connection, most_s: float) -> None:
    """Make reading and writing raise `BlockingIOError` where nothing moves for so long. `poll` sees only the beginning
    of an answer, and a worker that is stopped takes no more of a batch than the system holds for it."""
    if os.name != "posix":  # there a pipe is no socket
        return
    seconds, rest = divmod(max(most_s, 1e-3), 1.0)
    limit = struct.pack("@ll", int(seconds), int(rest * 1e6))  # struct timeval
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _failure(failure: frames.Failure) -> AieError:
    if failure.code == PredictionFailedError.code:
        return PredictionFailedError(failure.message)
    return rebuild(failure.message, code=failure.code, status=failure.status, exit_code=failure.exit_code)
