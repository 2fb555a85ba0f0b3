"""`aie simulate`: the real batchers on a virtual clock, so that waits and buckets can be chosen before deployment."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, note, write_json
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_scheduler import SchedulerConfig, Workload

__all__ = ["register", "simulate"]

_MAX_SWEEP = 64  # simulations of one call


def simulate(
    policy: Annotated[str, typer.Option(help="dynamic, static, passthrough or continuous.")] = "dynamic",
    arrivals: Annotated[
        str, typer.Option(metavar="KIND|FILE.jsonl", help="poisson, burst, constant, or a recorded file.")
    ] = "poisson",
    rate: Annotated[str, typer.Option(help="Requests per second; several, as 50,100,200, give the curve.")] = "50",
    seconds: Annotated[float, typer.Option(help="Length of the traffic.")] = 60.0,
    lengths: Annotated[
        str, typer.Option(help="Tokens: lognormal(mu,sigma), fixed N or uniform a-b.")
    ] = "lognormal(3.9,0.8)",
    outputs: Annotated[str, typer.Option(help="Tokens generated, written alike; fixed 1 is a prediction.")] = "fixed 1",
    cost: Annotated[
        str | None, typer.Option(metavar="A+B*tokens", help="Cost of a batch, as 3ms+0.05ms*tokens.")
    ] = None,
    measure: Annotated[str | None, typer.Option(metavar="MODEL", help="Measure that cost here, on this model.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for --measure. [all cores]")] = None,
    max_batch_size: Annotated[int, typer.Option(help="Requests in a batch.")] = 32,
    max_batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch, padding included.")] = 8192,
    max_wait_ms: Annotated[str, typer.Option(help="How long the first waits for company; several: 0,5,20.")] = "20",
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; one more is refused.")] = 1024,
    max_len: Annotated[int, typer.Option(min=1, max=1 << 20, help="Longest text; longer ones are cut.")] = 512,
    buckets: Annotated[str, typer.Option(help="off, quantiles, quantiles:N, or edges as 32,64,128.")] = "off",
    padding: Annotated[str, typer.Option(help="longest, bucket, or packed (none).")] = "longest",
    preferred: Annotated[str, typer.Option(metavar="SIZES", help="Preferred batch sizes, as 4,8.")] = "",
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Wait only while company is to be expected.")] = False,
    shared_prefix: Annotated[
        int,
        typer.Option(min=0, max=1 << 20, help="Tokens that every text begins with, on top; continuous shares them."),
    ] = 0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 30, help="Size of the KV cache. [enough for a whole batch]")
    ] = None,
    patience_ms: Annotated[float | None, typer.Option(help="Deadline of each request, from its arrival.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Run the real batchers against made-up or recorded traffic: a minute of it in about a second.

    Every setting is shown twice: with the lengths as given, and with all equal to their mean, since equal lengths
    flatter a batcher. Times are as good as the cost of a batch: measure it (--measure) or state it (--cost).

    \b
    aie simulate --measure minilm-l6 --rate 20,40,80 --max-wait-ms 0,5,20
    aie simulate --cost 3ms+0.05ms*tokens --arrivals burst --buckets quantiles
    aie simulate --cost 3ms+0.05ms*tokens --arrivals recorded.jsonl --policy static
    aie simulate --cost 6ms+0.9ms*tokens --policy continuous --outputs "fixed 32" --rate 4 --shared-prefix 400

    \b
    A recorded file has a line per request, as {"arrival_s": 12.3, "length": 57}; also understood are output, priority,
    patience_s (until its deadline), client and model.
    """
    from aie.simulate_cost import measure_cost, parse_cost
    from aie.simulate_report import Row, print_report, to_document
    from aie_scheduler import SchedulerConfig, make_scheduler
    from aie_scheduler import simulate as run
    from aie_scheduler.traffic import equal_lengths

    if json_path is not None:
        check_writable(json_path)
    if (cost is None) == (measure is None):
        raise InvalidInputError(
            "give the cost of a batch: either --measure MODEL or, as an assumption, --cost 3ms+0.05ms*tokens.",
            param="cost",
        )
    waits_ms = _numbers(max_wait_ms, "max_wait_ms", low=0.0)
    kind, num_buckets, edges = _buckets(buckets)
    config = SchedulerConfig(
        policy=policy,  # type: ignore[arg-type]  # these words are checked by the configuration
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        max_queue=max_queue,
        num_blocks=0,
        max_seq_len=max_len,
        buckets=kind,  # type: ignore[arg-type]
        num_buckets=num_buckets,
        bucket_edges=edges or (max_len,),
        padding=padding,  # type: ignore[arg-type]
        preferred_sizes=tuple(int(size) for size in _numbers(preferred, "preferred", low=1)) if preferred else (),
        adaptive_wait=adaptive,
    )
    workloads = _workloads(arrivals, rate, seconds, (lengths, outputs), max_len, patience_ms, seed)
    if shared_prefix:
        workloads = {per_s: workload.with_shared_prefix(shared_prefix) for per_s, workload in workloads.items()}
    if len(waits_ms) * len(workloads) > _MAX_SWEEP:
        raise InvalidInputError(
            f"{len(waits_ms)} waits and {len(workloads)} rates are more than {_MAX_SWEEP} simulations; give fewer.",
            param="max_wait_ms",
        )
    generates = policy == "continuous" or any(
        request.output_len > 1 for workload in workloads.values() for request in workload.requests
    )
    if generates:
        config = _with_cache(config, workloads, kv_tokens)
    if cost is not None:
        step_cost, source = parse_cost(cost), "as stated, not measured"
    else:
        step_cost, miss = measure_cost(str(measure), num_threads=threads)
        source = f"measured here on {measure} (a line through several sizes, off by {100 * miss:.0f} % at worst)"
    started = time.perf_counter()
    rows = [
        Row(
            per_s,
            wait_ms,
            name,
            run(make_scheduler(replace(config, max_wait_ms=wait_ms), generates=generates), traffic, step_cost),
        )
        for per_s, workload in workloads.items()
        for wait_ms in waits_ms
        for name, traffic in (("as given", workload), ("all equal", equal_lengths(workload)))
    ]
    took_s = time.perf_counter() - started
    if json_path is not None:
        write_json(json_path, to_document(rows, config, step_cost, source, seed))
    print_report(rows, config, step_cost, source)
    note(f"\n{sum(row.report.makespan_s for row in rows):.0f} s of traffic simulated in {took_s:.1f} s")


