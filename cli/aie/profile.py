"""`aie profile`: where a step's time goes, operator by operator, and how far that is from this machine's best."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, note, write_json
from aie_engine import EnvironmentLacksError, InvalidInputError

if TYPE_CHECKING:
    from rich.table import Table

    from aie_engine.profiling import Peaks, StepProfile

__all__ = ["profile", "register"]

_MORE_THAN_ALL = 1.05  # of a roofline; below that it is the noise of two measurements


def profile(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, file or folder. [the default model]")
    ] = None,
    batch: Annotated[str, typer.Option(help="Sequences that decode together; several by comma.")] = "1,8,32",
    context: Annotated[int, typer.Option(min=0, help="Tokens behind each of them.")] = 128,
    prompt: Annotated[int, typer.Option(min=0, help="Tokens of a prompt; 0: none.")] = 512,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="How long each kind of step is measured.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads. [all cores]")] = None,
    quantize: Annotated[
        str, typer.Option(metavar="KIND", help="Weights as fp32, fp16, bf16, int8 or int4. [as the file has them]")
    ] = "file",
    kv_dtype: Annotated[str, typer.Option(help="Keys and values as fp32, fp16 or int8.")] = "fp32",
    activations: Annotated[str, typer.Option(help="fp32 or int8, as the products read them.")] = "fp32",
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Also write the steps for Perfetto (ui.perfetto.dev).")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Time, operations and bytes of every kind of operator, in a prompt and in batches that decode.

    First this machine's own limits are measured: fused multiply-adds that touch no memory, and reading that computes
    nothing. An operator's share of the roofline is the time that these limits leave it over the time that it took.
    Bytes are those of weights and of the KV cache, which must come from memory; activations should stay in the caches.
    Nothing else should run meanwhile.
    """
    for flag, path in (("--trace", trace), ("--json", json_path)):
        if path is not None:
            check_writable(path, flag=flag)
    if trace is not None and json_path is not None and trace.resolve() == json_path.resolve():
        raise InvalidInputError(f"--trace and --json name the same file, {trace}; give each its own.", param="trace")
    batches = _parse_batches(batch)
    profiles, peaks, unshown = _measure(
        model, batches, context, prompt, seconds, threads, quantize, kv_dtype, activations
    )  # fmt: skip
    if trace is not None:
        from aie_engine.profiling import trace_events

        write_json(trace, trace_events(profiles), flag="--trace")
    if json_path is not None:
        write_json(json_path, _as_json(profiles, peaks))
    if unshown is not None:
        raise unshown


def _parse_batches(text: str) -> list[int]:
    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        batches = [0]
    if any(not 1 <= size <= 1024 for size in batches):
        raise InvalidInputError(f"--batch is {text!r}; give numbers from 1 to 1024 such as 1,8,32.", param="batch")
    return list(dict.fromkeys(batches))


def _measure(
    model: str | None,
    batches: Sequence[int],
    context: int,
    prompt: int,
    seconds: float,
    threads: int | None,
    quantize: str,
    kv_dtype: str,
    activations: str,
) -> "tuple[list[StepProfile], Peaks, OSError | None]":
    from aie.assemble import find_model
    from aie.bench.show import shown
    from aie_engine import EngineConfig, available_cores
    from aie_engine.profiling import StepProfiler, measure_peaks
    from aie_loader import find_precision, is_predictor, load_model
    from aie_tensor import OutOfMemoryError, native

    path = find_model(model)
    if is_predictor(path):
        raise InvalidInputError(f"{model} generates no text; `aie bench` says where its time goes.", param="model")
    # The engine's own checks of these words, and its messages.
    EngineConfig(path, precision=None if quantize == "file" else quantize, kv_dtype=kv_dtype, activations=activations)  # type: ignore[arg-type]
    num_threads = threads or available_cores()
    lib = native.load(report=note)
    loaded = load_model(path)
    try:
        profiler = StepProfiler(
            loaded, lib, num_threads=num_threads, max_tokens=max(prompt, *batches), max_sequences=max(batches),
            max_context=max(prompt, context + 1), precision=None if quantize == "file" else find_precision(quantize),
            kv_dtype=kv_dtype, activations=activations, report=note,  # type: ignore[arg-type]  # checked above
        )  # fmt: skip
        try:
            peaks = measure_peaks(lib, num_threads, profiler.weight_bytes)
            head = (
                f"{loaded.name}, {num_threads} threads, {lib.isa}: at most {peaks.flops / 1e9:.0f} GFLOP/s in fp32 and "
                f"{peaks.read / 1e9:.1f} GB/s from memory; weights {profiler.weight_bytes / 1e6:.0f} MB packed"
            )
            unshown = shown(lambda: print(head))
            profiles = [profiler.prompt(prompt, seconds)] if prompt else []
            for size in batches:
                profiles.append(profiler.decode(size, context, seconds))
            unshown = shown(lambda: _print(profiles, peaks)) or unshown
        finally:
            profiler.close()
    except OutOfMemoryError:
        raise EnvironmentLacksError(
            "The weights and a KV cache for the largest --batch with its --context do not fit into memory; give less."
        ) from None
    finally:
        loaded.close()
    return profiles, peaks, unshown


