"""The stage by itself: on a file, on a folder, without the real model; wrong input ends with exit code 2."""

from pathlib import Path

import pytest

from aie_loader import write_tiny_gguf
from aie_loader.__main__ import main


@pytest.mark.parametrize("kind", ["tiny_gguf", "tiny_model"])
def test_demo_shows_file_graph_order_and_refusal(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(request.getfixturevalue(kind))]) == 0
    out = capsys.readouterr().out
    for words in (
        "1. The header by hand",
        "2. The file",
        "Loaded in",
        "rope_attention(",
        "norm -> gate -> silu -> mul -> norm",
        "bytes instead of",
        "The 512 logits at the end",
        "is truncated",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 120


def test_demo_says_when_the_model_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIE_CACHE", str(tmp_path))
    assert main([]) == 0
    assert "made up on the spot" in capsys.readouterr().out


def test_demo_on_something_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert main([str(tmp_path / "m.gguf")]) == 2
    assert capsys.readouterr().err.startswith(f"aie_loader: {tmp_path}/m.gguf is truncated")
    assert main([str(tmp_path / "none")]) == 2


def test_the_example_in_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = Path(__file__).parents[2] / "stages" / "02_loader" / "README.md"
    example = readme.read_text("utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    write_tiny_gguf(Path("model.gguf"))
    exec(compile(example, str(readme), "exec"), {})
    assert (tmp_path / "as_floats" / "model.safetensors").is_file()
