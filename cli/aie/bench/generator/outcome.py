"""What became of one request, and its times: seconds on `time.perf_counter`."""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

__all__ = ["HUNG_UP", "STOPPED", "TOO_LATE", "Outcome", "OutcomeKind", "fill", "values_of"]

OutcomeKind = Literal["answered", "rejected", "timed out", "cut", "cancelled", "stopped", "failed"]

HUNG_UP = "hung up, as asked"
STOPPED = "still open when the level was stopped early"
TOO_LATE = "no complete answer within"


@dataclass(slots=True)
class Outcome:
    """`error` is None when it was answered in full."""

    sent_s: float = 0.0  # before a connection was opened for it, where that was needed
    first_token_s: float | None = None  # first event with text
    last_token_s: float | None = None
    end_s: float = 0.0  # the last byte
    num_prompt_tokens: int = 0  # as the server counts them
    num_output_tokens: int = 0
    status: int = 0
    error: str | None = None
    gaps_s: list[float] = field(default_factory=list)  # between one event with text and the next
    due_s: float | None = None  # when it ought to have been sent, where there was a schedule
    first_byte_s: float | None = None  # of the answer's body
    turn: int = 0  # of a conversation
    session: str | None = None
    pieces: list[str] | None = None  # the text, where it is wanted
    is_counted: bool = True  # whether the server said how many tokens the answer has
    part: str = ""  # of a mix
    num_bytes: int = 0  # of the answer's body
    is_stream: bool = True  # whether its answer is one, and not in one piece

    @property
    def kind(self) -> OutcomeKind:
        """What sort of end it took."""
        if self.error is None:
            return "answered"
        if self.error == HUNG_UP:
            return "cancelled"
        if self.error == STOPPED:
            return "stopped"
        if self.status in (429, 503):
            return "rejected"
        if self.error.startswith(TOO_LATE):
            return "timed out"
        return "cut" if self.first_byte_s is not None and self.status == 200 else "failed"

    @property
    def lag_s(self) -> float:
        """How late it was sent: the load generator's own fault, or that of a cap on requests in flight."""
        return 0.0 if self.due_s is None else self.sent_s - self.due_s

    @property
    def ttfr_s(self) -> float | None:
        """Time to first response: the first byte of the body, whatever it says."""
        return None if self.first_byte_s is None else self.first_byte_s - self.sent_s

    @property
    def ttft_from_schedule_s(self) -> float | None:
        """Time to first token, from when the request was due."""
        return None if self.ttft_s is None else self.ttft_s + self.lag_s

    @property
    def e2e_from_schedule_s(self) -> float:
        """To the last byte, from when the request was due."""
        return self.e2e_s + self.lag_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """From the first byte sent to the last byte read."""
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; undefined for a single token."""
        if self.first_token_s is None or self.last_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)


_NAMES = tuple(one.name for one in fields(Outcome))
_values = attrgetter(*_NAMES)


def values_of(outcome: Outcome) -> tuple[Any, ...]:
    """For the way between two processes: a plain tuple is pickled several times faster than its object."""
    found: tuple[Any, ...] = _values(outcome)
    return found


def fill(outcome: Outcome, values: tuple[Any, ...]) -> None:
    """The other way round, into an object that others may hold already."""
    for name, value in zip(_NAMES, values, strict=True):
        setattr(outcome, name, value)
