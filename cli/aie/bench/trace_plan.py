"""From a trace to a level of the open loop: prompts of the trace's lengths, alike where the trace says so."""

import random

from aie.bench.arrivals import Rate
from aie.bench.streaming_plan import Level
from aie.bench.trace import Trace, TraceRequest
from aie.bench.workload import Cancel, PlannedRequest, tokens_to_words, words

__all__ = ["trace_level"]


def trace_level(trace: Trace, *, seed: int, cancel: Cancel | None = None, max_in_flight: int | None = None) -> Level:
    """Every request when it is due."""
    leave = random.Random(seed ^ 0x5EED)
    blocks: dict[int, list[str]] = {}
    planned = []
    for index, one in enumerate(trace.requests):
        leaves = cancel is not None and leave.random() < cancel.share
        prompt = _prompt(one, index, trace.block_tokens, seed, blocks)
        planned.append(PlannedRequest(prompt, one.output_tokens, cancel.after if cancel and leaves else None))
    per_s = float(f"{len(planned) / trace.span_s:.3g}") if trace.span_s > 0 else float(len(planned))
    due = [one.at_s for one in trace.requests]
    return Level(planned, 0, None, Rate(per_s, per_s), due, max_in_flight)


def _prompt(one: TraceRequest, index: int, block_tokens: int, seed: int, blocks: dict[int, list[str]]) -> str:
    """Blocks of the same hash are the same words; what the hashes do not reach to is the request's own."""
    wanted = max(1, tokens_to_words(one.input_tokens))
    size = max(1, tokens_to_words(block_tokens))
    found: list[str] = []
    for block in one.blocks:
        if len(found) >= wanted:
            break
        if block not in blocks:
            blocks[block] = words(size, random.Random(f"{seed}/block {block}")).split()
        found += blocks[block]
    if len(found) < wanted:
        found += words(wanted - len(found), random.Random(f"{seed}/request {index}")).split()
    return " ".join(found[:wanted])
