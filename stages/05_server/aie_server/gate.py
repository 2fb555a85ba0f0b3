"""The door of the server. Stage 6 puts a guard there; without one it stands open."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

__all__ = ["AdmitRequest", "Gate", "OpenGate"]


@dataclass(frozen=True, slots=True)
class AdmitRequest:
    """What a guard may decide by."""

    client_key: str
    path: str
    is_prediction: bool = False  # of a model that answers at once, whose predictor has a queue and a policy of its own


class Gate(Protocol):
    """Asked once per request: after its fields were found valid, and before anything expensive is done for it, which
    tokenizing a long prompt is already. A refusal has to be cheap, or an avalanche of them brings the server down."""

    @property
    def default_deadline_s(self) -> float | None:
        """Seconds that a request may take from its admission to its last token; None: as long as it likes."""
        ...

    def admit(self, request: AdmitRequest) -> AbstractContextManager[object]:
        """Entered for as long as the request is open. Raises `AieError`s with status and `retry_after_s`."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether a request would be admitted now, and if not, why."""
        ...


class OpenGate:
    """No protection."""

    default_deadline_s: float | None = None

    def admit(self, request: AdmitRequest) -> AbstractContextManager[object]:
        return nullcontext()

    def ready(self) -> tuple[bool, str]:
        return True, ""
