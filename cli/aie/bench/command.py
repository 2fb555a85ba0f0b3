"""The command line of the load test."""

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.bench.routing import Router
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie.bench.options import BenchOptions
    from aie.bench.target import Target

__all__ = ["bench", "models_to_serve", "register"]


def bench(
    url: Annotated[
        str | None, typer.Option(help="Server to test, such as http://127.0.0.1:8000. None: start one for the test.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to name, or to serve when there is no --url. [the server's first; the default]"),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="completions, chat; a model that answers at once: embeddings, infer, predict; or plain http. "
            "[completions]"
        ),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(help="Several at once, with their shares: chat:smollm2-135m=0.7,embeddings:minilm-l6=0.3."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Closed loop: clients at once; several levels by comma. [1,8,32]")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop: requests per second, whatever became of others; 5, several as 1,2,5, a ramp 1-20, or in "
            "steps 2x30s,10x10s,2x30s, of which each may be a ramp. With --turns: conversations that begin."
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="With --rate: constant, poisson or gamma.")] = "poisson",
    burstiness: Annotated[
        float, typer.Option(help="With --arrivals gamma: below 1 requests come in bursts, above 1 evenly.")
    ] = 1.0,
    max_in_flight: Annotated[
        int | None, typer.Option(help="With --rate: most requests under way; the wait counts in the latencies.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests per level. [4 × the level, at least 8; at once: as many as 5 s hold; of a mix 10 s]"
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds per level after which no new request is sent. [--rate: 30; a probe of --find-max: 20]"
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Of texts: uniform, lognormal, fixed, or file:PATH with a line for each request: tokens of input and "
            "output. [generated: uniform; at once: lognormal]"
        ),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(help="Text length in tokens, roughly: 128 or 64-192. [64-192; at once: 3-176, fixed 30]"),
    ] = None,
    output_tokens: Annotated[str, typer.Option(help="Answer length in tokens: 64 or 32-96.")] = "32-96",
    shared_prefix: Annotated[
        int, typer.Option(min=0, help="Tokens that all prompts of a level begin with, such as a system prompt has.")
    ] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay real traffic: Mooncake's JSON lines or BurstGPT's CSV; to --requests or --duration."),
    ] = None,
    time_scale: Annotated[float, typer.Option(help="With --trace: 2 is half as fast, 0.5 twice.")] = 1.0,
    length_scale: Annotated[float, typer.Option(help="With --trace: 0.1 is a tenth of its tokens.")] = 1.0,
    turns: Annotated[
        int, typer.Option(help="With --endpoint chat: turns of a conversation; each sends all that was said so far.")
    ] = 1,
    think_s: Annotated[float, typer.Option(help="With --turns: seconds between an answer and the next turn.")] = 0.0,
    path: Annotated[str | None, typer.Option(help="With --endpoint http: where on the server. [/]")] = None,
    method: Annotated[
        str | None, typer.Option(help="With --endpoint http. [POST where there is a --body, else GET]")
    ] = None,
    body: Annotated[str | None, typer.Option(help="With --endpoint http: text, or @FILE.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="With --endpoint http: 'Name: value'; repeatable.")] = None,
    cancel: Annotated[
        str | None,
        typer.Option(
            help="Clients that hang up: 0.1@20tok is a tenth of them, after 20 tokens; 0.1@0 once all is sent."
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="What is promised: ttft<500ms,tpot<50ms of each request; ttft_p99<500ms of a run; of answers in one "
            "piece e2e_p99<50ms; of a part of a mix …<50ms@embeddings."
        ),
    ] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="With --slo: look for the highest rate that keeps it.")
    ] = False,
    stop: Annotated[
        bool | None,
        typer.Option(
            "--stop/--no-stop",
            help="End a rate early that saturates the server, or can not keep the --slo of --find-max any more, and "
            "leave out higher ones. [--stop with several rates and --find-max]",
        ),
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="The engine alone, in this process: no server, no HTTP.")
    ] = False,
    repeat: Annotated[int, typer.Option(help="Measure all levels so often, and print means with intervals.")] = 1,
    processes: Annotated[
        int, typer.Option(help="Of the load generator: more where one would use a core up; load and schedule stay.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    timeout_s: Annotated[float, typer.Option(help="Seconds after which a request counts as failed.")] = 300.0,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
    metrics_url: Annotated[
        str | None,
        typer.Option(help="Where the server's /metrics are, if not at --url, such as http://127.0.0.1:8002 of Triton."),
    ] = None,
    serve_args: Annotated[
        str, typer.Option(help="Flags for the server that is started, such as '--threads 2 --kernels numpy'.")
    ] = "",
    ui: Annotated[
        str | None,
        typer.Option(
            help="While it runs: live (a picture on the terminal), plain lines, or none. [live on a terminal]"
        ),
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    rows_path: Annotated[
        Path | None, typer.Option("--rows", help="Also write every single request to this file, as JSON lines.")
    ] = None,
    markdown_path: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the report to this file, as Markdown.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Also write it as one page with charts that needs no network.")
    ] = None,
) -> None:
    """Load-test a server: throughput, latency, memory and batch size, by clients or by rate.

    Closed loop (--concurrency): every client sends its next request when the last is answered. Open loop (--rate):
    requests go out when they are due, and latencies count from then. TTFT is the time to the first text, ITL the time
    between two events with text, TPOT the mean time per token after the first, E2E the time to the last byte. What was
    refused, late or cut stays in the count of requests; percentiles of too few samples are not printed. Answers in one
    piece (embeddings, infer, predict, plain http) have E2E alone; how full batches were and why they were cut is said
    where the server tells. --mix sends several side by side, and has a row for each part. Energy is of the whole
    machine, where it tells. The knee is the level of most throughput per latency. Ctrl-C ends the test and not its
    report.

    Exit code 0; 1 when a request failed, or --find-max found no rate that holds; 2 for flags and files that are not as
    they should be; 3 where nobody answers at --url or a file cannot be written; 130 when it was interrupted.

    \b
      aie bench                                  a server of its own
      aie bench --url http://127.0.0.1:8000 --rate 1,2,5 --slo "ttft<500ms"
      aie bench --mix chat:smollm2-135m=0.7,embeddings:minilm-l6=0.3 --rate 4
      aie bench --url http://127.0.0.1:8080 --endpoint http --path /search?q=a
      aie bench compare A.json B.json            two files of --json: faster,
                                                 slower, or no difference shown
    """
    from aie.bench.interrupts import interrupts_kept
    from aie.bench.measure import nothing_measured, run_test
    from aie.bench.options import MIX, BenchOptions
    from aie.bench.outputs import Outputs
    from aie.bench.sources import Sources

    endpoint = endpoint or ("completions" if mix is None else MIX)
    outputs = Outputs(json_path, rows_path, markdown_path, html_path)
    options = BenchOptions(
        url=url, model=model, endpoint=endpoint, concurrency=concurrency, rate=rate, arrivals=arrivals,
        burstiness=burstiness, max_in_flight=max_in_flight, requests=requests, duration=duration, lengths=lengths,
        input_tokens=input_tokens, output_tokens=output_tokens, shared_prefix=shared_prefix, cancel=cancel, slo=slo,
        find_max=find_max, repeat=repeat, seed=seed, timeout_s=timeout_s, api_key=api_key, serve_args=serve_args,
        rows_path=rows_path, engine=engine, trace=trace, time_scale=time_scale, length_scale=length_scale, turns=turns,
        think_s=think_s, ui=ui, processes=processes, mix=mix, path=path, method=method, body=body,
        headers=tuple(header or ()), metrics_url=metrics_url, stop=stop,
    )  # fmt: skip
    sources = Sources.of(options)
    outputs.check()
    if engine:
        if markdown_path is not None or html_path is not None:
            raise InvalidInputError("--markdown and --html are about a server; --engine writes --json.")
        from aie.bench.engine_alone import run_engine

        outputs.write(run_engine(options), [])
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupts_kept())
        try:
            target = _target(stack, options)
        except KeyboardInterrupt:
            measured = nothing_measured(options)
        else:
            measured = run_test(target, options, sources)
        # Before a server of ours is stopped: who is impatient and presses Ctrl-C again has the files already.
        outputs.write(measured.document, measured.requests)
    if measured.broken is not None:
        raise measured.broken
    if not measured.document["complete"]:
        raise typer.Exit(130)
    raise typer.Exit(1 if measured.failed else 0)


