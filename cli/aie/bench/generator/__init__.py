"""The load generator: processes of its own that send a plan and time what comes back.

Measuring shares no interpreter with what draws, sums up and looks at /metrics, since whoever holds the interpreter when
an event arrives puts his time into somebody's latency. Reading order, a line each:

what is sent    endpoint, plan (calls, conversations, and when: closed or open loop)
what became     outcome, faults (why not, in a few words)
on the wire     http_reader, event_reader (bytes to events), event_text (events to text and counts), exchange (one
                answer), plain and secure (sockets) → connections (opened, kept, opened anew), ask (one request)
many at once    pacing (an event loop that wakes in time), loops (closed and open)
in a process    channel (messages) → worker (what a process does)

Nothing here imports numpy, rich or typer, so that a process starts in a tenth of a second. `aie.bench.fleet` starts the
processes and hears from them.
"""

from aie.bench.generator.endpoint import Endpoint
from aie.bench.generator.outcome import HUNG_UP, STOPPED, TOO_LATE, Outcome, OutcomeKind
from aie.bench.generator.plan import Call, Closed, Conversation, Open, Plan, Turn

__all__ = [
    "HUNG_UP",
    "STOPPED",
    "TOO_LATE",
    "Call",
    "Closed",
    "Conversation",
    "Endpoint",
    "Open",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "Turn",
]
