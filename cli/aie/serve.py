"""`aie serve`: the default model, or the ones named, behind an OpenAI-compatible HTTP server."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.engine_flags import Activations, Kernels, KVDtype, Lenient, MaxPrefillTokens, Quantize
from aie.log_format import json_line

if TYPE_CHECKING:
    from aie.settings import ServeSettings

__all__ = ["register", "serve"]


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Alias (see `aie models`), .gguf file or safetensors folder; none: the default, pulled on first use.",
        ),
    ] = None,
    repository: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Serve the newest version of every model in DIR: MODEL/VERSION/… (`aie reload`)."
        ),
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The same, and load what appears there: write to NAME.tmp, then rename."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [8000]")] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            help="Answer the open inference protocol over gRPC here, too; needs `pip install 'aie[grpc]'`. [off]"
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. [auto]")] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads of an engine. [all cores]")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="1: engine in a process of its own; 0: in the server's process, for debugging; more: of an encoder, "
            "classifier or image model. [1]"
        ),
    ] = None,
    kernels: Kernels = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            help="Most requests computed in one step. [64; 32 in a batch of an encoder, classifier or image model]"
        ),
    ] = None,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens computed in one step. [512; 4096 in a batch of texts of an encoder or classifier]"
        ),
    ] = None,
    max_prefill_tokens: MaxPrefillTokens = None,
    max_wait_ms: Annotated[
        float | None,
        typer.Option(
            help="How long a batch of an encoder, classifier or image model waits for company; generation never "
            "waits. [5]"
        ),
    ] = None,
    batcher: Annotated[
        str | None,
        typer.Option(
            help="Batches of such a model: dynamic (as large as come in time), static (full ones, "
            "or after a second) or passthrough (one request each). [dynamic]"
        ),
    ] = None,
    max_queue: Annotated[
        int | None,
        typer.Option(
            help="Most requests waiting before new ones get 503. [256; 1024 of an encoder, classifier or image model]"
        ),
    ] = None,
    queue_policy: Annotated[
        str | None,
        typer.Option(
            help="When the queue of an encoder, classifier or image model is full: reject, block (wait for room) or "
            "drop-oldest. [reject]"
        ),
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option(
            help="How that model's batcher waits for work: block, spin (burns a core) or hybrid, which spins at high "
            "load. [block]"
        ),
    ] = None,
    share_weights: Annotated[
        bool | None,
        typer.Option(
            "--share-weights/--no-share-weights",
            help="Several workers of such a model map one copy of its packed weights. [share]",
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer together. [what model and KV memory allow]")
    ] = None,
    kv_memory: Annotated[str | None, typer.Option(help="Memory for the KV cache, such as 512MiB. [768MiB]")] = None,
    kv_dtype: KVDtype = None,
    activations: Activations = None,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Compute what prompts begin with alike once, and keep it while there is memory. [prefix-cache]",
        ),
    ] = None,
    speculate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Guess up to N tokens ahead, from what the text has said already, and check them in one step, while "
            "that saves time; the answer stays the same. 0: never. [8]",
        ),
    ] = None,
    quantize: Quantize = None,
    lenient: Lenient = None,
    api_key: Annotated[
        str | None, typer.Option(help="Ask for `Authorization: Bearer KEY`. Better given as AIE_API_KEY.")
    ] = None,
    rate_limit: Annotated[
        float | None, typer.Option(help="Requests per second and client; more get 429. [no limit]")
    ] = None,
    deadline_s: Annotated[float | None, typer.Option(help="Seconds after which a request ends with 504. [300]")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that running requests get after SIGTERM. [30]")] = None,
    metrics_prefix: Annotated[
        str | None, typer.Option(help="Prefix of metric names; `vllm:` suits existing boards. [aie_]")
    ] = None,
    slow_request_s: Annotated[
        float | None,
        typer.Option(help="Log where the time went of each request that took longer than so many seconds."),
    ] = None,
    memdebug: Annotated[
        bool | None,
        typer.Option("--memdebug", help="Record where every KV block and allocation comes from; see /debug/memory."),
    ] = None,
    memdebug_sample: Annotated[
        int | None, typer.Option(help="With --memdebug: record one in so many allocations. [1]")
    ] = None,
    memory_log: Annotated[
        Path | None, typer.Option(help="With --memdebug: write every allocation here, for `aie memdebug replay`.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text for people, or json: every line an object, for programs. [text]")
    ] = None,
    log_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="A line in the log after every N batches of a model: sizes, queue, memory, tokens/s. 0: never. [100]",
        ),
    ] = None,
    otel_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send spans of every request to this OpenTelemetry collector, such as http://localhost:4318; needs "
            "`pip install 'aie[otel]'`. [as the OTEL_* variables say]",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with these settings; variables AIE_* and flags win over it.")
    ] = None,
) -> None:
    """Serve models over HTTP: /v1/chat/completions, /v1/completions, /v1/embeddings, /health, /metrics and more.

    Try it:  curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    flags: dict[str, object] = {
        "models": tuple(models) if models else None,
        "repository": str(repository) if repository is not None else None,
        "watch": str(watch) if watch is not None else None,
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "device": device,
        "threads": threads,
        "workers": workers,
        "kernels": kernels,
        "quantize": quantize,
        "lenient": tuple(lenient) if lenient else None,
        "max_batch_size": max_batch_size,
        "max_batch_tokens": max_batch_tokens,
        "max_prefill_tokens": max_prefill_tokens,
        "max_wait_ms": max_wait_ms,
        "max_queue": max_queue,
        "batcher": batcher,
        "queue_policy": queue_policy,
        "waiting": waiting,
        "share_weights": share_weights,
        "max_seq_len": max_seq_len,
        "kv_memory": kv_memory,
        "kv_dtype": kv_dtype,
        "activations": activations,
        "prefix_cache": prefix_cache,
        "speculate": speculate,
        "api_key": api_key,
        "rate_limit": rate_limit,
        "deadline_s": deadline_s,
        "grace_s": grace_s,
        "metrics_prefix": metrics_prefix,
        "slow_request_s": slow_request_s,
        "memdebug": memdebug,
        "memdebug_sample": memdebug_sample,
        "memory_log": str(memory_log) if memory_log is not None else None,
        "log_level": log_level,
        "log_format": log_format,
        "log_every": log_every,
        "otel_endpoint": otel_endpoint,
    }
    _run(flags, config)


