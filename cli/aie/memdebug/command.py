"""The command line of `aie memdebug`: every flag, and which kind of work it chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.memdebug.routing import mode_of, script_of

if TYPE_CHECKING:
    from aie.memdebug.load import Load
    from aie.memdebug.outputs import Outputs

__all__ = ["memdebug"]

_DEFAULT_REQUESTS = 24


def memdebug(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Alias, file or folder; with --url, a model of the server. [default]"),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="How many requests to send, the warm-up among them. [24; with --url none]")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="How many of them are open at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Same seed, same traffic.")] = 0,
    cancel: Annotated[float, typer.Option(help="Share of the requests that are cancelled; over HTTP, hung up.")] = 0.2,
    fail: Annotated[
        float, typer.Option(help="Share that fails: deadlines in mid-answer, refused prompts and fields.")
    ] = 0.05,
    after: Annotated[
        int | None, typer.Option(help="Requests of warm-up; growth counts from there. [a tenth, at least a window]")
    ] = None,
    fail_if_growth: Annotated[
        str | None,
        typer.Option(
            help="Exit code 1 when memory grew by more than this after the warm-up (RSS: in both halves): 1MiB."
        ),
    ] = None,
    kernels: Annotated[str | None, typer.Option(help="native, numpy or auto.")] = None,
    url: Annotated[str | None, typer.Option(help="Look into a live server that was started with --memdebug.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Bearer key for the server.")] = None,
    drill: Annotated[
        str | None, typer.Option(help="Plant a leak and find it: exception, cycle, cache or logger.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Write the last snapshot, for `aie memdebug diff`.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Log every allocation to this file, for `aie memdebug replay`.")
    ] = None,
    flamegraph: Annotated[
        Path | None, typer.Option(help="Write what is held as collapsed stacks, for flame graphs.")
    ] = None,
    memory_viz: Annotated[
        Path | None, typer.Option(help="Write a snapshot that PyTorch's memory_viz page opens.")
    ] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write memory over time as counters for Perfetto.")] = None,
) -> None:
    """Run unkind traffic with every byte accounted for, and name what leaks, its owner and the line of code.

    A share of the requests is cancelled, a share fails. Afterwards everything that they held must be back. What is not,
    or what grows in each half of the run, is a leak. Exit code 0 when there is none, 1 when there is.

    \b
      aie memdebug                               traffic on the default model
      aie memdebug --requests 10000 --concurrency 32
      aie memdebug --requests 2000 --after 500 --fail-if-growth 1MiB   (CI)
      aie memdebug --url http://127.0.0.1:8000   a server: aie serve --memdebug
      aie memdebug --url http://127.0.0.1:8000 --requests 200
      aie memdebug -- train.py --epochs 3        your program with aie_tensor
      aie memdebug --json out.json -- train.py
      aie memdebug --drill cache                 a leak planted and found

    \b
      aie memdebug watch [--url URL]             a server, again and again
      aie memdebug diff A B                      snapshots (--snapshot A)
      aie memdebug replay LOG                    a log (--record LOG) against
                                                 other allocators

    Each of the last three has a --help of its own.
    """
    mode = mode_of(ctx)
    outputs = _outputs(json_path, snapshot, flamegraph, memory_viz, perfetto, record)
    if mode == "drill":
        from aie.memdebug.drill import run_named_drill

        assert drill is not None
        outputs.check()
        raise typer.Exit(0 if run_named_drill(drill, requests=requests, seed=seed, json_path=json_path) else 1)
    if mode == "script":
        from aie.memdebug.script import run_script

        program, *arguments = script_of(ctx) or ()
        outputs.check()
        raise typer.Exit(run_script(Path(program), arguments, outputs))
    if mode == "url":
        from aie.memdebug.remote_run import look_or_run

        assert url is not None
        load = None if requests is None else _load(requests, concurrency, cancel, fail, seed, after, fail_if_growth)
        outputs.check()
        raise typer.Exit(0 if look_or_run(url, model, api_key, load, outputs) else 1)
    from aie.memdebug.local_run import run_locally

    wanted = _DEFAULT_REQUESTS if requests is None else requests
    load = _load(wanted, concurrency, cancel, fail, seed, after, fail_if_growth)
    outputs.check()
    raise typer.Exit(0 if run_locally(model, kernels, load, outputs) else 1)


def _outputs(
    json_path: Path | None,
    snapshot: Path | None,
    flamegraph: Path | None,
    memory_viz: Path | None,
    perfetto: Path | None,
    record: Path | None,
) -> "Outputs":
    from aie.memdebug.outputs import Outputs

    return Outputs(json_path, snapshot, flamegraph, memory_viz, perfetto, record)


def _load(
    requests: int,
    concurrency: int,
    cancel: float,
    fail: float,
    seed: int,
    after: int | None,
    limit: str | None,
) -> "Load":
    from aie.memdebug.load import Load, check_load
    from aie.memdebug.traffic import Mix
    from aie.settings import parse_bytes

    limit_bytes = None if limit is None else parse_bytes(limit, param="fail-if-growth")
    load = Load(requests, concurrency, Mix(cancel, fail, seed), after, limit_bytes)
    check_load(load)
    return load
