"""The engine in a thread of this process: for learning, debugging, and demonstrations.

The thread shares Python's lock with everything else in the process, so under HTTP load a worker process (`client.py`)
is faster. Same interface, same results.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from aie_engine.build import EngineParts, Report, build_engine
from aie_engine.config import EngineConfig
from aie_engine.core import EngineCore
from aie_engine.errors import EngineDeadError
from aie_engine.loop import EngineLoop
from aie_engine.protocol import EngineInfo
from aie_engine.registry import StreamRegistry
from aie_engine.requests import ErrorInfo, GenerateRequest, TokenEvent
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_engine.timeline_report import Explanation

__all__ = ["LocalEngine"]

_STATS_TIMEOUT_S = 1.0
_SLOW_ANSWER_TIMEOUT_S = 10.0  # a step may be long, and a memory snapshot walks over every block

_T = TypeVar("_T")


class LocalEngine:
    """An `EngineClient`. The constructor loads the model, in the calling thread, and raises what that raises."""

    def __init__(
        self,
        config: EngineConfig,
        report: Report | None = None,
        *,
        build: Callable[[EngineConfig, Report], EngineParts] = build_engine,
    ) -> None:
        self._parts = build(config, report or _say_nothing)
        self._streams = StreamRegistry(self._parts.info, self.cancel)
        self._loop = EngineLoop(self._parts.core, self._deliver)
        self._last_stats = self._loop.stats()
        self._close_lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="aie-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._parts.info

    @property
    def is_alive(self) -> bool:
        return not self._streams.is_dead

    def submit(self, request: GenerateRequest) -> TokenStream:
        stream = self._streams.open(request)
        self._loop.put(lambda core: core.add(request))
        return stream

    def cancel(self, request_id: str) -> None:
        self._loop.put(lambda core: core.cancel(request_id))

    def stats(self) -> EngineStats:
        """Asks the engine's thread, which answers between two steps, within a second."""
        answers: queue.SimpleQueue[EngineStats] = queue.SimpleQueue()

        def answer(core: EngineCore) -> None:
            answers.put(self._loop.stats())

        if self.is_alive:
            self._loop.put(answer)
            with suppress(queue.Empty):
                return answers.get(timeout=_STATS_TIMEOUT_S)
        return self._streams.without_answer(self._last_stats)

    def memory(self) -> Mapping[str, object]:
        """Of a closed engine, too: what it left behind."""
        return self._ask(lambda core: self._parts.memory.snapshot(), "say what it holds")

    def explain(self, request_ids: Sequence[str] | None = None, *, num_ended: int = 0) -> Explanation:
        """Of a closed engine, too."""
        return self._ask(
            lambda core: core.timelines.answer(request_ids, num_ended, core.clock()), "explain its requests"
        )

    def close(self, timeout_s: float = 10.0) -> None:
        """Raises `TimeoutError` if the step that runs does not end in time; memory is then not given back."""
        with self._close_lock:
            if self._is_closed:
                return
            self._loop.stop()
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise TimeoutError(f"the engine's step did not end within {timeout_s} s")
            self._parts.close()
            self._is_closed = True

    def _ask(self, question: Callable[[EngineCore], _T], what: str) -> _T:
        """Between two steps, by the engine's thread, while it runs."""
        answer: Future[_T] = Future()

        def take(core: EngineCore) -> None:
            try:
                answer.set_result(question(core))
            except Exception as error:  # a question must not end the engine
                answer.set_exception(error)

        if self._thread.is_alive():
            self._loop.put(take)
            with suppress(TimeoutError):
                return answer.result(_SLOW_ANSWER_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineDeadError(f"The engine did not {what} within {_SLOW_ANSWER_TIMEOUT_S:g} s.")
        return question(self._parts.core)

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            reason = self._parts.core.dead_reason or "The engine was closed."
            self._streams.fail_all(ErrorInfo("engine_died", reason, 503, retry_after_s=1.0))

    def _deliver(self, events: list[TokenEvent], stats: EngineStats | None) -> None:
        self._streams.deliver(events)
        if stats is not None:
            self._last_stats = stats


def _say_nothing(line: str) -> None:
    pass
