"""A graph to look at: as text, as a picture, and in the languages of two programs that draw."""

from aie_loader.rendering.as_json import render_json
from aie_loader.rendering.dot import render_dot
from aie_loader.rendering.mermaid import render_mermaid
from aie_loader.rendering.svg import render_svg
from aie_loader.rendering.text import render_text, visible

__all__ = ["render_dot", "render_json", "render_mermaid", "render_svg", "render_text", "visible"]
