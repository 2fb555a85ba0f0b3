"""Options of commands with an engine of their own, spelled and explained once."""

from typing import Annotated

import typer

__all__ = ["Activations", "KVDtype", "Kernels", "Lenient", "MaxPrefillTokens", "Quantize", "Threads"]

Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", help="Weights as fp32, fp16, bf16, int8, int8-64, int8-row or int4. [file: as it has them]"
    ),
]
KVDtype = Annotated[
    str | None, typer.Option(metavar="KIND", help="Cached keys and values as fp32, fp16 or int8. [fp32]")
]
Activations = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Activations as fp32 or, faster and no longer exact, as int8. [fp32]"),
]
Lenient = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Let a named difference from a file format's rules through; repeatable."),
]
MaxPrefillTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens of prompts in one step while answers are written: fewer make answers smoother and the first "
        "token of a long prompt later. 0: no limit but --max-batch-tokens. [256]",
    ),
]
Kernels = Annotated[str | None, typer.Option(help="native (C, compiled on first use), numpy, or auto. [auto]")]
Threads = Annotated[int | None, typer.Option(help="Compute threads. [all cores]")]
