"""`aie load` on a tiny model: facts, pictures by suffix, parts of the graph, wrong use."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie_engine import InvalidInputError
from aie_loader import write_tiny_gguf
from aie_loader.graph_file import read_graph_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("load") / "tiny.gguf")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["load", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_facts_on_the_screen_and_in_the_file(model: Path, tmp_path: Path) -> None:
    shown = run(model, "--json", tmp_path / "facts.json", "--tensors")
    facts = json.loads((tmp_path / "facts.json").read_text())
    for words in (
        "architecture: llama",
        "layers: 2",
        "after the passes",
        "by liveness",
        "tokenizer",
        "blk.1.ffn_up.weight",
    ):
        assert words in shown
    assert facts["weight_bytes"] == sum(kind["bytes"] for kind in facts["types"].values())
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert set(facts["load_phases_s"]) == {"open", "configuration", "tokenizer", "graph"}
    assert facts["load_s"] == pytest.approx(sum(facts["load_phases_s"].values()))


def test_a_part_of_the_graph_fused_or_not(model: Path) -> None:
    assert "rope_attention(" in run(model, "--graph", "--only", "blk.1.")
    unfused = run(model, "--graph", "--only", "blk.1.", "--unfused")
    assert "= rope(" in unfused and "rope_attention(" not in unfused and "blk.0.ffn_up" not in unfused


def test_pictures_by_suffix(model: Path, tmp_path: Path) -> None:
    for suffix in ("svg", "dot", "mmd", "txt"):
        run(model, "--graph-file", tmp_path / f"g.{suffix}", "--only", "blk.0.")
    assert ET.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "g.dot").read_text().startswith("digraph")
    assert (tmp_path / "g.mmd").read_text().startswith("flowchart")
    run(model, "--graph-file", tmp_path / "g.json", "--unfused")
    assert json.loads((tmp_path / "g.json").read_text())["outputs"] == ["logits"]


def test_a_drawn_graph_loads_again(model: Path, tmp_path: Path) -> None:
    from aie_loader import load_model

    run(model, "--graph-file", tmp_path / "g.json", "--unfused")
    loaded = load_model(model)
    again = read_graph_file(tmp_path / "g.json", loaded.graph.weights)
    assert again.sorted() == loaded.graph.sorted()
    loaded.close()


def test_wrong_use(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\.svg, \.dot"):
        run(model, "--graph-file", tmp_path / "g.png")
    with pytest.raises(InvalidInputError, match="whole graph"):
        run(model, "--graph-file", tmp_path / "g.json", "--only", "blk.0.")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_something_behind_its_tensors_needs_to_be_allowed(model: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.gguf"
    longer.write_bytes(model.read_bytes() + b"more")
    with pytest.raises(InvalidInputError, match="--lenient trailing-bytes"):
        run(longer)
    assert "architecture: llama" in run(longer, "--lenient", "trailing-bytes", "--lenient", "holes")
    with pytest.raises(InvalidInputError, match=r"no difference named 'everything'.* known are duplicate-keys"):
        run(longer, "--lenient", "everything")
