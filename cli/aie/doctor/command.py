"""The command line of `aie doctor`."""

import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from aie.console import check_writable, write_json
from aie.doctor.finding import as_json, show
from aie_engine import InvalidInputError

__all__ = ["doctor", "register"]


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="With --live, what to serve; with --url, one of the server's. [default]"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Start a server, check how it serves, stop it.")] = False,
    url: Annotated[str | None, typer.Option(help="Check a server that runs; any OpenAI-compatible one.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --live or --url: a third of the time, and less certain.")
    ] = False,
    serve_args: Annotated[str, typer.Option(help="With --live: flags for the server, such as '--threads 2'.")] = "",
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
    port: Annotated[int, typer.Option(help="Without a server: port to look at.")] = 8000,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the findings to this file.")] = None,
) -> None:
    """Look at what serving needs, or at how a server serves, and say what to change.

    Alone: machine, kernels, models and port. Exit code 3 if serving would fail.

    With --live or --url it sends requests, at most 8 at once and for less than a minute, and judges: slow first
    request, unstable answers, low batch utilisation, flat throughput, P99 spikes, growing memory, refusals, and the
    limits of the machine. Exit code 1 if something is bad. Where others use the server, too, the verdicts are about
    their load as well.

    \b
      aie doctor
      aie doctor --live                          the default model
      aie doctor --live minilm-l6 --quick
      aie doctor --url http://127.0.0.1:8000
    """
    if url is not None and live:
        raise InvalidInputError("--url checks a server that runs, --live starts one; give one of them.", param="live")
    if url is None and not live:
        _refuse_without_server(model, quick, serve_args)
    if url is not None and serve_args:
        raise InvalidInputError(
            "--serve-args are for a server that is started; with --url none is.", param="serve_args"
        )
    if json_path is not None:
        check_writable(json_path)
    if url is None and not live:
        from aie.doctor.here import static_findings

        findings = static_findings(port)
        show(findings)
        if json_path is not None:
            write_json(json_path, as_json(findings))
        raise typer.Exit(3 if any(finding.level == "bad" for finding in findings) else 0)
    from aie.doctor.live import Wanted, examine

    # `timeout` and service managers end a program with SIGTERM: as with Ctrl-C, no server of ours may stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = examine(Wanted(model, url, quick, api_key, tuple(_split(serve_args))))
    if json_path is not None:
        write_json(json_path, report.as_json())
    if not report.complete:
        raise typer.Exit(130)
    raise typer.Exit(1 if any(finding.level == "bad" for finding in report.findings) else 0)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidInputError(f"--serve-args is {text!r}: {error}.", param="serve_args") from None


def _refuse_without_server(model: str | None, quick: bool, serve_args: str) -> None:
    given = {"MODEL": model is not None, "--quick": quick, "--serve-args": bool(serve_args)}
    for name in (name for name, is_given in given.items() if is_given):
        raise InvalidInputError(
            f"{name} is about a server: add --live to start one, or --url for one that runs.", param="live"
        )


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", short_help="Is everything here that serving needs, and does it serve well?")(doctor)
