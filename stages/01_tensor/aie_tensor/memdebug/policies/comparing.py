"""One log through several allocators, and the table of what each would have cost.

All figures but the time depend on the log alone. Rounding and holes are taken at the moment when most is asked for:
that moment decides how much memory one has to have.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from aie_tensor.errors import InvalidInputError, OutOfMemoryError
from aie_tensor.memdebug.policies.best_fit import BestFit
from aie_tensor.memdebug.policies.buddy import Buddy
from aie_tensor.memdebug.policies.policy import Policy, Usage
from aie_tensor.memdebug.policies.simple import ExactCache, System
from aie_tensor.memdebug.policies.size_classes import PooledClasses
from aie_tensor.memdebug.policies.trace import Trace, trace_of
from aie_tensor.memdebug.recorded import RecordedEvent
from aie_tensor.memdebug.text import Style, format_bytes

__all__ = ["POLICIES", "PolicyResult", "compare_policies", "render_policies", "replay_log"]

# Each makes a new allocator; the argument is the limit in bytes, None for none.
POLICIES: Mapping[str, Callable[[int | None], Policy]] = {
    "pool-1": partial(PooledClasses, 1),
    "pool-2": partial(PooledClasses, 2),
    "pool-4": partial(PooledClasses, 4),
    "pool-8": partial(PooledClasses, 8),
    "exact": ExactCache,
    "best-fit": BestFit,
    "buddy": Buddy,
    "system": System,
}

_RECORDED = "as recorded"


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one allocator made of a log. Shares are 0–1."""

    name: str
    peak_requested_bytes: int  # the most that was asked for at once, and was there
    peak_reserved_bytes: int  # the most that it took from the system
    waste: float  # 1 − peak requested / peak reserved
    internal: float | None  # rounding, as a share of what is handed out; None where the log does not say
    external: float | None  # 1 − largest free piece / all that is free; None where nothing is
    time_us: float | None  # median of one take or give back; None where it would be that of a stand-in
    num_upstream_calls: int | None  # for memory
    num_failures: int  # requests that it could not serve within the limit


def replay_log(
    events: Iterable[RecordedEvent] | Trace, policy: Policy | str, *, clock: Callable[[], float] = time.perf_counter
) -> PolicyResult:
    """Drive a new `policy`, or the one of that name in `POLICIES`, through the log. `clock` in seconds.
    InvalidInputError for a name that is none of them."""
    trace = events if isinstance(events, Trace) else trace_of(events)
    return _replay(trace, _named(policy, None) if isinstance(policy, str) else policy, clock)


def compare_policies(
    events: Iterable[RecordedEvent],
    names: Sequence[str] = tuple(POLICIES),
    *,
    limit_bytes: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[PolicyResult]:
    """First what the log's own allocator took, then each policy. `limit_bytes` is the memory that there is: with it,
    the table shows who would have failed how often. InvalidInputError for an unknown name or an empty log."""
    trace = trace_of(events)
    if not trace.steps:
        raise InvalidInputError("the log has no allocation to replay: was the ledger on, and memory asked for?")
    policies = [_named(name, limit_bytes) for name in names]
    return [_recorded(trace), *(_replay(trace, policy, clock) for policy in policies)]


def render_policies(results: Sequence[PolicyResult], width: int = 100, unicode: bool = True) -> str:
    """The table, the least memory first after the log's own line, and what the columns mean."""
    if not results:
        return ""
    style = Style(max(width, 60), unicode)
    own = [result for result in results if result.name == _RECORDED]
    rest = sorted((result for result in results if result.name != _RECORDED), key=_order)
    heads = f"{'reserved':>11}{'waste':>8}{'internal':>9}{'external':>9}{'calls':>8}{'failed':>7}{'µs':>5}"
    lines = [f"{'allocator':<21}{heads}", *(_row(result) for result in own + rest), ""]
    peak = format_bytes(max(result.peak_requested_bytes for result in results))
    for text in (
        f"At most {peak} were asked for at once. reserved: the most taken from the system; waste: the rest of it",
        "internal: lost to rounding; external: 1 − largest free piece / all free; both when most was asked for",
        "calls: to the system for memory, refused ones too; µs: median of one take or give back, in Python",
        "Each policy treats all blocks alike; the log's own allocator may have had exact ones, as for weights",
    ):
        lines += style.wrap(text, "")
    return style.fit(lines)


def _replay(trace: Trace, policy: Policy, clock: Callable[[], float]) -> PolicyResult:
    addresses: dict[int, tuple[int, int]] = {}  # number → (address, bytes)
    times: list[float] = []
    requested = peak = num_failures = 0
    at_peak, asked_at_peak = Usage(0, 0, 0), 0
    for step, (number, nbytes) in enumerate(trace.steps):
        if nbytes:
            began = clock()
            try:
                address = policy.take(nbytes)
            except OutOfMemoryError:
                num_failures += 1
            else:
                times.append(clock() - began)
                addresses[number] = address, nbytes
                requested += nbytes
                peak = max(peak, requested)
        elif number in addresses:
            address, ended = addresses.pop(number)
            began = clock()
            policy.give_back(address)
            times.append(clock() - began)
            requested -= ended
        if step == trace.peak_step:
            at_peak, asked_at_peak = policy.usage(), requested
    reserved = policy.memory.peak_bytes
    return PolicyResult(
        name=policy.name,
        peak_requested_bytes=peak,
        peak_reserved_bytes=reserved,
        waste=1 - peak / reserved if reserved else 0.0,
        internal=1 - asked_at_peak / at_peak.live if at_peak.live else 0.0,
        external=1 - at_peak.largest_free / at_peak.free if at_peak.free else None,
        time_us=median(times) * 1e6 if times and policy.timed else None,
        num_upstream_calls=policy.memory.num_calls,
        num_failures=num_failures,
    )


def _recorded(trace: Trace) -> PolicyResult:
    """The line of the allocator that wrote the log."""
    reserved = max(trace.peak_recorded_bytes, trace.peak_requested_bytes)
    waste = 1 - trace.peak_requested_bytes / reserved
    return PolicyResult(_RECORDED, trace.peak_requested_bytes, reserved, waste, None, None, None, None, 0)


def _named(name: str, limit_bytes: int | None) -> Policy:
    if name not in POLICIES:
        raise InvalidInputError(f"{name!r} is no policy: they are {', '.join(POLICIES)}", param="policy")
    return POLICIES[name](limit_bytes)


def _order(result: PolicyResult) -> tuple[int, int, str]:
    return result.num_failures, result.peak_reserved_bytes, result.name


def _row(result: PolicyResult) -> str:
    time_us = "–" if result.time_us is None else f"{result.time_us:.1f}"
    calls = "–" if result.num_upstream_calls is None else f"{result.num_upstream_calls:,}"
    return (
        f"{result.name:<21}{format_bytes(result.peak_reserved_bytes):>11}{_share(result.waste):>8}"
        f"{_share(result.internal):>9}{_share(result.external):>9}{calls:>8}{result.num_failures:>7,}{time_us:>5}"
    )


def _share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
