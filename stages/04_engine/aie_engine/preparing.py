"""Requests whose answers must have a form, while the form is being compiled: that may take a second, in which no step
may wait for them. They are not in the scheduler yet, but they can be cancelled, and they end with the engine."""

from collections.abc import Callable

from aie_engine.constraints import ConstrainedAnswer, ConstraintsUnavailableError, MaskAhead
from aie_engine.requests import GenerateRequest
from aie_tensor import InvalidInputError

__all__ = ["Preparing"]


class Preparing:
    """masks: compiles, and computes masks; None where an engine has no tokenizer to do it with."""

    def __init__(self, masks: MaskAhead | None) -> None:
        self._masks = masks
        self._open: dict[str, tuple[GenerateRequest, ConstrainedAnswer]] = {}

    @property
    def request_ids(self) -> list[str]:
        """Who is here."""
        return list(self._open)

    @property
    def has_ready(self) -> bool:
        """Whether `take_ready` would give any."""
        return any(answer.is_ready for _, answer in self._open.values())

    def begin(self, request: GenerateRequest, when_ready: Callable[[], None]) -> None:
        """Compile what `request` asks for. `when_ready` is called by another thread. Raises
        `ConstraintsUnavailableError`, and `InvalidInputError` for an id that is here already."""
        assert request.constraint is not None, f"{request.request_id} asks for no form"
        if request.request_id in self._open:
            raise InvalidInputError(f"request id {request.request_id!r} is in use", param="request_id")
        if self._masks is None:
            raise ConstraintsUnavailableError("This engine cannot hold answers to a form: it has no tokenizer.")
        self._open[request.request_id] = request, self._masks.open(request.constraint, when_ready)

    def take_ready(self) -> list[tuple[GenerateRequest, ConstrainedAnswer]]:
        """Those that are compiled, or have failed to: asked for a mask, their answer says why."""
        if not self._open:
            return []
        ready = [request_id for request_id, (_, answer) in self._open.items() if answer.is_ready]
        return [self._open.pop(request_id) for request_id in ready]

    def drop(self, request_id: str) -> bool:
        """Give a request up; False if it is not here (any more)."""
        entry = self._open.pop(request_id, None)
        if entry is not None:
            entry[1].close()
        return entry is not None
