"""Slow first request: what the first one pays for that the next do not."""

from statistics import median

from aie.doctor.finding import MORE_TIME, Finding
from aie.doctor.measured import FirstRequests

__all__ = ["judge_first"]

WHAT = "first request"
_FEWEST = 3
_BAD, _NOTE = 3.0, 1.5  # times the median of the next
_BAD_EXTRA_S, _NOTE_EXTRA_S = 0.05, 0.02  # less than that nobody notices
_SURE, _NOT_NOISE = 1.5, 1.25  # times the slowest of the next: of so few, one is always the slowest
_SOME_FROM_DISK = 16  # pages; a few are read at any time
_MANY_FAULTS = 2000  # pages of 4 KiB


def judge_first(seen: FirstRequests) -> Finding:
    """Bad: three times the median of the next, half as slow again as the slowest of them, and 50 ms. A first that is
    hardly slower than the slowest of the next is noise."""
    if len(seen.next_s) < _FEWEST:
        return Finding(
            WHAT, "note", f"only {len(seen.next_s)} requests came after the first {seen.what} in the time there was; "
            "nothing is said of it", MORE_TIME,
        )  # fmt: skip
    usual_s, slowest_s = median(seen.next_s), max(seen.next_s)
    extra_s = seen.first_s - usual_s
    text = (
        f"{_ms(seen.first_s)} {seen.unit} for the first {seen.what}, {_ms(usual_s)} for the {len(seen.next_s)} after "
        f"it (median; slowest {_ms(slowest_s)})"
    )
    figures = {"first_s": seen.first_s, "next_s": list(seen.next_s)}
    if seen.first_s > _BAD * usual_s and extra_s > _BAD_EXTRA_S and seen.first_s > _SURE * slowest_s:
        return Finding(WHAT, "bad", text + _paid_for(seen), _change(seen), figures)
    if seen.first_s > _NOTE * usual_s and extra_s > _NOTE_EXTRA_S and seen.first_s > _NOT_NOISE * slowest_s:
        return Finding(WHAT, "note", text + _paid_for(seen), _change(seen), figures)
    return Finding(WHAT, "ok", text, figures=figures)


def _paid_for(seen: FirstRequests) -> str:
    if (seen.major_faults or 0) >= _SOME_FROM_DISK:
        return f"; it read {seen.major_faults} pages from disk: the model's file was not in memory yet"
    if seen.minor_faults is not None and seen.minor_faults > _MANY_FAULTS:
        return f"; it was the first to touch {seen.minor_faults} pages of memory"
    return "; what is made at first use (kernels, graphs, buffers, connections) was made for it"


def _change(seen: FirstRequests) -> str:
    if (seen.major_faults or 0) >= _SOME_FROM_DISK:
        return "keep the model's file in the page cache (read it once before the start, and leave it memory)"
    return (
        "send it some dozens of requests of real lengths before it gets traffic, such as "
        "`aie bench --url URL --concurrency 4 --requests 32`, and only then let the load balancer find it"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
