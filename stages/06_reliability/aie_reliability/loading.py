"""The words in which `reload.py` speaks with those around it: where versions are, what loading takes, how it went."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aie_engine import AieError, ModelVersion
from aie_server import LoadReport, ServedModel

__all__ = ["Catalog", "Load", "Prepare", "PreparedModel"]


class Catalog(Protocol):
    """Where versions are: the repositories of stage 2."""

    def scan(self) -> Mapping[str, Sequence[ModelVersion]]:
        """Every model's versions, oldest first."""
        ...

    def find(self, model: str, version: str | None = None) -> ModelVersion:
        """The newest, or the one named. Raises `AieError` (404)."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A version whose headers were read, and nothing else."""

    need_bytes: int  # memory that `start` will take
    start: Callable[[], ServedModel]  # blocks until its engine is ready; raises what loading raises
    check: Callable[[ServedModel], None]  # raises `AieError` when it does not answer as it must


Prepare = Callable[[ModelVersion], PreparedModel]  # raises `AieError` for what can be seen in the headers


class Load:
    """A `PendingLoad`: one version on its way."""

    def __init__(self, candidate: ModelVersion) -> None:
        self.candidate = candidate
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._report: LoadReport | None = None
        self._error: AieError | None = None

    @property
    def name(self) -> str:
        return self.candidate.model

    @property
    def version(self) -> str:
        return self.candidate.version

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def result(self) -> LoadReport:
        assert self._ended.is_set(), f"{self.name} is still being loaded"
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def succeed(self, report: LoadReport) -> bool:
        """False if it had ended already: it was given up meanwhile."""
        return self._end(report, None)

    def fail(self, error: AieError) -> bool:
        """The same."""
        # A traceback holds the frames it went through, and those hold the engine that was given up.
        error.__cause__ = error.__context__ = error.__traceback__ = None
        return self._end(None, error)

    def _end(self, report: LoadReport | None, error: AieError | None) -> bool:
        with self._lock:
            if self._ended.is_set():
                return False
            self._report, self._error = report, error
            self._ended.set()
            return True
