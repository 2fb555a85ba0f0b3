"""`aie convert`: a model from GGUF to safetensors, or the other way."""

from pathlib import Path
from typing import Annotated

import typer

from aie.console import check_writable, write_json

__all__ = ["convert", "register"]


def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Alias, file or folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .gguf file, or a folder for safetensors.")],
    dtype: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="fp32, fp16, bf16 and, in GGUF, int8 or int4. [as the tensors are stored]"),
    ] = None,
    lenient: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Let a named difference from a file format's rules through; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is at OUT already.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Write a model in the other format, with tokenizer and chat template: weights, names and orders of rows as that
    format has them.

    Without --dtype nothing is rounded: tensors keep their type where the format can hold it, and blocks become fp32 in
    safetensors. A model that the format has no way to describe is refused.

    \b
    aie convert model/ model.gguf
    aie convert model.gguf model/ --dtype bf16
    """
    from aie.quantize import check_figures_apart, export, open_language_model
    from aie_loader import find_precision

    precision = None if dtype is None else find_precision(dtype, param="--dtype")
    if json_path is not None:
        check_writable(json_path)
    loaded = open_language_model(model, lenient)
    try:
        check_figures_apart(json_path, loaded, out)
        document = {"model": str(loaded.path), **export(loaded, out, precision, force=force)}
    finally:
        loaded.close()
    if json_path is not None:
        write_json(json_path, document)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("convert", short_help="Write a model as GGUF or safetensors.")(convert)
