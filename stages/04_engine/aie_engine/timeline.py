"""Where the time of every request goes, kept by whoever runs the steps, always on.

    added (→ compiled) → planned, stepped, planned, stepped … → ended

Every moment of a request belongs to exactly one phase (`ENGINE_PHASES`), because each call accounts for the time since
the last one: of those in the step member by member, of those in the queue all together (`queue_watch.py`). So the
phases add up to the request's time by construction, whatever happened to it.

What a step took is the decodes' own time as far as they would have needed it alone (`decode_pace.py`), and the rest is
charged to the requests whose prompts were in it, by tokens. A prompt's own request counts the whole step.

Cost: some additions per member and step, none per request that waits. The last `max_kept` that ended are remembered.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field

from aie_engine.decode_pace import DecodePace
from aie_engine.queue_watch import QueueWatch
from aie_engine.timeline_entry import OTHERS, Phase, Timeline
from aie_engine.timeline_report import Explanation, TimelineReport
from aie_scheduler import ScheduledChunk, StepPlan

__all__ = ["MAX_KEPT", "TimelineBook"]

MAX_KEPT = 512
_MAX_BLAMED = 4  # prompts of one step that are told apart


@dataclass(slots=True)
class _Step:
    """The members of a step."""

    decodes: list[Timeline] = field(default_factory=list)
    prompts: list[tuple[Timeline, ScheduledChunk]] = field(default_factory=list)
    num_decoding: int = 0  # tokens of the decodes
    num_tokens: int = 0  # of all


class TimelineBook:
    """Single-threaded, like the core that feeds it. `now` is in seconds on one clock and never goes back."""

    def __init__(self, now: float = 0.0, *, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._open: dict[str, Timeline] = {}
        self._kept: OrderedDict[str, Timeline] = OrderedDict()  # the one that ended last comes last
        self._newcomers: dict[str, Timeline] = {}  # since the last plan; until the next, it is that step they wait for
        self._queue = QueueWatch(now)
        self._pace = DecodePace()
        self._stepped_s = now  # when the last step ended
        self._is_in_step = False
        self._endings: dict[str, str] = {}  # who ended within the step that runs, and how

    def added(self, request_id: str, now: float, num_prompt: int = 0, *, compiles: bool = False) -> None:
        """A request was taken in and waits, or has its form compiled first."""
        member = self._open[request_id] = Timeline(request_id, num_prompt, now, now)
        if compiles:
            member.phase = Phase.COMPILING
        else:
            self._newcomers[request_id] = member

    def compiled(self, request_id: str, now: float) -> None:
        """The form of its answer is there, and it waits with the others."""
        member = self._open[request_id]
        member.wait_for_form(now)
        member.phase = Phase.WAITING
        self._newcomers[request_id] = member

    def planned(self, plan: StepPlan, now: float) -> None:
        """A step was planned, whose time begins at `now`."""
        self._close_step(now)
        self._queue.advance(now)
        for newcomer in self._newcomers.values():
            self._enter_queue(newcomer, now)
        self._newcomers.clear()
        for request_id in plan.expired:
            self.ended(request_id, "deadline", now)
        for lost in plan.preempted:
            if (member := self._open.get(lost.request_id)) is not None:
                self._wait_again(member, now)
                member.lose(lost.by, lost.lost_tokens, now)
        for request_id, cached_tokens in plan.admitted.items():
            if (member := self._open.get(request_id)) is not None:
                self._admit(member, cached_tokens, now)
        self._queue.held(plan.held, now)
        self._is_in_step = bool(plan.chunks)

    def stepped(self, plan: StepPlan, began: float, ended: float, accepted: Mapping[str, int] | None = None) -> None:
        """The planned step ran from `began` to `ended`. accepted: tokens that each sampling chunk appended, 1 for those
        not named. Members that ended meanwhile still get their part of it, whichever call comes first."""
        step = self._members_of(plan, began, ended)
        step_s = need_s = ended - began
        if step.prompts:
            need_s = self._pace.need_s(step.num_decoding, step.num_tokens, step_s)
        elif step.decodes:
            self._pace.learn(step.num_decoding, step_s)
        self._charge_decodes(step.decodes, need_s, accepted or {})
        if need_s < step_s:
            _charge_stall(step, step_s - need_s)
        for member, chunk in step.prompts:
            self._charge_prompt(member, chunk, ended, step_s)
        self._stepped_s = ended
        self._close_step(ended)

    def ended(self, request_id: str, reason: str, now: float) -> None:
        """A request has ended, however. Unknown ones are ignored."""
        member = self._open.get(request_id)
        if member is None:
            return
        if self._is_in_step and member.phase >= Phase.PREFILL:
            self._endings.setdefault(request_id, reason)
        else:
            self._end(request_id, reason, now)

    def forget_ended(self) -> None:
        """Of no interest any more, such as those of a warm-up."""
        self._kept.clear()

    def explain(self, request_ids: Iterable[str], now: float) -> Explanation:
        """Those of `request_ids` that are open or remembered."""
        self._queue.advance(now)
        reports: list[TimelineReport] = []
        for request_id in request_ids:
            if (member := self._open.get(request_id)) is not None:
                reports.append(self._report_open(member, now))
            elif (member := self._kept.get(request_id)) is not None:
                reports.append(member.report())
        return self._explanation(reports, now)

    def explain_all(self, num_ended: int, now: float) -> Explanation:
        """All that are open, in the order in which they came, and the `num_ended` that ended last, the latest first."""
        self._queue.advance(now)
        reports = [self._report_open(member, now) for member in self._open.values()]
        for _, member in zip(range(num_ended), reversed(self._kept.values()), strict=False):
            reports.append(member.report())
        return self._explanation(reports, now)

    def answer(self, request_ids: Iterable[str] | None, num_ended: int, now: float) -> Explanation:
        """`explain` of those named, or `explain_all`."""
        return self.explain_all(num_ended, now) if request_ids is None else self.explain(request_ids, now)

    # What follows accounts for time; each leaves `mark_s` where it accounted to.

    def _bring(self, member: Timeline, now: float) -> None:
        """Up to `now` for one in the batch: since the last step, or since the last one it was in."""
        idle_s = now - member.mark_s
        if member.mark_s >= self._stepped_s:
            member.between_s += idle_s
        else:
            member.paused_s += idle_s
        member.mark_s = now

    def _enter_queue(self, member: Timeline, now: float) -> None:
        member.wait_for_turn(now)
        member.entered = tuple(self._queue.meters)

    def _leave_queue(self, member: Timeline, now: float) -> None:
        if member.entered is None:
            member.wait_for_turn(now)
            return
        holders = self._queue.holders_since(member.mark_s, now)
        member.add_wait(self._queue.since(member.entered), holders)
        member.mark_s = now

    def _wait_again(self, member: Timeline, now: float) -> None:
        self._bring(member, now)
        member.phase = Phase.WAITING
        member.entered = tuple(self._queue.meters)

    def _admit(self, member: Timeline, cached_tokens: int, now: float) -> None:
        if member.phase is not Phase.WAITING:
            return
        self._leave_queue(member, now)
        member.phase = Phase.PREFILL
        member.cached_tokens += cached_tokens
        member.missing_tokens = max(0, member.missing_tokens - cached_tokens)
        member.note("admitted", cached_tokens, now)

    def _members_of(self, plan: StepPlan, began: float, ended: float) -> _Step:
        """Who is in the step, their time accounted for up to its beginning; the step itself is to be charged yet."""
        step = _Step()
        members, last_s = self._open, self._stepped_s
        for chunk in plan.chunks:
            member = members.get(chunk.request_id)
            if member is None:
                continue
            step.num_tokens += chunk.num_tokens
            if member.phase is Phase.DECODE:
                step.decodes.append(member)
                step.num_decoding += chunk.num_tokens
                member.drafted_tokens += chunk.num_drafts
            else:
                if member.phase is Phase.WAITING:  # by a scheduler that does not say whom it admits
                    self._admit(member, 0, began)
                step.prompts.append((member, chunk))
            if member.mark_s == last_s:  # as nearly always
                member.between_s += began - last_s
            else:
                self._bring(member, began)
            member.mark_s = ended
        return step

    def _charge_decodes(self, decodes: list[Timeline], need_s: float, accepted: Mapping[str, int]) -> None:
        endings = self._endings
        for member in decodes:
            member.decode_s += need_s
            member.decode_steps += 1
            if not endings or endings.get(member.request_id) != "error":  # else nobody got the token
                member.generated_tokens += 1
        for request_id, appended in accepted.items():
            if appended > 1 and (drafted := self._open.get(request_id)) is not None:
                drafted.generated_tokens += appended - 1
                drafted.accepted_tokens += appended - 1

    def _charge_prompt(self, member: Timeline, chunk: ScheduledChunk, ended: float, step_s: float) -> None:
        again = min(member.missing_tokens, chunk.num_tokens)
        recompute_s = step_s * again / chunk.num_tokens
        member.recompute_s += recompute_s
        member.prefill_s += step_s - recompute_s
        member.missing_tokens -= again
        member.recomputed_tokens += again
        member.prefill_tokens += chunk.num_tokens - again
        member.prefill_steps += 1
        if chunk.samples and self._endings.get(member.request_id) != "error":
            member.phase = Phase.DECODE
            member.generated_tokens += 1
            if member.first_token_s is None:
                member.first_token_s = ended

    def _close_step(self, now: float) -> None:
        self._is_in_step = False
        if self._endings:
            endings, self._endings = self._endings, {}
            for request_id, reason in endings.items():
                self._end(request_id, reason, now)

    def _end(self, request_id: str, reason: str, now: float) -> None:
        member = self._open.pop(request_id)
        self._newcomers.pop(request_id, None)
        self._account(member, now)
        member.ended = reason
        self._kept.pop(request_id, None)
        self._kept[request_id] = member
        if len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def _report_open(self, member: Timeline, now: float) -> TimelineReport:
        """With the time since the last step or, of one who waits, since it came. The member is left as it is."""
        twin = copy(member)
        if twin.phase is Phase.WAITING:
            twin.held_by, twin.queue_s = dict(member.held_by), list(member.queue_s)
        self._account(twin, now)
        return twin.report()

    def _account(self, member: Timeline, now: float) -> None:
        """Whatever it does at the moment, up to `now`."""
        if member.phase is Phase.COMPILING:
            member.wait_for_form(now)
        elif member.phase is Phase.WAITING:
            self._queue.advance(now)
            self._leave_queue(member, now)
        else:
            self._bring(member, now)

    def _explanation(self, reports: list[TimelineReport], now: float) -> Explanation:
        return Explanation(reports, self._queue.report(now), len(self._open), len(self._kept), self._max_kept)


def _charge_stall(step: _Step, stall_s: float) -> None:
    shares = _shares(step.prompts, stall_s)
    for member in step.decodes:
        member.stalled_s += stall_s
        member.add_stall(shares)


def _shares(prompts: list[tuple[Timeline, ScheduledChunk]], stall_s: float) -> dict[str, float]:
    """`stall_s` by tokens among the prompts of a step; the smallest of many are summed up."""
    by_size = sorted(((chunk.num_tokens, member.request_id) for member, chunk in prompts), reverse=True)
    per_token_s = stall_s / sum(tokens for tokens, _ in by_size)
    shares = {request_id: tokens * per_token_s for tokens, request_id in by_size[:_MAX_BLAMED]}
    if len(by_size) > _MAX_BLAMED:
        shares[OTHERS] = per_token_s * sum(tokens for tokens, _ in by_size[_MAX_BLAMED:])
    return shares
