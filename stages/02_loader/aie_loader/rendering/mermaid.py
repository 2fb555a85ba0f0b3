"""A graph in the language of Mermaid, which code forges draw inside Markdown."""

from aie_loader.graph import Graph
from aie_loader.rendering.elements import drawing

__all__ = ["render_mermaid"]


def render_mermaid(graph: Graph, prefix: str = "") -> str:
    """A `flowchart`; with `prefix` only the nodes whose names start so, and what they read."""
    picture = drawing(graph, prefix)
    lines = ["flowchart TD"]
    for box in picture.boxes:
        text = "<br/>".join(_escaped(line) for line in (f"{box.title}", *box.lines))
        opened, closed = ("([", "])") if box.title == "input" else ("[", "]")
        lines.append(f'  {box.id}{opened}"{text}"{closed}')
    lines += [f"  {source} --> {target}" for source, target in picture.arrows]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Entities as Mermaid writes them: a hash, not an ampersand."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
