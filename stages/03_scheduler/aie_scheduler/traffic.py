"""Traffic from a few words: `poisson`, `burst`, `constant` or a recorded file; `lognormal(3.9,0.8)`, `fixed 64`, …

What a person writes on a command line becomes a `Workload` here, and what cannot be understood becomes one sentence.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from aie_scheduler.workload import SimulatedRequest, Workload
from aie_tensor import InvalidInputError

__all__ = ["ARRIVALS", "MAX_REQUESTS", "equal_lengths", "parse_lengths", "read_workload", "synthetic"]

ARRIVALS = ("poisson", "burst", "constant")
BURST = 16  # requests that a burst has on average
MAX_REQUESTS = 1_000_000  # of one workload: beyond it nobody waits for the answer
MAX_LENGTH = 1 << 20  # tokens
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_FORMS = {
    "lognormal": re.compile(rf"lognormal\({_NUMBER},{_NUMBER}\)"),
    "fixed": re.compile(rf"fixed[ :]{_NUMBER}"),
    "uniform": re.compile(r"uniform[ :]\s*(\d+)-(\d+)"),
}

DrawLength = Callable[[Random], int]


def parse_lengths(text: str, *, max_len: int, param: str = "lengths") -> DrawLength:
    """`lognormal(mu,sigma)` (of the logarithm, so the median is e^mu), `fixed N` or `uniform a-b`; cut at `max_len`.

    Raises `InvalidInputError` for anything else.
    """
    for name, form in _FORMS.items():
        if (match := form.fullmatch(text.strip())) is not None:
            first, second = float(match[1]), float(match[2]) if name != "fixed" else 0.0
            break
    else:
        raise InvalidInputError(
            f"{param} is {text[:60]!r}; write lognormal(3.9,0.8), fixed 64 or uniform 8-128", param=param
        )
    if name == "lognormal":
        if not (-20 <= first <= 20 and 0 <= second <= 10):
            raise InvalidInputError(f"{param}: lognormal takes mu from -20 to 20 and sigma from 0 to 10", param=param)
        return lambda random: min(max(1, round(random.lognormvariate(first, second))), max_len)
    low, high = int(first), int(first) if name == "fixed" else int(second)
    if not 1 <= low <= high <= MAX_LENGTH:
        raise InvalidInputError(f"{param}: lengths are from 1 to {MAX_LENGTH}, unlike {text[:60]!r}", param=param)
    return lambda random: min(random.randint(low, high), max_len)


def synthetic(
    kind: str,
    *,
    rate_per_s: float,
    seconds: float,
    length: DrawLength,
    output: DrawLength,
    seed: int,
    patience_s: float | None = None,
) -> Workload:
    """So many seconds of traffic at `rate_per_s` on average; `patience_s` is each request's deadline after arrival.

    poisson: independent arrivals. burst: bursts that are independent of each other, each of 16 requests on average
    (geometric) at one moment. constant: one every 1/rate seconds.
    """
    random, lengths = Random(seed), Random(seed + 1)  # lengths stay the same when the arrivals change
    return Workload(
        tuple(
            SimulatedRequest(
                moment_s,
                length(lengths),
                output(lengths),
                deadline_s=None if patience_s is None else moment_s + patience_s,
            )
            for moment_s in _moments(kind, rate_per_s, seconds, random)
        )
    )


def _moments(kind: str, rate_per_s: float, seconds: float, random: Random) -> Iterator[float]:
    if kind not in ARRIVALS:
        raise InvalidInputError(f"arrivals {kind!r} are not known; take {', '.join(ARRIVALS)} or a .jsonl file")
    if not (rate_per_s > 0 and seconds > 0):
        raise InvalidInputError("rate and seconds must be above 0")
    if not rate_per_s * seconds <= MAX_REQUESTS / 2:
        raise InvalidInputError(
            f"{rate_per_s:g} per second for {seconds:g} s are {rate_per_s * seconds:.0f} requests; "
            f"at most {MAX_REQUESTS // 2} are simulated",
            param="rate",
        )
    now = 0.0
    while True:
        now += (
            1 / rate_per_s if kind == "constant" else random.expovariate(rate_per_s / (BURST if kind == "burst" else 1))
        )
        if now >= seconds:
            return
        yield now
        while kind == "burst" and random.random() < 1 - 1 / BURST:
            yield now


def equal_lengths(workload: Workload) -> Workload:
    """The same arrivals, every prompt as long as the mean: what a benchmark with equal lengths would have seen."""
    requests = workload.requests
    mean = max(1, round(sum(request.prompt_len for request in requests) / max(1, len(requests))))
    return Workload(tuple(replace(request, prompt_len=mean) for request in requests))


def read_workload(path: Path, *, max_len: int = MAX_LENGTH) -> Workload:
    """A recorded workload: a JSON object per line with `arrival_s` and `length`, and where wanted `output`, `priority`,
    `patience_s` (until its deadline), `client` and `model`. Arrivals need not be in order; the first becomes time 0.
    Lengths are cut at `max_len`.

    Raises `InvalidInputError` naming file and line.
    """
    requests = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if number > MAX_REQUESTS:
                    raise InvalidInputError(f"{path} has more than {MAX_REQUESTS} lines", param="arrivals")
                if line.strip():
                    requests.append(_request(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InvalidInputError(f"{path} cannot be read: {reason}", param="arrivals") from None
    if not requests:
        raise InvalidInputError(f"{path} holds no request", param="arrivals")
    requests.sort(key=lambda request: request.arrival_s)
    first_s = requests[0].arrival_s
    return Workload(tuple(_shifted(request, first_s, max_len) for request in requests))


def _request(line: str, where: str) -> SimulatedRequest:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{where}: not JSON", param="arrivals") from None
    if not isinstance(entry, dict):
        raise InvalidInputError(f"{where}: not a JSON object", param="arrivals")

    def number(name: str, low: float, high: float, default: float | None = None) -> float:
        value = entry.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidInputError(
                f"{where}: {name} must be a number from {low:g} to {high:g}, not {str(value)[:40]}", param="arrivals"
            )
        return value

    arrival_s = number("arrival_s", 0.0, 1e12)
    patience_s = number("patience_s", 0.0, 1e9) if entry.get("patience_s") is not None else None
    return SimulatedRequest(
        arrival_s,
        int(number("length", 1, MAX_LENGTH)),
        int(number("output", 1, MAX_LENGTH, 1)),
        int(number("priority", -1000, 1000, 0)),
        None if patience_s is None else arrival_s + patience_s,
        str(entry.get("client", ""))[:100],
        str(entry.get("model", ""))[:100],
    )


def _shifted(request: SimulatedRequest, by_s: float, max_len: int) -> SimulatedRequest:
    deadline_s = None if request.deadline_s is None else request.deadline_s - by_s
    return replace(
        request,
        arrival_s=request.arrival_s - by_s,
        prompt_len=min(request.prompt_len, max_len),
        deadline_s=deadline_s,
    )
