"""`aie bench`: a closed-loop load test of any OpenAI-compatible server.

Reading order: workload (what is sent) → client (one request on the wire) → load (many at once) → report (the table) →
target (the server under test, started here when no URL is given) → command.
"""

from aie.bench.command import register

__all__ = ["register"]
