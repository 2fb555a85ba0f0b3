"""Requests whose answers must have a form, while the form is being compiled: that may take seconds, in which no step
may wait for them. They are not in the scheduler yet, but they can be cancelled, they have deadlines, and they end with
the engine."""

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

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

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

    def next_deadline(self, now: float) -> float | None:
        """When to look at the time of those here again; None: nobody's can run out."""
        ends = [request.deadline_s for request, _ in self._open.values()]
        ends += [answer.expires_at(now) for _, answer in self._open.values()]
        return min((end for end in ends if end is not None), default=None)

    def take_late(self, now: float) -> list[str]:
        """Those whose deadline has passed. A form that takes too long to compile fails, which makes it ready."""
        late = [
            request_id
            for request_id, (request, _) in self._open.items()
            if request.deadline_s is not None and now >= request.deadline_s
        ]
        for request_id in late:
            self.drop(request_id)
        for _, answer in self._open.values():
            answer.give_up(now)
        return late

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
