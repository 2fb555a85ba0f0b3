"""Stage 6 by itself: the same avalanche without and with protection, a breaker that trips, a bucket that runs dry."""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from aie_engine import AieError, EngineClient, EngineConfig, LocalEngine, demo_model, run_program
from aie_reliability.breaker import CircuitBreaker
from aie_reliability.config import ReliabilityConfig
from aie_reliability.errors import RefusedError
from aie_reliability.gate import AdmissionGate
from aie_reliability.overload import Avalanche, Tally, measure_capacity
from aie_reliability.rate_limit import RateLimiter
from aie_server import AdmitRequest

_CLIENTS = 4  # at once while the capacity is measured, and admitted at once when protected
_MAX_TOKENS = 16
_MAX_ARRIVALS = 200  # each is a thread, so a fast engine gets a short avalanche
_OVERLOAD = 4.0  # arrivals come this many times faster than the engine can serve them


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration and returns the exit code."""
    parser = argparse.ArgumentParser(prog="aie_reliability", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each avalanche at most")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path, what = demo_model(Path(folder))
        engine = LocalEngine(EngineConfig(path, max_batch_size=64, max_queue=4096), report=print)
        try:
            print(f"Model: {what}; {engine.info.kernels} kernels, {engine.info.num_threads} threads.\n")
            _overload(engine, options.seconds)
        finally:
            engine.close()
    _breaker()
    _bucket()
    return 0


def _overload(engine: EngineClient, seconds: float) -> None:
    measure_capacity(engine, clients=_CLIENTS, max_tokens=_MAX_TOKENS, duration_s=0.3)  # warm-up
    capacity, mean_s = measure_capacity(engine, clients=_CLIENTS, max_tokens=_MAX_TOKENS, duration_s=1.5)
    patience_s = 2.0 * mean_s
    seconds = min(seconds, _MAX_ARRIVALS / (_OVERLOAD * capacity))
    print(
        f"1. Overload. Measured with {_CLIENTS} clients: {capacity:.1f} requests/s, {mean_s * 1e3:.0f} ms each. Now "
        f"{_OVERLOAD * capacity:.0f} requests/s arrive for {seconds:.1f} s,\n   and each client hangs up after "
        f"{patience_s * 1e3:.0f} ms, twice what a request takes on a calm day.\n"
    )
    gate = AdmissionGate(ReliabilityConfig(max_in_flight=_CLIENTS))
    request = AdmitRequest(client_key="demo", path="/v1/completions")

    def guarded() -> AbstractContextManager[object]:
        return gate.admit(request)

    print(f"   {'':<22}{'in time':>8}{'in vain':>9}{'refused':>9}{'time to say no':>16}{'goodput':>13}")
    for name, admit in (("everybody is let in", nullcontext), (f"at most {_CLIENTS} in flight", guarded)):
        avalanche = Avalanche(engine, max_tokens=_MAX_TOKENS, patience_s=patience_s)
        _print_tally(name, avalanche.run(_OVERLOAD * capacity, seconds, admit))
    print(
        "\n   Without a door, everybody shares the engine, everybody becomes slow, and answers come after clients\n"
        "   have gone. With one, those who are in are served as on a calm day, and the others know at once.\n"
    )


def _print_tally(name: str, tally: Tally) -> None:
    refusal = f"{1e3 * sum(tally.refused_s) / len(tally.refused_s):.2f} ms" if tally.refused_s else "–"
    print(
        f"   {name:22}{len(tally.in_time_s):>8}{tally.num_late:>9}{len(tally.refused_s):>9}{refusal:>16}"
        f"{tally.goodput:>9.1f} r/s"
    )


def _breaker() -> None:
    now_s = 0.0  # a clock that only we move: thirty seconds pass in no time
    breaker = CircuitBreaker(threshold=3, recovery_s=30.0, clock=lambda: now_s)
    print("2. Circuit breaker (threshold 3, recovery 30 s, on a clock moved by hand).\n")
    script = [(1.0, "failure"), (2.0, "failure"), (3.0, "failure"), (4.0, "-"), (20.0, "-"), (33.0, "failure"),
              (40.0, "-"), (63.0, "success"), (64.0, "success")]  # fmt: skip
    for now_s, outcome in script:  # the clock above reads it
        try:
            permit = breaker.acquire()
        except RefusedError as refusal:
            print(f"   {now_s:5.0f} s   refused at once ({refusal.code}, try again in {refusal.retry_after_s:.0f} s)")
            continue
        probe = " (the probe)" if now_s >= 33 and breaker.state.value == "half_open" else ""
        (permit.failure if outcome == "failure" else permit.success)()
        print(f"   {now_s:5.0f} s   called{probe}: {outcome}; now {breaker.state.value}")
    print()


def _bucket() -> None:
    limiter = RateLimiter(rate_per_s=5.0, burst=4)
    verdicts = []
    start_s = time.perf_counter()
    for _ in range(8):
        try:
            limiter.check("client")
            verdicts.append("yes")
        except AieError as refusal:
            verdicts.append(str(refusal.status))
    took_us = 1e6 * (time.perf_counter() - start_s) / 8
    answers = " ".join(verdicts)
    print(f"3. Token bucket (5 per second, burst of 4), eight requests in a row: {answers}; {took_us:.1f} µs each.")


if __name__ == "__main__":
    run_program(main)
