"""What `aie bench` ought to say of a run, from what the server noted: computed here by itself, in the plainest way.

A latency counts from when the request's last byte reached the server (from send) or from when it was due (from
schedule) to when the server wrote the piece. Nothing of `aie.bench` is used, so that a mistake there is not made twice.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from scripted_server import Served

__all__ = ["Request", "due_start_s", "figures", "kind_of", "matched"]

LATENCIES = ("ttfr", "ttft", "itl", "tpot", "e2e", "due_ttft", "due_e2e", "lag")
KINDS = ("answered", "rejected", "timed out", "cut", "cancelled", "failed")
_FARTHEST_S = 0.25  # between what a row says and the arrival of its request
Row = Mapping[str, object]
"""A line of --rows."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it. due_s: on the server's clock; None in the closed loop."""

    served: Served
    kind: str
    due_s: float | None = None

    @property
    def ttfr_s(self) -> float | None:
        first = self.served.first_body_s
        return None if first is None else first - self.served.arrival_s

    @property
    def ttft_s(self) -> float | None:
        return self.served.texts[0][0] - self.served.arrival_s if self.served.texts else None

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for (before, _), (after, _) in pairwise(self.served.texts)]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.served.texts)

    @property
    def tpot_s(self) -> float | None:
        texts = self.served.texts
        return (texts[-1][0] - texts[0][0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        return self.served.end_s - self.served.arrival_s

    @property
    def lag_s(self) -> float:
        """How late it arrived."""
        return 0.0 if self.due_s is None else self.served.arrival_s - self.due_s


def kind_of(served: Served, timeout_s: float) -> str:
    """What sort of end the client must have seen. One that left did so since its time was
    over (where nothing more would ever have come: surely), or as it was asked."""
    last = served.actions[-1] if served.actions else ""
    if served.has_left:
        is_late = last == "hold" or served.end_s - served.arrival_s >= timeout_s - 0.1
        return "timed out" if is_late else "cancelled"
    if last == "done" and "error" not in served.actions:
        return "answered"
    if last.startswith("status"):
        return "rejected" if last in ("status429", "status503") else "failed"
    return "failed" if served.first_body_s is None else "cut"


def due_start_s(rows: Sequence[Row], records: Sequence[Served]) -> float:
    """When the level began, on the server's clock: rows count from it, and no first token is seen before it is written.
    So it is right but for the shortest way that a token had. The number of a request comes back as prompt_tokens."""
    answered = [(records[_number(row) - 1], row) for row in rows if row["end"] == "answered"]
    return max(served.texts[0][0] - float(str(row["first_token_s"])) for served, row in answered)


def matched(rows: Sequence[Row], records: Sequence[Served], timeout_s: float) -> list[tuple[Row | None, Request]]:
    """Every request of the level with its row: answered ones by their number, others by kind and time. Requests that
    came before the level began were there to warm up."""
    start_s = due_start_s(rows, records)
    by_number = {_number(row): row for row in rows if row["end"] == "answered"}
    others = {kind: [row for row in rows if row["end"] == kind] for kind in KINDS if kind != "answered"}
    found: list[tuple[Row | None, Request]] = []
    for served in records:
        if served.arrival_s < start_s:
            continue
        kind = kind_of(served, timeout_s)
        sent_s = served.arrival_s - start_s
        row = by_number.get(served.number) if kind == "answered" else _nearest(others[kind], sent_s)
        due = None if row is None or row["due_s"] is None else start_s + float(str(row["due_s"]))
        found.append((row, Request(served, kind, due)))
    return found


def _nearest(rows: list[Row], sent_s: float) -> Row | None:
    """Takes it out; None where nothing was sent about then."""
    gaps = [abs(float(str(row["sent_s"])) - sent_s) for row in rows]
    return rows.pop(gaps.index(min(gaps))) if gaps and min(gaps) < _FARTHEST_S else None


def _number(row: Row) -> int:
    return int(str(row["prompt_tokens"]))


def figures(
    requests: Sequence[Request], start_s: float, is_good: Callable[[Request], bool], *, is_open: bool
) -> dict[str, float | None]:
    """By their names in the file of --json, with a point for each step down; times in milliseconds. None: too few
    samples to speak of it."""
    answered = [one for one in requests if one.kind == "answered"]
    ends = Counter(one.kind for one in requests)
    wall_s = max(one.served.end_s for one in requests) - start_s
    tokens = sum(one.tokens for one in answered)
    found: dict[str, float | None] = {
        "requests": len(requests), "answered": len(answered),
        "failed": len(requests) - len(answered) - ends["cancelled"],
        **{f"ends.{kind}": ends[kind] for kind in KINDS},
        "prompt_tokens": sum(one.served.number for one in answered), "output_tokens": tokens,
        "tokens_per_event": tokens / sum(len(one.served.texts) for one in answered),
        "wall_s": wall_s, "requests_per_s": len(answered) / wall_s, "output_tokens_per_s": tokens / wall_s,
        "steady_tokens_per_s": _steady(requests), "good": sum(is_good(one) for one in answered),
    }  # fmt: skip
    if is_open:
        found["concurrency"] = max(accumulate(change for _, change in _steps(requests)))
    samples: dict[str, Sequence[float | None]] = {
        "ttfr": [one.ttfr_s for one in answered], "ttft": [one.ttft_s for one in answered],
        "itl": [gap for one in answered for gap in one.gaps_s], "tpot": [one.tpot_s for one in answered],
        "e2e": [one.e2e_s for one in answered],
    }  # fmt: skip
    if is_open:
        samples |= {
            "due_ttft": [(one.ttft_s or 0.0) + one.lag_s for one in answered],
            "due_e2e": [one.e2e_s + one.lag_s for one in answered],
            "lag": [one.lag_s for one in requests if one.due_s is not None],
        }  # fmt: skip
    for name, values in samples.items():
        found |= {
            f"{name}.{part}": value for part, value in _summary([1e3 * v for v in values if v is not None]).items()
        }
    return found


def _summary(values: list[float]) -> dict[str, float | None]:
    """Percentiles by nearest rank; none of fewer samples than can bound it from above with 99 % confidence."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return {"count": 0, **dict.fromkeys(("mean", "p50", "p90", "p99", "p99_bound", "max"))}
    above = {percent: _most_above(n, percent, 1, 100) for percent in (90, 99)}
    middle = _most_above(n, 50, 1, 200)
    return {
        "count": n, "mean": sum(ordered) / n, "p50": _rank(ordered, 50),
        **{f"p{percent}": _rank(ordered, percent) if above[percent] >= 1 else None for percent in (90, 99)},
        "p99_bound": ordered[-above[99]] if above[99] >= 1 else None, "max": ordered[-1],
        "p50_interval.0": ordered[middle - 1] if middle >= 1 else None,
        "p50_interval.1": ordered[-middle] if middle >= 1 else None,
    }  # fmt: skip


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[-(-percent * len(ordered) // 100) - 1]


def _most_above(n: int, percent: int, chance: int, of: int) -> int:
    """The largest t for which at most t of n samples lie above the true percentile with a probability of no more than
    chance / of: the binomial distribution in whole numbers, without rounding. −1 where not even none is so unlikely."""
    term = total = percent**n
    limit, t = chance * 100**n, -1
    while total * of <= limit:
        t += 1
        term = term * (n - t) * (100 - percent) // ((t + 1) * percent)
        total += term
    return t


def _steps(requests: Sequence[Request]) -> list[tuple[float, int]]:
    """When requests began (+1) and ended (−1)."""
    return sorted(
        [(one.served.arrival_s, 1) for one in requests] + [(one.served.end_s, -1) for one in requests],
    )


def _steady(requests: Sequence[Request]) -> float:
    """Tokens per second from the first to the last moment with nine tenths of the mean number of requests under way."""
    steps = _steps(requests)
    spans, under_way = [], 0
    for (begin_s, change), (end_s, _) in pairwise(steps):
        under_way += change
        spans.append((begin_s, end_s, under_way))
    mean = sum((end - begin) * count for begin, end, count in spans) / (steps[-1][0] - steps[0][0])
    busy = [(begin, end) for begin, end, count in spans if count >= 0.9 * mean and end > begin]
    begin_s, end_s = busy[0][0], busy[-1][1]
    inside = 0.0
    for one in requests:
        if one.kind == "answered":
            texts = one.served.texts
            inside += one.tokens * sum(begin_s <= at <= end_s for at, _ in texts) / len(texts)
    return inside / (end_s - begin_s)
