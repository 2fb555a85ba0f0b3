"""The command line of the load test."""

import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, note, write_json
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie.bench.client import Outcome
    from aie.bench.load import LevelResult
    from aie.bench.report import Row
    from aie.bench.target import Target
    from aie.bench.workload import PlannedRequest

__all__ = ["bench", "print_table", "register"]


def bench(
    url: Annotated[
        str | None, typer.Option(help="Server to test, such as http://127.0.0.1:8000. None: start one for the test.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to name, or to serve when there is no --url. [the server's first; the default]"),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Clients at once; several levels by comma.")] = "1,8,32",
    requests: Annotated[int | None, typer.Option(help="Requests per level. [4 × the level, at least 8]")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds per level after which no new request is sent.")
    ] = None,
    input_tokens: Annotated[str, typer.Option(help="Prompt length in tokens, roughly: 128 or 64-192.")] = "64-192",
    output_tokens: Annotated[str, typer.Option(help="Answer length in tokens: 64 or 32-96.")] = "32-96",
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    timeout_s: Annotated[float, typer.Option(help="Seconds after which a request counts as failed.")] = 300.0,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
    serve_args: Annotated[
        str, typer.Option(help="Flags for the server that is started, such as '--threads 2 --kernels numpy'.")
    ] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Load-test an OpenAI-compatible server: QPS, latency, TTFT, TPOT, tokens/s, memory and batch size by concurrency.

    Closed loop: every client sends its next request when the last is answered. Latencies count from sending. TTFT is
    the time to the first text, TPOT the mean time per token after it. Exit code 1 when a request failed.
    """
    from aie.bench.workload import parse_lengths

    levels = _parse_levels(concurrency)
    lengths = parse_lengths(input_tokens, param="input-tokens"), parse_lengths(output_tokens, param="output-tokens")
    if requests is not None and requests < 1:
        raise InvalidInputError("--requests must be at least 1.", param="requests")
    if duration is not None and duration <= 0:
        raise InvalidInputError("--duration must be positive.", param="duration")
    if timeout_s <= 0:
        raise InvalidInputError("--timeout-s must be positive.", param="timeout-s")
    if url is not None and serve_args:
        raise InvalidInputError("--serve-args is for the server that the test starts; it does not go with --url.")
    if json_path is not None:
        check_writable(json_path)
    # `timeout` and service managers end a program with SIGTERM: as with Ctrl-C, no server of ours may stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plans = _plan(levels, requests, duration, lengths, seed)
    rows = _measure(url, model, api_key, serve_args, plans, duration, timeout_s, json_path)
    raise typer.Exit(1 if any(row.failed for row in rows) else 0)


def _measure(
    url: str | None,
    model: str | None,
    api_key: str | None,
    serve_args: str,
    plans: "dict[int, list[PlannedRequest]]",
    duration: float | None,
    timeout_s: float,
    json_path: Path | None,
) -> "list[Row]":
    import shlex

    from aie.assemble import find_model
    from aie.bench.target import own_server, reach

    rows: list[Row] = []
    complete = False
    with contextlib.ExitStack() as stack:
        pid = None
        if url is None:
            find_model(model)  # pulls the default here, where its progress can be seen
            url, pid = stack.enter_context(own_server([*([model] if model else []), *shlex.split(serve_args)]))
            model = None
        target = reach(url, model, api_key, pid)
        try:
            _run_levels(target, plans, duration, timeout_s, rows)
            complete = True
        except KeyboardInterrupt:
            note("Interrupted; what was measured so far follows, with a part of the requests in its last row.")
    print_table(rows)
    _print_footer(rows, target)
    if json_path is not None:
        write_json(
            json_path,
            {
                "complete": complete,
                "url": url,
                "model": target.model,
                "context": _context(),
                "levels": [row.as_json() for row in rows],
            },
        )
    if not complete:
        raise typer.Exit(130)
    return rows


def _run_levels(
    target: "Target",
    plans: "dict[int, list[PlannedRequest]]",
    duration: float | None,
    timeout_s: float,
    rows: "list[Row]",
) -> None:
    from aie.bench.load import Sampler, run_level
    from aie.bench.report import summarize

    names = asyncio.run(_batch_metric(target))
    # A warm-up in the shape of the run, not counted: the first requests of a server pay for page faults and caches.
    warm_up = next(iter(plans.values()))[:2]
    asyncio.run(
        run_level(
            target.endpoint,
            target.model,
            warm_up,
            2,
            timeout_s=timeout_s,
            sampler=Sampler(target.endpoint, None, lambda: None),
        )
    )
    for level, plan in plans.items():
        progress = _Progress(level, len(plan))
        sampler = Sampler(target.endpoint, names, target.rss_bytes)
        try:
            result = asyncio.run(
                run_level(
                    target.endpoint,
                    target.model,
                    plan,
                    level,
                    sampler=sampler,
                    timeout_s=timeout_s,
                    duration_s=duration,
                    on_done=progress.step,
                )
            )
        except KeyboardInterrupt:
            if progress.outcomes:
                rows.append(summarize(progress.so_far(sampler.peak_rss_bytes)))
            raise
        finally:
            progress.end()
        rows.append(summarize(result))


async def _batch_metric(target: "Target") -> tuple[str, str] | None:
    """The names of the counters from which the mean batch size follows, if the server has them."""
    from aie.bench.client import get_text

    try:
        _, text = await get_text(target.endpoint, "/metrics")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return None
    for prefix in ("aie_", "vllm:"):
        names = f"{prefix}engine_step_requests_total", f"{prefix}engine_steps_total"
        if all(f"\n{name}" in text for name in names):
            return names
    return None


def print_table(rows: "list[Row]") -> None:
    """The table on standard output. On a narrow terminal its lines wrap: a figure without its end would be wrong."""
    from rich.console import Console

    from aie.bench.report import table

    view = table(rows)
    console = Console()
    console.width = max(console.width, console.measure(view, options=console.options.update_width(200)).maximum)
    console.print(view)


class _Progress:
    """A line that counts answers: rewritten on a terminal, once per level elsewhere."""

    def __init__(self, level: int, total: int) -> None:
        self._label = f"{level} client{'s' if level > 1 else ''}"
        self._level = level
        self._total = total
        self.outcomes: list[Outcome] = []  # of requests that have ended
        self._start_s = time.monotonic()
        self._live = sys.stderr.isatty()

    def step(self, outcome: "Outcome") -> None:
        self.outcomes.append(outcome)
        if self._live:
            print(f"\r\x1b[K{self._text()}", end="", file=sys.stderr, flush=True)

    def so_far(self, peak_rss_bytes: int | None) -> "LevelResult":
        """What a level that is cut off has measured; requests still in flight are in no count."""
        from aie.bench.load import LevelResult

        return LevelResult(self._level, self.outcomes, time.monotonic() - self._start_s, peak_rss_bytes)

    def end(self) -> None:
        print(f"\r\x1b[K{self._text()}" if self._live else self._text(), file=sys.stderr, flush=True)

    def _text(self) -> str:
        return f"{self._label}: {len(self.outcomes)} of {self._total} done in {time.monotonic() - self._start_s:.1f} s"


def _parse_levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or any(not 1 <= level <= 4096 for level in levels):
        raise InvalidInputError(
            f"--concurrency is {text!r}; give numbers from 1 to 4096 such as 1,8,32.", param="concurrency"
        )
    return list(dict.fromkeys(levels))


def _plan(
    levels: list[int],
    requests: int | None,
    duration: float | None,
    lengths: tuple[tuple[int, int], tuple[int, int]],
    seed: int,
) -> "dict[int, list[PlannedRequest]]":
    from aie.bench.workload import plan_requests

    plans = {}
    for level in levels:
        # With a duration alone the clock decides; the plan only has to be long enough not to run dry.
        count = requests or (max(8, 4 * level) if duration is None else max(64, 64 * level))
        plans[level] = plan_requests(count, input_tokens=lengths[0], output_tokens=lengths[1], seed=seed * 7919 + level)
    return plans


def _print_footer(rows: "list[Row]", target: "Target") -> None:
    prompt, output = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows)
    print(
        f"{target.model} · {prompt} prompt and {output} output tokens · "
        + " · ".join(f"{k} {v}" for k, v in _context().items())
    )
    if any(row.answered < 100 for row in rows):
        print("P99 of fewer than 100 answers is the largest of them; raise --requests for a tail that means something.")
    for row in rows:
        for message, count in sorted(row.errors.items(), key=lambda item: -item[1])[:5]:
            print(f"{row.concurrency} clients: {count} × {message}")


def _context() -> dict[str, object]:
    """What a reader needs to place the figures."""
    from aie.version import versions

    return {**versions(), "python": platform.python_version(), "cpus": os.cpu_count()}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", short_help="Load-test a server: throughput, latency, memory.")(bench)
