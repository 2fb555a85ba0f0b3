"""Supervision: an engine that died is started again, with pauses that grow while it keeps dying.

The supervisor is itself an `EngineClient`, so nothing above it knows that the engine behind it changes. Requests that
were open when a worker died have already been ended by its closed pipe; new ones are refused with a time to come back
until the next worker is ready.
"""

import logging
import threading
import time
from collections.abc import Callable

from aie_engine import AieError, EngineClient, EngineDeadError, GenerateRequest, TokenStream
from aie_reliability.wrapped import WrappedEngine

__all__ = ["SupervisedEngine"]

_log = logging.getLogger("aie.supervisor")
_POLL_S = 0.2


class SupervisedEngine(WrappedEngine):
    """Holds the engine that `factory` makes and replaces it when it dies.

    `factory` blocks until its engine is ready and raises when it cannot start. The first engine is made here and now,
    so that a model that cannot be loaded is an error of the start and not an endless restart.
    """

    def __init__(
        self,
        factory: Callable[[], EngineClient],
        *,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        watch: bool = True,
    ) -> None:
        self._factory = factory
        self._first_backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._clock = clock
        super().__init__(factory())
        self._started_s = clock()
        self._backoff_s = backoff_s
        self._next_try_s: float | None = None
        self._swap = threading.Lock()
        self._closing = threading.Event()
        self.num_restarts = 0
        self._watcher: threading.Thread | None = None
        if watch:
            self._watcher = threading.Thread(target=self._watch, name="aie-supervisor", daemon=True)
            self._watcher.start()

    def submit(self, request: GenerateRequest) -> TokenStream:
        engine = self._engine
        if not engine.is_alive:
            wait_s = self._backoff_s if self._next_try_s is None else max(1.0, self._next_try_s - self._clock())
            raise EngineDeadError("The engine has died and is being restarted.", retry_after_s=wait_s)
        return engine.submit(request)

    def close(self, timeout_s: float = 10.0) -> None:
        self._closing.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout_s)
        with self._swap:
            self._engine.close(timeout_s)

    def check(self) -> bool:
        """Looks at the engine once and restarts it when it is due. True when the engine was replaced.

        A dead engine is due after the pause; an engine that lived for `max_backoff_s` has earned the first pause again.
        """
        if self._closing.is_set() or self._engine.is_alive:
            return False
        now = self._clock()
        if self._next_try_s is None:
            if now - self._started_s >= self._max_backoff_s:
                self._backoff_s = self._first_backoff_s
            _log.error(
                "the engine (pid %s) died; restarting in %.1f s", self._engine.stats().worker_pid, self._backoff_s
            )
            self._next_try_s = now + self._backoff_s
        if now < self._next_try_s:
            return False
        self._backoff_s = min(self._max_backoff_s, self._backoff_s * 2)
        return self._restart()

    def _restart(self) -> bool:
        try:
            self._engine.close()
            engine = self._factory()
        except Exception as error:  # whatever it is: a supervisor that ends with it would never try again
            self._next_try_s = self._clock() + self._backoff_s
            is_known = isinstance(error, AieError | OSError)
            _log.error(
                "the engine could not be restarted (%s); next try in %.1f s",
                error if is_known else repr(error), self._backoff_s, exc_info=not is_known,
            )  # fmt: skip
            return False
        with self._swap:
            if self._closing.is_set():
                engine.close()
                return False
            self._engine = engine
        self._started_s = self._clock()
        self._next_try_s = None
        self.num_restarts += 1
        _log.warning("the engine is back (restart %d)", self.num_restarts)
        return True

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_S):
            self.check()
