"""Two situations that averages hide, on a server of our own with the default model, each with and without its remedy.

    python benchmarks/scenarios.py [--only prefix|long] [--rounds 3]

prefix: 32 clients whose prompts begin with the same 400 tokens, with the prefix cache and without it. The ratio of the
    median times to first token says what the cache is worth; with prompts that share nothing it says what it costs.
long: 16 clients are reading streams when a prompt of 4,000 tokens arrives. How long do they wait for their next token,
    against the same 16 alone? P99 over all gaps between tokens, and the time to first token of the long prompt.
"""

import argparse
import asyncio
import statistics
import sys

from aie.bench.client import Outcome, send_streaming
from aie.bench.load import Sampler, run_level
from aie.bench.report import summarize
from aie.bench.statistics import percentile
from aie.bench.target import Target, own_server, reach
from aie.bench.workload import PlannedRequest, plan_requests
from aie.version import versions

CLIENTS, PREFIX_TOKENS = 32, 400
READERS, LONG_TOKENS = 16, 4000


def request_body(target: Target, request: PlannedRequest) -> dict[str, object]:
    return {"model": target.model, "prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip


def level(target: Target, requests: list[PlannedRequest], clients: int) -> float:
    """Median time to first token in ms. Raises SystemExit when a request failed."""
    sampler = Sampler(target.endpoint, None, lambda: None)
    row = summarize(
        asyncio.run(run_level(target.endpoint, target.model, requests, clients, sampler=sampler, timeout_s=300))
    )
    if row.failed or row.ttft.p50 is None:
        raise SystemExit(f"{row.failed} requests failed: {row.errors}")
    return row.ttft.p50


def prefix(rounds: int) -> None:
    """Time to first token with a shared prefix and without, with the cache and without."""
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for flag in ("--prefix-cache", "--no-prefix-cache"):
            with own_server([flag]) as (url, pid):
                target = reach(url, None, None, pid)
                level(target, plan_requests(4, input_tokens=(64, 96), output_tokens=(4, 8), seed=99), 2)
                for shared in (PREFIX_TOKENS, 0):
                    # As many tokens either way: what differs is whether they are the same ones.
                    own = (16, 64) if shared else (16 + PREFIX_TOKENS, 64 + PREFIX_TOKENS)
                    requests = plan_requests(
                        3 * CLIENTS, input_tokens=own, output_tokens=(16, 32), seed=number, shared_prefix=shared
                    )
                    found = level(target, requests, CLIENTS)
                    times.setdefault((flag, shared), []).append(found)
                    print(
                        f"round {number + 1} {flag:18} {shared:3} tokens shared: TTFT p50 {found:7.0f} ms", flush=True
                    )
    for shared in (PREFIX_TOKENS, 0):
        on, off = (statistics.median(times[flag, shared]) for flag in ("--prefix-cache", "--no-prefix-cache"))
        print(f"prefix: {CLIENTS} clients, {shared} tokens shared: TTFT p50 {off:.0f} → {on:.0f} ms, {off / on:.2f}×")


async def read_along(
    target: Target, requests: list[PlannedRequest], long: PlannedRequest | None
) -> tuple[list[Outcome], Outcome | None]:
    """All of `requests` at once; the long one when they have had time to get going."""

    def send(request: PlannedRequest):
        return send_streaming(target.endpoint, "/v1/completions", request_body(target, request), timeout_s=300)

    readers = [asyncio.create_task(send(request)) for request in requests]
    await asyncio.sleep(3.0)
    late = None if long is None else await send(long)
    return [await reader for reader in readers], late


def long_prompt(rounds: int) -> None:
    """Gaps between tokens of the readers, alone and with the long prompt arriving."""
    alone: list[float] = []
    along: list[float] = []
    first: list[float] = []
    for number in range(rounds):
        with own_server([]) as (url, pid):
            target = reach(url, None, None, pid)
            level(target, plan_requests(4, input_tokens=(64, 96), output_tokens=(4, 8), seed=99), 2)
            for with_long in (False, True):
                requests = plan_requests(READERS, input_tokens=(32, 64), output_tokens=(256, 256), seed=number)
                [long] = plan_requests(
                    1, input_tokens=(LONG_TOKENS, LONG_TOKENS), output_tokens=(8, 8), seed=1000 + number
                )
                outcomes, late = asyncio.run(read_along(target, requests, long if with_long else None))
                failed = [one.error for one in [*outcomes, *([late] if late else [])] if one.error is not None]
                if failed:
                    raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
                gaps = [gap for one in outcomes for gap in one.gaps_s]
                p99 = 1e3 * (percentile(gaps, 0.99) or 0.0)
                (along if with_long else alone).append(p99)
                text = f"round {number + 1} {'with' if with_long else 'without'} the long prompt: ITL p99 {p99:6.1f} ms"
                if late is not None and late.ttft_s is not None:
                    first.append(late.ttft_s)
                    text += f", {late.num_prompt_tokens} tokens had their first token after {late.ttft_s:.1f} s"
                print(text, flush=True)
    before, after = statistics.median(alone), statistics.median(along)
    print(
        f"long: {READERS} readers, a prompt of {LONG_TOKENS} tokens: ITL p99 {before:.1f} → {after:.1f} ms, "
        f"{after / before:.2f}×; its own first token after {statistics.median(first):.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("prefix", "long"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.only != "long":
        prefix(options.rounds)
    if options.only != "prefix":
        long_prompt(options.rounds)
    print(", ".join(f"{key} {value}" for key, value in versions().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
