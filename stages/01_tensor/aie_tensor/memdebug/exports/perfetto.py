"""Events as a trace for Perfetto or chrome://tracing: counters over time, and an instant for each request that ended.

The format is Chrome's "Trace Event Format": `ph` C is a counter, i an instant, M metadata; times in microseconds. The
counters start at zero with the first event: what was held before a log began is not in it.
"""

from collections.abc import Iterable

from aie_tensor.memdebug.exports.tally import Tally
from aie_tensor.memdebug.recorded import RecordedEvent
from aie_tensor.memory.events import EventKind

__all__ = ["perfetto"]

_INSTANTS = {EventKind.REQUEST: "request ended"}


def perfetto(events: Iterable[RecordedEvent], *, process: str = "aie", pid: int = 1) -> dict[str, object]:
    """A trace that `json.dump` can write. Each counter is a track of its own, since stacking live on reserved would
    draw bytes twice."""
    entries: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
    ]
    tally = Tally()
    start: float | None = None
    last: dict[str, int] = {}
    for event in events:
        start = event.at_s if start is None else start
        ts = round((event.at_s - start) * 1e6, 3)
        if event.kind in _INSTANTS:
            name = _INSTANTS[event.kind]
            entries.append({"ph": "i", "name": name, "cat": "memory", "ts": ts, "pid": pid, "tid": 0, "s": "p"})
        tally.add(event)
        for name, value in tally.counters().items():
            if last.get(name) != value:
                last[name] = value
                entries.append(
                    {"ph": "C", "name": name, "cat": "memory", "ts": ts, "pid": pid, "args": {"bytes": value}}
                )
    return {"traceEvents": entries, "displayTimeUnit": "ms"}