def _print(profiles: "Sequence[StepProfile]", peaks: "Peaks") -> None:
    from aie.bench.show import context, print_view

    for one in profiles:
        print_view(_table(one, peaks))
    print(" · ".join(f"{key} {value}" for key, value in context().items()))
    if any((op.roofline_share(peaks) or 0.0) > _MORE_THAN_ALL for one in profiles for op in one.ops):
        print(
            "More than 100 % of a roofline: the machine was busier when its limits were measured, or what an operator "
            "reads lay in a cache. Measure again when nothing else runs."
        )


def _table(step: "StepProfile", peaks: "Peaks") -> "Table":
    from rich import box
    from rich.table import Table

    tokens = step.shape.num_tokens
    rate = tokens / step.seconds
    computed, fetched = step.cost.flops / step.seconds, step.cost.nbytes / step.seconds
    view = Table(
        title=f"{step.name}: {step.seconds * 1e3:.2f} ms, {rate:.0f} tokens/s; {computed / 1e9:.0f} GFLOP/s are "
        f"{computed / peaks.flops:.0%} of the peak, {fetched / 1e9:.1f} GB/s {fetched / peaks.read:.0%}",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False,
    )  # fmt: skip
    for name in ("operator", "calls", "ms", "of step", "GFLOP/s", "GB/s", "of roofline"):
        view.add_column(name, justify="left" if name == "operator" else "right", no_wrap=True)
    for op in step.ops:
        share = op.roofline_share(peaks)
        flops, nbytes = (
            op.cost.flops / op.seconds if op.seconds else 0,
            op.cost.nbytes / op.seconds if op.seconds else 0,
        )
        view.add_row(
            op.name, str(op.calls), f"{op.seconds * 1e3:.3f}", f"{op.seconds / step.seconds:.1%}",
            f"{flops / 1e9:.0f}" if op.cost.flops else "–", f"{nbytes / 1e9:.1f}" if op.cost.nbytes else "–",
            "–" if share is None else f"{share:.0%}",
        )  # fmt: skip
    outside = step.seconds - sum(op.seconds for op in step.ops)
    view.add_row("outside the plan", "", f"{outside * 1e3:.3f}", f"{outside / step.seconds:.1%}", "–", "–", "–")
    return view


def _as_json(profiles: "Sequence[StepProfile]", peaks: "Peaks") -> dict[str, object]:
    from aie.bench.show import context

    return {
        "context": context(),
        "peak_flops": peaks.flops,
        "peak_read_bytes_per_s": peaks.read,
        "steps": [
            {
                "name": step.name, "tokens": step.shape.num_tokens, "seconds": step.seconds, "runs": step.runs,
                "flops": step.cost.flops, "bytes": step.cost.nbytes,
                "flops_share": step.cost.flops / step.seconds / peaks.flops,
                "read_share": step.cost.nbytes / step.seconds / peaks.read,
                "operators": [
                    {"name": op.name, "calls": op.calls, "seconds": op.seconds, "flops": op.cost.flops,
                     "bytes": op.cost.nbytes, "roofline_share": op.roofline_share(peaks)}
                    for op in step.ops
                ],
            }
            for step in profiles
        ],
    }  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("profile", short_help="Where a step's time goes.")(profile)
