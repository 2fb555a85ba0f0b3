"""A step as a picture: Chrome's trace event format, which Perfetto and chrome://tracing open."""

from collections.abc import Sequence

from aie_engine.profiling.steps import StepProfile

__all__ = ["trace_events"]


def trace_events(profiles: Sequence[StepProfile]) -> dict[str, object]:
    """The last run of each kind of step, each as a thread of its own beginning at 0; times in microseconds."""
    events: list[dict[str, object]] = []
    for number, profile in enumerate(profiles):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": profile.name}})
        begin_ns = profile.last[0][1].last_begin_ns if profile.last else 0
        events += [
            {
                "ph": "X", "pid": 1, "tid": number, "cat": timed.name, "name": node,
                "ts": (timed.last_begin_ns - begin_ns) / 1e3, "dur": timed.last_ns / 1e3,
                "args": {"operator": timed.name},
            }
            for node, timed in profile.last
        ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
