"""What the repository endpoints need of whoever loads models: stage 6 has it, stage 5 only asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["LoadFigures", "LoadReport", "ModelControl", "PendingLoad", "VersionState"]

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class VersionState:
    """One version of one model, in the words of the model repository protocol."""

    name: str
    version: str
    state: State  # UNLOADING: replaced or unloaded, but requests in flight still use it
    reason: str = ""  # why UNAVAILABLE, where there is something to say


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A load that succeeded."""

    name: str
    version: str
    seconds: float  # from its beginning to the swap
    previous_version: str | None  # what served until then


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Of one model, since the start."""

    num_loads: int  # that ended in a swap
    num_failures: int  # that left everything as it was
    seconds: float  # spent in both
    num_versions: int  # in memory now: the one that serves, those that requests still hold, one that is being loaded


class PendingLoad(Protocol):
    """A load that goes on in the background."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once it has ended, either way."""
        ...

    def result(self) -> LoadReport:
        """Of one that has ended. Raises the `AieError` that says why the version was refused."""
        ...


class ModelControl(Protocol):
    """Loads and unloads while the server answers. Thread-safe."""

    def load(self, name: str, version: str | None = None) -> PendingLoad:
        """Begin to load a version, the newest unless one is named. Raises `AieError` where there is none (404), where
        this model is being loaded already (409), and while the server shuts down (503)."""
        ...

    def unload(self, name: str) -> None:
        """No new requests for this model; its memory goes when those in flight have ended. Raises `AieError` for one
        that does not serve (404) or is being loaded (409)."""
        ...

    def index(self) -> Sequence[VersionState]:
        """Every version there is, by name and then oldest first."""
        ...

    def figures(self) -> Mapping[str, LoadFigures]:
        """By model."""
        ...
