"""The time of one request, as the book of timelines keeps it while the request is open and for a while after."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from aie_engine.queue_watch import REASONS
from aie_engine.timeline_report import ENGINE_PHASES, Share, TimelineEvent, TimelineReport, whole_us

__all__ = ["OTHERS", "Phase", "Timeline"]

OTHERS = ""  # the name under which those beyond the bound are summed up
_MAX_NAMES = 16  # other requests that are told apart, per kind of share
_MAX_SHOWN = 8
_MAX_EVENTS = 16

_Amount = TypeVar("_Amount", int, float, tuple[float, int])


class Phase(IntEnum):
    """Where a request stands."""

    COMPILING = 0  # the form of its answer; the scheduler does not know it yet
    WAITING = 1
    PREFILL = 2  # known tokens are missing in the cache
    DECODE = 3


@dataclass(slots=True, eq=False)
class Timeline:
    """Every moment since `added_s` is in exactly one of the sums `*_s` and `queue_s`, up to `mark_s`."""

    request_id: str
    num_prompt: int
    added_s: float
    mark_s: float  # up to when time is accounted for; of one who waits: when that began
    entered: tuple[float, ...] | None = None  # the queue's meters when it began to wait; None: no plan has seen it yet
    phase: Phase = Phase.WAITING
    compiling_s: float = 0.0
    queue_s: list[float] = field(default_factory=lambda: [0.0] * len(REASONS))
    preempted_s: float = 0.0
    prefill_s: float = 0.0
    recompute_s: float = 0.0
    paused_s: float = 0.0
    decode_s: float = 0.0
    stalled_s: float = 0.0
    between_s: float = 0.0
    first_token_s: float | None = None
    cached_tokens: int = 0
    prefill_steps: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    missing_tokens: int = 0  # lost and not computed again yet
    decode_steps: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0
    preempted_by: dict[str, int] = field(default_factory=dict)
    held_by: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds, most blocks
    stalled_by: dict[str, float] = field(default_factory=dict)  # seconds
    events: list[TimelineEvent] = field(default_factory=list)
    num_events: int = 0
    ended: str | None = None  # how

    def wait_for_form(self, now: float) -> None:
        """Up to `now` it waited for the form of its answer to be compiled."""
        self.compiling_s += now - self.mark_s
        self.mark_s = now

    def wait_for_turn(self, now: float) -> None:
        """It came while a step was running, whose end it had to await whatever else there was to wait for."""
        self.queue_s[0] += now - self.mark_s
        self.mark_s = now

    def add_wait(self, meters_s: list[float], holders: Mapping[str, tuple[float, int]]) -> None:
        """A wait is over that took `meters_s` by reason."""
        if self.preemptions:
            self.preempted_s += sum(meters_s)
        else:
            self.queue_s = [before + more for before, more in zip(self.queue_s, meters_s, strict=True)]
        for name, (seconds, blocks) in holders.items():
            key = _bounded(name, self.held_by)
            before_s, most = self.held_by.get(key, (0.0, 0))
            self.held_by[key] = before_s + seconds, max(most, blocks)

    def add_stall(self, shares: Mapping[str, float]) -> None:
        """Prompts of others took so much of a step in which this one decoded."""
        stalled_by = self.stalled_by
        for name, seconds in shares.items():
            key = name if name in stalled_by else _bounded(name, stalled_by)
            stalled_by[key] = stalled_by.get(key, 0.0) + seconds

    def lose(self, by: str, tokens: int, now: float) -> None:
        self.preemptions += 1
        self.lost_tokens += tokens
        self.missing_tokens += tokens
        key = _bounded(by, self.preempted_by)
        self.preempted_by[key] = self.preempted_by.get(key, 0) + 1
        self.note("preempted", tokens, now, by)

    def note(self, what: str, tokens: int, now: float, by: str = "") -> None:
        self.num_events += 1
        if len(self.events) < _MAX_EVENTS:
            self.events.append(TimelineEvent(round((now - self.added_s) * 1e6), what, tokens, by))

    def report(self) -> TimelineReport:
        """Of all that is accounted for."""
        spent = (
            self.compiling_s, *self.queue_s, self.prefill_s, self.paused_s, self.decode_s, self.stalled_s,
            self.preempted_s, self.recompute_s, self.between_s,
        )  # fmt: skip
        phases_us = dict(zip(ENGINE_PHASES, whole_us(spent), strict=True))
        return TimelineReport(
            request_id=self.request_id,
            state=self.ended or self.phase.name.lower(),
            is_open=self.ended is None,
            added_s=self.added_s,
            total_us=sum(phases_us.values()),
            phases_us=phases_us,
            first_token_us=None if self.first_token_s is None else round((self.first_token_s - self.added_s) * 1e6),
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            prefill_steps=self.prefill_steps,
            prefill_tokens=self.prefill_tokens,
            recomputed_tokens=self.recomputed_tokens,
            decode_steps=self.decode_steps,
            generated_tokens=self.generated_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            preemptions=self.preemptions,
            lost_tokens=self.lost_tokens,
            preempted_by=[Share(name, times=times) for name, times in _largest(self.preempted_by)],
            held_by=[
                Share(name, round(seconds * 1e6), blocks=blocks) for name, (seconds, blocks) in _largest(self.held_by)
            ],
            stalled_by=[Share(name, round(seconds * 1e6)) for name, seconds in _largest(self.stalled_by)],
            events=list(self.events),
            num_events=self.num_events,
        )


def _bounded(name: str, known: Mapping[str, object]) -> str:
    """The key under which `name` is counted."""
    return name if name in known or len(known) < _MAX_NAMES else OTHERS


def _largest(shares: Mapping[str, _Amount]) -> list[tuple[str, _Amount]]:
    return sorted(shares.items(), key=lambda item: item[1], reverse=True)[:_MAX_SHOWN]
