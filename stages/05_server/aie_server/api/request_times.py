"""Where the time of a request went, from its first byte to the last one of its answer, in microseconds that add up.

The server knows the ends, the engine the middle. Both read one clock, so that their parts lie end to end:

    read · validate · gate · tokenize · hand_over | the engine's phases | detokenize · others · write
    read · validate · gate · pre                  | queue · compute     | gather · post · write       (predictors)

Each instant is taken to be no earlier than the one before it, so the parts sum to the total exactly. Where an answer
ends before its engine request does (a stop string was found, and the engine does not know it yet), the total goes on
until the engine has let go.
"""

from collections.abc import Mapping
from typing import Final

from aie_engine import TimelineReport
from aie_server.request_book import ChoiceTrace, RequestTrace

__all__ = ["SERVER_PHASES", "Times", "choice_times", "front_times", "prediction_times"]

SERVER_PHASES: Final[Mapping[str, str]] = {
    "read": "from its first to its last byte",
    "validate": "decoding the JSON, checking the fields",
    "gate": "at the door: rate limit, room",
    "tokenize": "rendering the template, tokenizing",
    "hand_over": "on the way to the engine, which takes requests in between two steps",
    "engine": "in the engine, which cannot be asked any more; or in the predictor, which has not answered yet",
    "detokenize": "after the engine's last token, until it was text",
    "others": "until the last of the other choices was done",
    "write": "until the client had taken the last of it",
    "pre": "preparing the inputs",
    "queue": "in the queue of the predictor, of the input that took longest",
    "compute": "in its batch",
    "gather": "until the other inputs were done, and between the threads",
    "post": "from arrays to an answer",
}


class Times:
    """Microseconds by phase, laid end to end."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self.phases_us: dict[str, int] = {}
        self.total_us = 0

    def until(self, phase: str, when_s: float) -> None:
        """`phase` lasted until `when_s`."""
        self.add(phase, max(0, round((when_s - self._started_s) * 1e6) - self.total_us))

    def add(self, phase: str, us: int) -> None:
        self.phases_us[phase] = self.phases_us.get(phase, 0) + us
        self.total_us += us


def front_times(trace: RequestTrace, now: float) -> tuple[Times, bool]:
    """Up to the engine or the predictor, and whether it got so far."""
    times = Times(trace.started_s)
    end_s = now if trace.finished_s is None else trace.finished_s
    times.until("read", trace.received_s)
    times.until("validate", trace.validated_s)
    times.until("gate", end_s if trace.admitted_s is None else trace.admitted_s)
    if trace.admitted_s is None:
        return times, False
    times.until("tokenize", end_s if trace.submitted_s is None else trace.submitted_s)
    return times, trace.submitted_s is not None


def choice_times(trace: RequestTrace, choice: ChoiceTrace, engine: TimelineReport | None, now: float) -> Times:
    """One choice. engine: what the engine says of it; None: nothing any more, or yet. Of one that is open there, up to
    when the engine was asked."""
    times, _ = front_times(trace, now)
    if engine is None:
        is_on_its_way = choice.done_s is None and choice.first_token_s is None
        times.until("hand_over" if is_on_its_way else "engine", now if choice.done_s is None else choice.done_s)
    else:
        times.until("hand_over", engine.added_s)
        for phase, us in engine.phases_us.items():
            times.add(phase, us)
        if engine.is_open:
            return times
    times.until("detokenize", now if choice.done_s is None else choice.done_s)
    if len(trace.choices) > 1:
        times.until("others", max(now if other.done_s is None else other.done_s for other in trace.choices))
    times.until("write", now if trace.finished_s is None else trace.finished_s)
    return times


def prediction_times(trace: RequestTrace, now: float) -> Times:
    """A request to a predictor. While it is open, what its batches took is not known."""
    times, is_submitted = front_times(trace, now)
    times.phases_us["pre"] = times.phases_us.pop("tokenize", 0)
    if not is_submitted:
        return times
    end_s = now if trace.finished_s is None else trace.finished_s
    computed_s = end_s if trace.computed_s is None else trace.computed_s
    if trace.batch is not None:
        room_us = max(0, round((computed_s - trace.started_s) * 1e6) - times.total_us)
        queue_us = min(room_us, round(trace.batch.waited_s * 1e6))
        times.add("queue", queue_us)
        times.add("compute", min(room_us - queue_us, round(trace.batch.compute_s * 1e6)))
    times.until("gather" if trace.computed_s is not None else "engine", computed_s)
    times.until("post", end_s)
    return times
