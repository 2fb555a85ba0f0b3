"""Pictures of a graph are well-formed in their languages and show every node and arrow."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np

from aie_loader import Graph, Node, infer_shapes
from aie_loader.rendering import render_dot, render_mermaid, render_svg, render_text
from aie_tensor import Matrix

ODD = 'a "b" <c> & #d\\e'


def graph() -> Graph:
    weights = {"w": Matrix.from_array(np.zeros((4, 4), np.float32)), "n": Matrix.from_array(np.zeros(4, np.float32))}
    nodes = [
        Node("sum", "add", (ODD, "h")),
        Node(ODD, "linear", ("h", "w")),
        Node("h", "rms_norm", ("x", "n"), {"eps": 1e-5}),
        Node("part.y", "relu", ("sum",)),
    ]
    return infer_shapes(Graph(("x",), nodes, ("part.y",), weights), {"x": ("T", 4)})


def test_svg_is_xml_with_a_box_per_node_and_a_path_per_arrow() -> None:
    root = ET.fromstring(render_svg(graph()))
    space = {"s": "http://www.w3.org/2000/svg"}
    texts = ["".join(text.itertext()) for text in root.iterfind(".//s:g/s:text", space)]
    assert ODD in texts and "F32 4×4" in texts and texts.count("[T, 4]") == 5
    assert len(root.findall("s:g", space)) == 5 and len(root.findall("s:path", space)) == 5
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iterfind(".//s:g/s:rect", space):
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + w <= width and y >= 0 and y + h <= height


def test_boxes_of_a_level_do_not_overlap() -> None:
    nodes = [Node(f"n{i}", "relu", ("x",)) for i in range(6)] + [Node("y", "concat", tuple(f"n{i}" for i in range(6)))]
    picture = render_svg(Graph(("x",), nodes, ("y",)))
    boxes = [
        tuple(map(float, found)) for found in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height', picture)
    ]
    row = sorted((x, w) for x, y, w in boxes if sum(other[1] == y for other in boxes) == 6)
    assert len(row) == 6 and all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(row))


def test_dot_and_mermaid_escape_names() -> None:
    dot, mermaid = render_dot(graph()), render_mermaid(graph())
    assert dot.count(" -> ") == mermaid.count(" --> ") == 5
    assert r"a \"b\" <c> & #d\\e" in dot
    assert "a #quot;b#quot; #lt;c#gt; & #35;d" in mermaid and mermaid.startswith("flowchart TD\n")


def test_a_prefix_shows_a_part_and_what_it_reads() -> None:
    part = render_mermaid(graph(), "part.")
    assert part.count("-->") == 1 and '(["input<br/>sum' in part and "relu<br/>part.y" in part


def test_names_that_no_xml_may_hold_and_commands_to_a_terminal() -> None:
    hostile = (
        "</svg><script>alert(1)</script>",
        "\x00",
        "\x1b[31m",
        "\u202eback",
        "two\nlines",
        "\ufffe",
        "\ud800",
        "",
    )
    before, nodes = "x", []
    for name in hostile:
        nodes.append(Node(name, "relu", (before,)))
        before = name
    chain = infer_shapes(Graph(("x",), nodes, (before,)), {"x": ("B", 3)})
    root = ET.fromstring(render_svg(chain).encode())
    assert not list(root.iter("{http://www.w3.org/2000/svg}script")) and "\\x1b[31m" in "".join(root.itertext())
    for render in (render_svg, render_dot, render_mermaid, render_text):
        assert set(re.findall(r"[\x00-\x1f\u202e\ufffe\ud800]", render(chain))) <= {"\n"}
    assert render_text(chain).count("\n") == 2 + len(hostile)