def _target(stack: contextlib.ExitStack, options: "BenchOptions") -> "Target":
    """The server that runs, or one that is started here and stopped with `stack`."""
    from aie.bench.target import own_server, reach

    if options.url is not None:
        # Of the last two the model may be named, or there is none; other servers than OpenAI's kind have them, too.
        lists = not set(options.endpoints) <= {"http", "infer", "predict"}
        target = reach(options.url, options.model, options.api_key, lists=lists)
        if options.endpoint == "http":
            target.model = ""
    else:
        models = models_to_serve(options)
        url, pid = stack.enter_context(own_server([*models, *shlex.split(options.serve_args)]))
        target = reach(url, None, options.api_key, pid)
    if options.metrics_url is not None:
        target.look_at(options.metrics_url)
    return target


def models_to_serve(options: "BenchOptions") -> list[str]:
    """Those of the test, each looked at here: what is pulled shows its progress. Raises `InvalidInputError` for one
    that has not the endpoint."""
    from aie.assemble import DEFAULT_MODEL, find_model
    from aie.bench.mix import models_of
    from aie.bench.options import GENERATE
    from aie_loader import is_predictor

    asked = [(part.endpoint, part.model) for part in options.parts] or [(options.endpoint, options.model)]
    for endpoint, model in asked:
        if endpoint != "http" and is_predictor(find_model(model)) == (endpoint in GENERATE):
            others = "embeddings, infer or predict" if endpoint in GENERATE else "completions or chat"
            raise InvalidInputError(
                f"{model or 'the default model'} has no {endpoint}; test it with {others}.", param="endpoint"
            )
    if not options.parts:
        return [options.model] if options.model else []
    return models_of(options.parts, DEFAULT_MODEL)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", cls=Router, short_help="Load-test a server: throughput, latency, memory.")(bench)
