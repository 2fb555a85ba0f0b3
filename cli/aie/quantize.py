"""`aie quantize`: a model in another precision, and what each precision costs."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import byte_progress, check_writable, format_bytes, note, write_json

if TYPE_CHECKING:
    from aie_engine.evaluation import Price
    from aie_loader import Model, Precision

__all__ = ["check_figures_apart", "export", "open_language_model", "quantize", "register"]


def quantize(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, file or folder. [the default model]")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="fp32, fp16, bf16, int8, int8-64, int8-row or int4."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A .gguf file, or a folder for safetensors (fp32, fp16 and bf16 only)."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Measure what it costs: with --out of what was written, else of every kind.")
    ] = False,
    lenient: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Let a named difference from a file format's rules through; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is at PATH already.")] = False,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="For --check: most tokens of each of the five texts. [all, some 400]")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads for --check. [all cores]")] = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="KIND", help="fp16 or int8: for --check, each kind with such a KV cache, too.")
    ] = "fp32",
    activations: Annotated[
        str, typer.Option(metavar="KIND", help="int8: for --check, each kind with activations in eight bits, too.")
    ] = "fp32",
    kernels: Annotated[str, typer.Option(help="native, numpy or auto, for --check.")] = "auto",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Write a model in another precision, or show what each would cost: bytes, time, distance from fp32.

    \b
    int8       groups of 32 weights share a scale: 8.5 bits per weight
    int8-64    groups of 64 share one, int8-row whole rows: coarser, but stored as int8 is, so no smaller
    int4       groups of 32 share a scale and a minimum: 5 bits; the embedding table and the head stay int8
    Vectors stay fp32. Rows that do not fill groups of 32 become fp16.

    \b
    aie quantize --check                               every kind of the default model, side by side
    aie quantize --check --activations int8            and what activations in eight bits cost on top
    aie quantize model/ --to int4 --out model.gguf     write one
    """
    from aie_engine import InvalidInputError
    from aie_loader import find_precision

    if (to is None) != (out is None):
        raise InvalidInputError("--to and --out go together: what to make, and where to put it.", param="to")
    if to is None and not check:
        raise InvalidInputError("Say what to make (--to KIND --out PATH), or --check to compare all kinds.", param="to")
    if kernels not in ("auto", "native", "numpy"):
        raise InvalidInputError(f"--kernels is {kernels!r}; choose auto, native or numpy.", param="kernels")
    precision = None if to is None else find_precision(to, param="--to")
    if kv_dtype not in ("fp32", "fp16", "int8"):
        raise InvalidInputError(f"--kv-dtype is {kv_dtype!r}; choose fp32, fp16 or int8.", param="kv_dtype")
    if activations not in ("fp32", "int8") or (activations == "int8" and kernels == "numpy"):
        raise InvalidInputError(
            f"--activations is {activations!r}; choose fp32, or int8 with native kernels.", param="activations"
        )
    if json_path is not None:
        check_writable(json_path)
    loaded = open_language_model(model, lenient)
    try:
        document: dict[str, object] = {"model": str(loaded.path)}
        check_figures_apart(json_path, loaded, out)
        if precision is not None and out is not None:
            document |= export(loaded, out, precision, force=force)
        if check:
            prices = _prices(
                loaded, None if precision is None else [precision], kernels, threads, tokens, activations, kv_dtype
            )
            document["prices"] = [asdict(price) for price in prices]
        if json_path is not None:
            write_json(json_path, document)
    finally:
        loaded.close()


def open_language_model(name: str | None, lenient: Sequence[str] | None = None) -> "Model":
    """InvalidInputError for a model that does not generate: those have no writer yet."""
    from aie.assemble import find_model
    from aie_engine import InvalidInputError
    from aie_loader import find_leniency, is_predictor, load_model

    path, allowed = find_model(name), find_leniency(lenient or ())
    if is_predictor(path, lenient=allowed):
        raise InvalidInputError(f"{path} is an encoder or a classifier; only language models can be written.")
    return load_model(path, lenient=allowed)


