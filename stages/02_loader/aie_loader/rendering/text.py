"""A graph as text, one line per node, in the order in which it can be executed."""

from collections.abc import Iterator

from aie_loader.graph import Graph, Shape

__all__ = ["dims", "render_text", "short", "visible"]


def render_text(graph: Graph, prefix: str = "") -> str:
    """Inputs, nodes with shapes and constants, outputs; with `prefix` only the nodes whose names start so."""
    return "\n".join(map(visible, _lines(graph, prefix)))


def visible(text: str) -> str:
    """The text with an escape for each character that shows nothing: a file's names could hold commands to a terminal,
    line breaks, or what no XML may contain."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _lines(graph: Graph, prefix: str) -> Iterator[str]:
    if not prefix:
        weight_bytes = sum(matrix.nbytes for matrix in graph.weights.values())
        yield f"graph of {len(graph.nodes)} nodes, {len(graph.weights)} weights ({weight_bytes:,} bytes)"
        yield from (f"  input   {name} {dims(graph.shapes.get(name))}" for name in graph.inputs)
    order = [(index, node) for index, node in enumerate(graph.sorted()) if node.name.startswith(prefix)]
    width = max((len(node.name) for _, node in order), default=0)
    for index, node in order:
        arguments = ", ".join(_argument(graph, name) for name in node.inputs)
        attrs = "".join(f" {key}={short(value)}" for key, value in node.attrs.items())
        shape = dims(graph.shapes.get(node.name))
        yield f"  {index:>5}   {node.name:<{width}} {shape:<12} = {node.op}({arguments}){attrs}"
    if not prefix:
        yield from (f"  output  {name} {dims(graph.shapes.get(name))}" for name in graph.outputs)


def _argument(graph: Graph, name: str) -> str:
    matrix = graph.weights.get(name)
    return name if matrix is None else f"{name}:{matrix.dtype.name}{dims(matrix.shape)}"


def dims(shape: Shape | None) -> str:
    """`[T, 576]`; `[?]` where shapes were not inferred."""
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]"


def short(value: object) -> str:
    """A constant in a few characters: long tuples by their first number and their length."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple) and len(value) > 3:
        return f"({short(value[0])}, …{len(value)})"
    return str(value)