def _run(flags: Mapping[str, object], config: Path | None) -> None:
    from aie.assemble import set_up_logging
    from aie.settings import load_settings
    from aie_engine import AieError

    try:
        settings = load_settings(flags, config_file=config)
        log = set_up_logging(settings.log_level, settings.log_format)
    except AieError as error:
        if (flags["log_format"] or os.environ.get("AIE_LOG_FORMAT")) != "json":
            raise
        typer.echo(json_line(time.time(), "error", "aie.serve", str(error)), err=True)
        raise typer.Exit(error.exit_code) from None
    try:
        _serve(settings, log.line)
    except Exception as error:
        if settings.log_format != "json":
            raise
        raise typer.Exit(_tell(error)) from None
    finally:
        log.close()


def _tell(error: Exception) -> int:
    """Why the server ended, as a line of the log, and the exit code."""
    import logging

    from aie_engine import AieError

    is_known = isinstance(error, AieError | OSError)
    logging.getLogger("aie.serve").error("%s", error, exc_info=None if is_known else error)
    return error.exit_code if isinstance(error, AieError) else 3 if is_known else 1


def _serve(settings: "ServeSettings", say: Callable[[str], None]) -> None:
    from aie.predictors import describe
    from aie.service import build_service
    from aie_engine import freeze_what_lives
    from aie_reliability import Drain

    started_s = time.monotonic()
    service = build_service(settings, report=say)
    drain = Drain(service.begin_drain, service.in_progress, grace_s=settings.grace_s)
    drain.install()
    try:
        service.server.start()
        for model in service.server.models:
            info = model.engine.info
            say(
                f"{info.model_name}: {info.kernels} kernels, {info.num_threads} threads, contexts of up to "
                f"{info.max_seq_len} tokens, KV cache for {info.num_kv_blocks * info.block_size} tokens"
            )
        for predictor in service.predictors:
            say(describe(predictor))
        if service.server.grpc_port is not None:
            say(f"gRPC on port {service.server.grpc_port}")
        freeze_what_lives()
        say(f"Ready after {time.monotonic() - started_s:.1f} s on {service.server.url} (Ctrl-C to stop)")
        drain.wait()
        say(
            f"Draining: {service.in_progress()} requests in flight get up to {settings.grace_s:g} s. "
            "A second signal ends at once."
        )
        left = drain.run()
        say("Stopped." if left == 0 else f"Stopped; {left} requests were cut off after the grace time.")
    finally:
        service.close()


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve", short_help="Serve models behind an OpenAI-compatible HTTP API.")(serve)