def check_figures_apart(json_path: Path | None, loaded: "Model", out: Path | None) -> None:
    """InvalidInputError where --json would put figures in place of the model that is read, or of what is written."""
    from aie_engine import InvalidInputError

    if json_path is None:
        return
    models = [loaded.path, *_files(loaded.path)] + ([] if out is None else [out])
    if json_path.resolve() in {path.resolve() for path in models}:
        raise InvalidInputError(f"--json {json_path} is a file of the model; choose another name.", param="--json")


def export(loaded: "Model", out: Path, precision: "Precision | None", *, force: bool) -> dict[str, object]:
    """Writes, with progress, and says what came out. The figures as a document."""
    from aie_loader import WeightConverter, export_model

    if precision is not None:
        WeightConverter(loaded.graph, precision, note=note)  # says what cannot be in this precision
    written = export_model(loaded, out, precision, force=force, progress=byte_progress(f"Writing {out}"))
    size = sum(path.stat().st_size for path in _files(written))
    before = format_bytes(loaded.weight_bytes)
    print(f"{written}: {format_bytes(size)}, from weights of {before}; read back and found to be the same.")
    return {"out": str(written), "precision": precision.name if precision else None, "bytes": size}


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]


def _prices(
    loaded: "Model",
    chosen: "list[Precision] | None",
    kernels: str,
    threads: int | None,
    tokens: int | None,
    activations: str,
    kv_dtype: str,
) -> "list[Price]":
    from aie_engine import available_cores
    from aie_engine.evaluation import price_precisions

    num_threads = threads or available_cores()
    note("Measuring: the built-in text in fp32 first, then in each precision …")
    prices = price_precisions(
        loaded,
        chosen,
        kernels=kernels,  # type: ignore[arg-type]  # checked above
        num_threads=num_threads,
        max_tokens=tokens,
        activations=activations,  # type: ignore[arg-type]  # checked above
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked above
        report=note,
        arrived=lambda price: note(f"  {price.precision}: perplexity {price.perplexity:.3f}"),
    )
    _print_prices(prices, loaded)
    return prices


def _print_prices(prices: "list[Price]", loaded: "Model") -> None:
    """The table, less than 80 columns wide, and what it needs to be read rightly."""
    widths = {"size": 10, "bits": 6, "step": 7, "KL mean": 8, "KL max": 8, "same": 8, "perplexity": 11}
    print("weights    ", *(f"{name:>{width}}" for name, width in widths.items()))
    for price in prices:
        print(
            f"{price.precision:<11} {format_bytes(price.weight_bytes):>10} {price.bits_per_weight:>6.2f} "
            f"{'×' + format(price.step_share, '.2f'):>7} {price.mean_kl:>8.2g} {price.max_kl:>8.2g} "
            f"{100 * price.agreement:>6.1f} % {price.perplexity:>11.3f}"
        )
    print()
    if any(price.precision.endswith(" a8") for price in prices):
        print("a8: activations in eight bits, too, as with --activations int8.")
    if any(" kv" in price.precision for price in prices):
        print("kv16, kv8: keys and values in the cache in as many bits, as with --kv-dtype.")
    for line in _explained(prices[0], loaded):
        print(textwrap.fill(line, 100, subsequent_indent="  "))


def _explained(first: "Price", loaded: "Model") -> list[str]:
    low_ms, high_ms = (1e3 * seconds for seconds in first.step_quartiles_s)
    lines = [
        f"step: time to decode one token of one sequence, {first.num_threads} threads, {first.kernels} kernels: the "
        f"median of {first.num_rounds}, in turns with the file's own weights, which take {first.step_s * 1e3:.1f} ms "
        f"(half of them between {low_ms:.1f} and {high_ms:.1f}; far apart, the machine was busy and ratios are rough).",
        f"KL: nats per token against fp32, on {first.num_positions} tokens of built-in text. same: how often both like "
        "the same token best. bits: per weight.",
    ]
    if first.kernels == "numpy":
        lines.append("NumPy expands all weights to fp32, so here every kind takes the same time.")
    blocks = sorted({weight.dtype.name for weight in loaded.graph.weights.values() if weight.dtype.is_quantized})
    if blocks:
        lines.append(
            f"The file itself is quantized ({', '.join(blocks)}), so fp32 is what its blocks stand for. What was lost "
            "when it was made is not seen here, and a kind that keeps its blocks as they are differs in nothing."
        )
    return lines


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("quantize", short_help="Write a model in another precision, or price them all.")(quantize)
