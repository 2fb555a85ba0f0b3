"""Stage 2 by itself: a real model file, what is in it, and the graph that it becomes. No network; a few seconds.

`python -m aie_loader [MODEL]`, `python stages/02_loader` and `aie stage 2` are the same.
"""

import argparse
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

import psutil

from aie_loader.demo_header import show_header
from aie_loader.demo_trace import show_trace
from aie_loader.errors import GraphError, ModelFileError, ModelNotFoundError
from aie_loader.formats import open_gguf, open_safetensors, read_gguf_header
from aie_loader.graph import Graph, Node
from aie_loader.liveness import bound_nbytes, lifetimes, plan_memory
from aie_loader.model import Model, load_model
from aie_loader.passes import fuse
from aie_loader.rendering import render_text
from aie_loader.repository import resolve
from aie_loader.tiny import write_tiny_gguf
from aie_tensor import AieError, run_program

_DEFAULT = "smollm2-135m"
_CUT_BYTES = 3 << 20
_TEXT = "Kahn sorted 62 graphs."
_TRACED = "The capital of France is"
_STEP_TOKENS = 512


def main(argv: Sequence[str] | None = None) -> int:
    """Load a model and show its file, its graph before and after fusion, the sort, and what is refused."""
    parser = argparse.ArgumentParser(prog="aie_loader", description="Stage 2: files into an executable graph.")
    parser.add_argument("model", nargs="?", help="alias, .gguf file or safetensors folder (default: the real model)")
    options = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="aie-") as scratch:
            path = _choose(options.model, Path(scratch))
            resident = psutil.Process().memory_info().rss
            model = load_model(path)
            grown_bytes = psutil.Process().memory_info().rss - resident
            show_header(path if path.is_file() else next(path.glob("*.safetensors")))
            show_file(model, grown_bytes)
            show_text(model)
            show_graph(model)
            show_sort()
            show_memory_plan(model)
            show_trace(model, _TRACED)
            show_refusals(path if path.is_file() else next(path.glob("*.safetensors")), Path(scratch))
            model.close()
    except AieError as error:
        print(f"aie_loader: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _choose(name: str | None, scratch: Path) -> Path:
    if name is not None:
        return resolve(name)
    try:
        path = resolve(_DEFAULT)
    except ModelNotFoundError:
        print(f"The real model is not in the cache (`aie pull {_DEFAULT}`): this is a tiny one, made up on the spot.\n")
        return write_tiny_gguf(scratch / "tiny.gguf")
    print(f"This is the real model, {_DEFAULT}.\n")
    return path


def show_file(model: Model, grown_bytes: int) -> None:
    """Header facts, tensors by type, and what loading cost."""
    print("2. The file\n")
    file_bytes = model.path.stat().st_size if model.path.is_file() else 0
    if model.format == "gguf":
        header = read_gguf_header(model.path)
        print(
            f"   {model.path.name}: GGUF version {header.version}, {file_bytes:,} bytes, of which the first "
            f"{header.data_offset:,} are\n   the header: {len(header.metadata)} keys and {len(header.tensors)} "
            f"tensor rows; tensors are aligned to {header.alignment} bytes.\n"
        )
    else:
        print(f"   {model.path.name}: safetensors, {len(model.checkpoint.tensors)} tensors\n")
    tensors = model.checkpoint.tensors.values()
    print("   type   tensors          values           bytes   bits per value")
    for dtype, count in Counter(matrix.dtype for matrix in tensors).most_common():
        num_values = sum(prod(matrix.shape) for matrix in tensors if matrix.dtype is dtype)
        num_bytes = sum(matrix.nbytes for matrix in tensors if matrix.dtype is dtype)
        print(f"   {dtype.name:<6} {count:>7} {num_values:>15,} {num_bytes:>15,}   {8 * num_bytes / num_values:>14.1f}")
    print(
        f"\n   Loaded in {1e3 * model.load_seconds:.0f} ms. The weights are {model.weight_bytes / 1e6:.1f} MB in the "
        f"file; memory grew by {grown_bytes / 1e6:.1f} MB\n   (header, tokenizer, graph): the file is mapped, "
        "and a page of it comes in when a kernel touches it.\n"
    )


def show_text(model: Model) -> None:
    """The tokenizer that was rebuilt from the file."""
    ids = model.tokenizer.encode(_TEXT)
    pieces = " | ".join(model.tokenizer.token_text(token) for token in ids)
    print(f"3. The tokenizer, {model.tokenizer.vocab_size:,} tokens\n\n   {_TEXT!r} -> {pieces}\n   ids {ids}\n")


def show_graph(model: Model) -> None:
    """One layer of the graph, before and after fusion."""
    graph, fused = model.graph, fuse(model.graph)
    print(f"4. The graph: {len(graph.nodes)} operators, of which layer 0 (T tokens in the step)\n")
    print(_clipped(render_text(graph, "blk.0.")))
    print(f"\n   The same layer after fusion; {len(fused.nodes)} operators in all\n")
    print(_clipped(render_text(fused, "blk.0.")))
    print()


def _clipped(text: str, width: int = 118) -> str:
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False)


