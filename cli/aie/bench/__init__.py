"""`aie bench`: a closed-loop load test of any OpenAI-compatible server, and of models that answer at once.

Reading order: workload (what is sent) → client (one request on the wire) → load (many at once) → report (the table) →
streaming_levels (one level after another). The same for models that answer at once: questions → at_once → counters
(what the server says about its batches) → at_once_report → at_once_levels. Then target (the server under test, started
here when no URL is given) and command.
"""

from aie.bench.command import register

__all__ = ["register"]
