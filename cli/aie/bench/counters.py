"""What the server itself counted between two looks at its /metrics: the client only guesses at batches."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field

from aie.bench.client import Endpoint, get_text

__all__ = ["Counters", "Window", "read_counters", "window"]

_SAMPLE = re.compile(r'aie_(\w+?)(?:\{(.*)\})? ([-+0-9.eE]+|[+-]?Inf|NaN)')  # fmt: skip
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PHASE_SUM = "prediction_phase_seconds_sum"


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one model that answers at once, since its server started."""

    batches: dict[str, float]  # by why they were cut
    inputs: float  # over all batches
    phase_s: dict[str, float]  # pre, queue, compute, post: summed over requests
    tokens: float
    utilisation: float  # mean part of the largest batch that was filled, 0 to 1
    front_rss_bytes: float  # of the server's front process, now


@dataclass(frozen=True, slots=True)
class Window:
    """Between two `Counters`."""

    mean_batch: float | None = None
    utilisation: float | None = None  # mean batch over the largest allowed, 0 to 1
    reasons: dict[str, int] = field(default_factory=dict)  # batches by why they were cut
    phase_shares: dict[str, float] = field(default_factory=dict)  # of the time inside the server; they sum to 1
    tokens: int | None = None  # of texts


async def read_counters(endpoint: Endpoint, model: str) -> Counters | None:
    """None for a server that does not count as ours does."""
    try:
        status, text = await get_text(endpoint, "/metrics")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return None
    batches: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for line in text.splitlines() if status == 200 else ():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, value = found[1], float(found[3])
        labels = dict(_LABEL.findall(found[2] or ""))
        if labels.get("model_name", model) != model:
            continue
        if name == "prediction_batches_total":
            batches[labels.get("reason", "")] += value  # type: ignore[assignment]
        elif name == _PHASE_SUM:
            phases[labels.get("phase", "")] += value  # type: ignore[assignment]
        else:
            plain[name] += value  # type: ignore[assignment]
    if "prediction_batch_inputs_total" not in plain:
        return None
    return Counters(
        dict(batches),
        plain["prediction_batch_inputs_total"],
        dict(phases),
        plain["prediction_tokens_total"],
        plain["prediction_batch_utilisation"],
        plain["process_resident_memory_bytes"],
    )


def window(before: Counters | None, after: Counters | None) -> Window:
    """What happened in between; empty where the server does not say, or nothing did."""
    if before is None or after is None:
        return Window()
    reasons = {name: round(count - before.batches.get(name, 0)) for name, count in after.batches.items()}
    reasons = {name: count for name, count in reasons.items() if count > 0}
    num_batches = sum(reasons.values())
    if not num_batches:
        return Window()
    mean_batch = (after.inputs - before.inputs) / num_batches
    # The server gives a mean since its start; over the mean batch of the same time that is one over the largest batch.
    since_start = after.inputs / sum(after.batches.values())
    utilisation = mean_batch * after.utilisation / since_start if since_start else None
    spent = {name: seconds - before.phase_s.get(name, 0.0) for name, seconds in after.phase_s.items()}
    total = sum(spent.values())
    return Window(
        mean_batch,
        utilisation,
        reasons,
        {name: seconds / total for name, seconds in spent.items()} if total > 0 else {},
        round(after.tokens - before.tokens),
    )