def show_sort() -> None:
    """Kahn's algorithm on a handful of nodes, with its ledger."""
    edges = {"add": ("x", "down"), "down": ("mul",), "mul": ("silu", "up"), "silu": ("gate",), "gate": ("norm",),
             "up": ("norm",), "norm": ("x",)}  # fmt: skip
    graph = Graph(("x",), [Node(name, "op", inputs) for name, inputs in edges.items()], ("add",))
    print("5. Kahn's algorithm: take a node that waits for nothing, and cross it off where it is read\n")
    print(f"   {'taken':<6} | still waiting for " + " ".join(f"{name:>5}" for name in edges))
    for node, waiting in graph.steps():
        print(f"   {node.name:<6} |                   " + " ".join(f"{waiting[name]:>5}" for name in edges))
    broken = [Node("norm", "op", ("x", "mul")) if node.name == "norm" else node for node in graph.nodes]
    try:
        Graph(("x",), broken, ("add",)).sorted()
    except GraphError as error:
        print(f"\n   With an edge from mul back to norm:\n{_wrapped(str(error))}\n")


def show_memory_plan(model: Model) -> None:
    """Where the activations lie, and what sharing by liveness saves."""
    fused = fuse(model.graph)
    lives = lifetimes(fused.sorted(), fused.outputs, bound_nbytes(fused, T=_STEP_TOKENS, R=1))
    plan = plan_memory(lives)
    print(
        f"6. The memory plan of layer 0, for {_STEP_TOKENS} tokens of one prompt: values that never live at the\n"
        "   same moment may lie at the same address\n"
    )
    print("      value                    bytes   from node   to node      at byte")
    for life in lives[:8]:
        offset = plan.offsets[life.name]
        print(f"      {life.name:<20} {life.nbytes:>9,} {life.first:>11} {life.last:>9} {offset:>12,}")
    apart = sum(life.nbytes for life in lives)
    print(
        f"\n   All {len(lives)} values together: {plan.total_bytes:,} bytes instead of {apart:,}; the largest "
        "moment decides,\n   not the number of layers.\n"
    )


def show_refusals(file: Path, scratch: Path) -> None:
    """The same file, cut short."""
    cut = scratch / f"cut{file.suffix}"
    with file.open("rb") as source:
        cut.write_bytes(source.read(min(_CUT_BYTES, file.stat().st_size * 2 // 3)))
    print(f"8. The first {cut.stat().st_size:,} bytes of the same file\n")
    try:
        (open_gguf if file.suffix == ".gguf" else open_safetensors)(cut)
    except ModelFileError as error:
        print(_wrapped(f"refused: {str(error).replace(str(scratch), '…')}"))


if __name__ == "__main__":
    run_program(main)
