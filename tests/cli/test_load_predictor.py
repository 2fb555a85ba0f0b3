"""`aie load` on models that do not generate: a classifier in a graph file, and the real MiniLM where it is here."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aie.app import app
from aie_engine import AieError
from aie_loader import resolve


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["load", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_graph_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", **{"fc.weight": np.ones((3, 4), np.float32)})
    nodes = [{"name": "out", "op": "linear", "inputs": ["x", "fc.weight"]}]
    document = {"aie_graph": 1, "inputs": {"x": ["B", 4]}, "nodes": nodes, "outputs": ["out"]}
    (tmp_path / "graph.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"id2label": {"0": "ant", "1": "bee", "2": "wasp"}}')
    shown = run(tmp_path, "--graph", "--tensors", "--json", tmp_path / "facts.json")
    for words in ("architecture: graph", "inputs: x [B, 4]", "output: logits: out [B, 3]", "labels: ant, bee, wasp",
                  "fc.weight  F32  3×4", "= linear(x"):  # fmt: skip
        assert words in shown
    assert json.loads((tmp_path / "facts.json").read_text())["kv_bytes_per_token"] == 0


def test_texts_of_a_stranger_are_shown_as_they_are(tmp_path: Path) -> None:
    """Not as markup, which would vanish or fail, and not as commands to the terminal."""
    folder = tmp_path / "m [red]x[bold]"
    folder.mkdir()
    np.savez(folder / "weights.npz", **{"fc.weight": np.ones((2, 4), np.float32)})
    node = {"name": "out\u001b[31m", "op": "linear", "inputs": ["x", "fc.weight"]}
    document = {"aie_graph": 1, "inputs": {"x": ["B", 4]}, "nodes": [node], "outputs": [node["name"]]}
    (folder / "graph.json").write_text(json.dumps(document))
    (folder / "config.json").write_text('{"id2label": {"0": "[/red]", "1": "[bold]b\\u001b[2J"}}')
    shown = run(folder, "--graph")
    assert "m [red]x[bold]" in shown and "[/red], [bold]b\\x1b[2J" in shown and "\x1b[31m" not in shown


@pytest.mark.real_model
def test_minilm() -> None:
    try:
        resolve("minilm-l6")
    except AieError as error:
        pytest.skip(str(error))
    shown = run("minilm-l6", "--graph", "--only", "blk.0.")
    for words in (
        "architecture: bert",
        "longest text: 512 tokens",
        "output: embedding",
        "encoder_attention(blk.0.attn_q",
    ):
        assert words in shown