def _numbers(text: str, param: str, *, low: float) -> list[float]:
    """`0,5,20` → [0.0, 5.0, 20.0], each once. Raises `InvalidInputError`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(low <= number < 1e9 for number in numbers):
        flag = "--" + param.replace("_", "-")
        raise InvalidInputError(
            f"{flag} is {text[:60]!r}; give numbers from {low:g} to below 1e9, as 5,10,20.", param=param
        )
    return list(dict.fromkeys(numbers))


def _buckets(text: str) -> tuple[str, int, tuple[int, ...]]:
    """Kind, number where they are quantiles, edges where they are fixed. Raises `InvalidInputError`."""
    kind, _, number = text.partition(":")
    if kind in ("off", "quantiles"):
        if number and not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= 64):
            raise InvalidInputError(f"--buckets is {text[:60]!r}; quantiles takes 1 to 64.", param="buckets")
        return kind, int(number or 4), ()
    return "fixed", 4, tuple(sorted({int(edge) for edge in _numbers(text, "buckets", low=1)}))


def _workloads(
    arrivals: str,
    rate: str,
    seconds: float,
    lengths: tuple[str, str],
    max_len: int,
    patience_ms: float | None,
    seed: int,
) -> "dict[float, Workload]":
    """Offered rate → traffic. Raises `InvalidInputError`."""
    from aie_scheduler.traffic import ARRIVALS, parse_lengths, read_workload, synthetic

    if arrivals.endswith(".jsonl"):
        recorded = read_workload(Path(arrivals), max_len=max_len)
        span_s = recorded.requests[-1].arrival_s
        return {len(recorded.requests) / span_s if span_s else float(len(recorded.requests)): recorded}
    if arrivals not in ARRIVALS:
        raise InvalidInputError(
            f"--arrivals is {arrivals[:60]!r}; take {', '.join(ARRIVALS)} or a file that ends in .jsonl.",
            param="arrivals",
        )
    if patience_ms is not None and not 0 < patience_ms < float("inf"):
        raise InvalidInputError(f"--patience-ms must be above 0, not {patience_ms:g}.", param="patience_ms")
    length, output = (
        parse_lengths(text, max_len=max_len, param=param)
        for text, param in zip(lengths, ("lengths", "outputs"), strict=True)
    )
    workloads = {
        per_s: synthetic(
            arrivals,
            rate_per_s=per_s,
            seconds=seconds,
            length=length,
            output=output,
            seed=seed,
            patience_s=None if patience_ms is None else patience_ms / 1e3,
        )
        for per_s in sorted(_numbers(rate, "rate", low=1e-6))
    }
    for per_s, workload in workloads.items():
        if not workload.requests:
            raise InvalidInputError(
                f"at {per_s:g} per second nobody came in {seconds:g} s; give a higher --rate or more --seconds.",
                param="rate",
            )
    return workloads


def _with_cache(
    config: "SchedulerConfig", workloads: "dict[float, Workload]", kv_tokens: int | None
) -> "SchedulerConfig":
    """Generations need room: context for the longest prompt and output, and blocks for a whole batch of those, unless
    the size of the cache is given.
    """
    longest = max(
        request.prompt_len + request.output_len for workload in workloads.values() for request in workload.requests
    )
    config = replace(config, max_seq_len=max(config.max_seq_len, longest + 1))
    num_blocks = config.blocks_for(config.max_seq_len) * config.max_batch_size
    return replace(config, num_blocks=num_blocks if kv_tokens is None else config.blocks_for(kv_tokens))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate", short_help="Try batching settings on a virtual clock.")(simulate)
