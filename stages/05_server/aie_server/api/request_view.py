"""Requests as JSON: what the server noted and what the engine says of them, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aie_engine import Explanation, QueueReport, TimelineReport
from aie_server.api.request_names import Names
from aie_server.api.request_times import Times, choice_times, front_times, prediction_times
from aie_server.request_book import ChoiceTrace, RequestTrace

__all__ = ["Engines", "View", "full_view", "queue_view", "short_view"]

View = dict[str, object]

_COUNTS = (
    "prompt_tokens", "cached_tokens", "prefill_steps", "prefill_tokens", "recomputed_tokens", "decode_steps",
    "generated_tokens", "drafted_tokens", "accepted_tokens", "preemptions", "lost_tokens",
)  # fmt: skip


@dataclass(slots=True)
class Engines:
    """What the engines said, by model."""

    queues: dict[str, QueueReport | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    _reports: dict[str, dict[str, TimelineReport]] = field(default_factory=dict)

    def add(self, model: str, answers: Sequence[Explanation]) -> None:
        """What the engine of `model` said, in pieces."""
        self.queues[model] = answers[-1].queue
        self._reports[model] = {report.request_id: report for answer in answers for report in answer.requests}

    def reports(self, trace: RequestTrace) -> Mapping[str, TimelineReport]:
        """Of the choices that the engine still knows."""
        return self._reports.get(trace.model, {})


def short_view(trace: RequestTrace, engines: Engines, names: Names, now: float) -> View:
    """A line of a list: of several choices, times and tokens of the one that took longest."""
    reports = engines.reports(trace)
    times, choice = _slowest(trace, reports, now)
    view = _head(trace, reports, times)
    view["phases_us"] = {phase: us for phase, us in times.phases_us.items() if us}
    view["num_choices"] = len(trace.choices)
    report = None if choice is None else reports.get(choice.engine_id)
    if report is not None:
        view |= {name: getattr(report, name) for name in _COUNTS}
        view |= {"held_by": names.shares(report.held_by), "stalled_by": names.shares(report.stalled_by)}
    if trace.batch is not None:
        view |= _batch(trace)
    return view


def full_view(trace: RequestTrace, engines: Engines, names: Names, now: float) -> View:
    """All of one request."""
    reports = engines.reports(trace)
    times, _ = _slowest(trace, reports, now)
    view = _head(trace, reports, times)
    view["blocked_us"] = round(trace.blocked_s * 1e6)
    if trace.choices:
        view["choices"] = [
            _choice(trace, choice, reports.get(choice.engine_id), engines, names, now) for choice in trace.choices
        ]
    else:
        view["phases_us"] = times.phases_us
    if trace.batch is not None:
        view |= _batch(trace)
    return view


def queue_view(queue: QueueReport, names: Names) -> View:
    """Why the first in an engine's queue still waits."""
    return {
        "request_id": names.of(queue.request_id),
        "reason": queue.reason,
        "for_us": queue.for_us,
        "blocks_needed": queue.blocks_needed,
        "blocks_free": queue.blocks_free,
        "holders": names.shares(queue.holders),
    }


def _head(trace: RequestTrace, reports: Mapping[str, TimelineReport], times: Times) -> View:
    return {
        "request_id": trace.request_id,
        "path": trace.path,
        "model": trace.model,
        "state": _state(trace, reports),
        "status": trace.status,
        "total_us": times.total_us,
    }


def _choice(
    trace: RequestTrace, choice: ChoiceTrace, report: TimelineReport | None, engines: Engines, names: Names, now: float
) -> View:
    times = choice_times(trace, choice, report, now)
    first_s = choice.first_token_s
    view: View = {
        "index": choice.index,
        "state": _choice_state(trace, choice, report),
        "finish_reason": choice.reason,
        "total_us": times.total_us,
        "first_token_us": None if first_s is None else round((first_s - trace.started_s) * 1e6),
        "phases_us": times.phases_us,
    }
    if report is None:
        why = "Its engine has forgotten it, or it was another one, reloaded or started anew since."
        if view["state"] == "handed over":
            why = "Its engine has not taken it in yet: it is in a step, or the form of the answer is being compiled."
        return view | {"engine": None, "why_no_engine": engines.problems.get(trace.model, why)}
    view["engine"] = {
        **{name: getattr(report, name) for name in _COUNTS},
        "preempted_by": names.shares(report.preempted_by),
        "held_by": names.shares(report.held_by),
        "stalled_by": names.shares(report.stalled_by),
        "events": [
            {"at_us": event.at_us, "what": event.what, "tokens": event.tokens}
            | ({"by": names.of(event.by)} if event.by else {})
            for event in report.events
        ],
        "num_events": report.num_events,
    }
    return view


def _batch(trace: RequestTrace) -> View:
    """Of the input that took longest: with how many it was computed, and why they did not wait for more."""
    assert trace.batch is not None
    return {"num_inputs": trace.num_inputs, "batch": {"size": trace.batch.size, "cut": trace.batch.reason}}


def _slowest(
    trace: RequestTrace, reports: Mapping[str, TimelineReport], now: float
) -> tuple[Times, ChoiceTrace | None]:
    if not trace.choices:
        return prediction_times(trace, now) if trace.is_prediction else front_times(trace, now)[0], None
    every = [(choice_times(trace, choice, reports.get(choice.engine_id), now), choice) for choice in trace.choices]
    return max(every, key=lambda one: one[0].total_us)


def _state(trace: RequestTrace, reports: Mapping[str, TimelineReport]) -> str:
    """Where the request stands; of several choices, the one that is behind the others."""
    if trace.finished_s is not None:
        return "done"
    if trace.admitted_s is None:
        return "gate"
    if trace.submitted_s is None:
        return "pre" if trace.is_prediction else "tokenize"
    if trace.is_prediction:
        return "computing" if trace.computed_s is None else "post"
    states = {_choice_state(trace, choice, reports.get(choice.engine_id)) for choice in trace.choices}
    order = ("handed over", "waiting", "prefill", "decode")
    return next((state for state in order if state in states), "answering")


def _choice_state(trace: RequestTrace, choice: ChoiceTrace, report: TimelineReport | None) -> str:
    if trace.finished_s is not None:
        return "done"
    if choice.done_s is not None:
        return "answering"
    return "handed over" if report is None else report.state if report.is_open else "answering"
