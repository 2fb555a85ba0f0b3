"""The command line of the load test."""

import contextlib
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, note, write_json
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie.bench.at_once_report import AtOnceRow
    from aie.bench.report import Row
    from aie.bench.target import Target

__all__ = ["bench", "register"]

_ENDPOINTS = ("completions", "chat", "embeddings", "infer", "predict")
_GENERATE = ("completions", "chat")
_PROMPT = (64, 192)  # tokens, to models that generate
_SENTENCE = (3, 176)  # tokens; lognormal: around 23, with a mean of 30
_SENTENCE_MEAN = 30


def bench(
    url: Annotated[
        str | None, typer.Option(help="Server to test, such as http://127.0.0.1:8000. None: start one for the test.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to name, or to serve when there is no --url. [the server's first; the default]"),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="completions, chat; or a model that answers at once: embeddings, infer, predict.")
    ] = "completions",
    concurrency: Annotated[str, typer.Option(help="Clients at once; several levels by comma.")] = "1,8,32",
    requests: Annotated[
        int | None, typer.Option(help="Requests per level. [4 × the level, at least 8; at once: as many as 5 s hold]")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds per level after which no new request is sent.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Of texts: uniform, lognormal or fixed. [generated: uniform; at once: lognormal]"),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(help="Text length in tokens, roughly: 128 or 64-192. [64-192; at once: 3-176, fixed 30]"),
    ] = None,
    output_tokens: Annotated[str, typer.Option(help="Answer length in tokens: 64 or 32-96.")] = "32-96",
    shared_prefix: Annotated[
        int, typer.Option(min=0, help="Tokens that all prompts of a level begin with, such as a system prompt has.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    timeout_s: Annotated[float, typer.Option(help="Seconds after which a request counts as failed.")] = 300.0,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
    serve_args: Annotated[
        str, typer.Option(help="Flags for the server that is started, such as '--threads 2 --kernels numpy'.")
    ] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Load-test a server: QPS, latency, memory and batch size by concurrency; for text TTFT, TPOT and tokens/s, too.

    Closed loop: every client sends its next request when the last is answered. Latencies count from sending. TTFT is
    the time to the first text, TPOT the mean time per token after it. For models that answer at once the table says how
    full batches were, why they were cut, and where the knee of the curve is. Exit code 1 when a request failed.
    """
    from aie.bench.workload import LENGTHS, parse_lengths

    levels = _parse_levels(concurrency)
    for flag, value, known in (("endpoint", endpoint, _ENDPOINTS), ("lengths", lengths or "uniform", LENGTHS)):
        if value not in known:
            raise InvalidInputError(f"--{flag} is {value!r}; choose {', '.join(known)}.", param=flag)
    generates = endpoint in _GENERATE
    shape = lengths or ("uniform" if generates else "lognormal")
    bounds = _bounds(shape, generates) if input_tokens is None else parse_lengths(input_tokens, param="input-tokens")
    output_bounds = parse_lengths(output_tokens, param="output-tokens")
    _check_numbers(requests, duration, timeout_s)
    if url is not None and serve_args:
        raise InvalidInputError("--serve-args is for the server that the test starts; it does not go with --url.")
    if url is None and model is None and not generates:
        raise InvalidInputError(
            f"--endpoint {endpoint} needs a model that answers at once; name one, such as --model minilm-l6.",
            param="model",
        )
    if shared_prefix and not generates:
        raise InvalidInputError(f"--shared-prefix is for models that generate text; {endpoint} has no such prompts.")
    if json_path is not None:
        check_writable(json_path)
    # `timeout` and service managers end a program with SIGTERM: as with Ctrl-C, no server of ours may stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: Sequence[Row | AtOnceRow]
    knee: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        target = _target(stack, url, model, endpoint, api_key, serve_args)
        if generates:
            rows, complete = _streaming(
                target, levels, requests, duration, (bounds, output_bounds), seed, shape, shared_prefix, timeout_s,
                endpoint == "chat",
            )  # fmt: skip
        else:
            rows, complete, bend = _at_once(
                target, endpoint, levels, requests, duration, shape, bounds, seed, timeout_s
            )
            knee = {"knee": bend}
    if json_path is not None:
        from aie.bench.show import context

        write_json(
            json_path,
            {
                "complete": complete,
                "url": target.endpoint.url,
                "model": target.model,
                "endpoint": endpoint,
                "lengths": shape,
                "context": context(),
                "levels": [row.as_json() for row in rows],
                **knee,
            },
        )
    if not complete:
        raise typer.Exit(130)
    raise typer.Exit(1 if any(row.failed for row in rows) else 0)


def _check_numbers(requests: int | None, duration: float | None, timeout_s: float) -> None:
    if requests is not None and requests < 1:
        raise InvalidInputError("--requests must be at least 1.", param="requests")
    if duration is not None and duration <= 0:
        raise InvalidInputError("--duration must be positive.", param="duration")
    if timeout_s <= 0:
        raise InvalidInputError("--timeout-s must be positive.", param="timeout-s")


def _target(
    stack: contextlib.ExitStack,
    url: str | None,
    model: str | None,
    endpoint: str,
    api_key: str | None,
    serve_args: str,
) -> "Target":
    """The server that runs, or one that is started here and stopped with `stack`."""
    from aie.assemble import find_model
    from aie.bench.target import own_server, reach
    from aie_loader import is_predictor

    if url is not None:
        return reach(url, model, api_key)
    path = find_model(model)  # pulls the default here, where its progress can be seen
    if is_predictor(path) == (endpoint in _GENERATE):
        others = "embeddings, infer or predict" if endpoint in _GENERATE else "completions or chat"
        raise InvalidInputError(f"{model} has no {endpoint}; test it with --endpoint {others}.", param="endpoint")
    url, pid = stack.enter_context(own_server([*([model] if model else []), *shlex.split(serve_args)]))
    return reach(url, None, api_key, pid)


def _streaming(
    target: "Target",
    levels: list[int],
    requests: int | None,
    duration: float | None,
    bounds: tuple[tuple[int, int], tuple[int, int]],
    seed: int,
    shape: str,
    shared_prefix: int,
    timeout_s: float,
    chat: bool,
) -> "tuple[list[Row], bool]":
    from aie.bench.streaming_levels import plan_streaming, print_footer, print_table, run_streaming_levels

    rows: list[Row] = []
    plans = plan_streaming(levels, requests, duration, bounds, seed, shape, shared_prefix)
    complete = _until_interrupted(lambda: run_streaming_levels(target, plans, duration, timeout_s, rows, chat=chat))
    print_table(rows)
    print_footer(rows, target)
    return rows, complete


def _at_once(
    target: "Target",
    kind: str,
    levels: list[int],
    requests: int | None,
    duration: float | None,
    shape: str,
    bounds: tuple[int, int],
    seed: int,
    timeout_s: float,
) -> "tuple[list[AtOnceRow], bool, int | None]":
    """The last is the number of clients at the knee."""
    from aie.bench.at_once_levels import plan_at_once, run_at_once_levels, show_at_once
    from aie.bench.at_once_report import knee

    rows: list[AtOnceRow] = []
    plan = plan_at_once(
        target, kind, levels, requests=requests, duration_s=duration, shape=shape, input_tokens=bounds, seed=seed,
        timeout_s=timeout_s,
    )  # fmt: skip
    complete = _until_interrupted(lambda: run_at_once_levels(target, plan, rows))
    show_at_once(rows, plan, target)
    bend = knee(rows)
    return rows, complete, None if bend is None else bend.concurrency


def _until_interrupted(run: Callable[[], None]) -> bool:
    """False on Ctrl-C, which ends the measurement but not the report."""
    try:
        run()
    except KeyboardInterrupt:
        note("Interrupted; what was measured so far follows, with a part of the requests in its last row.")
        return False
    return True


def _bounds(shape: str, generates: bool) -> tuple[int, int]:
    """In tokens, where nobody says."""
    if generates:
        return _PROMPT
    return (_SENTENCE_MEAN, _SENTENCE_MEAN) if shape == "fixed" else _SENTENCE


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


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", short_help="Load-test a server: throughput, latency, memory.")(bench)
