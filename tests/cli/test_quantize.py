"""`aie quantize` and `aie convert` as a person meets them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from aie.app import app
from aie.console import byte_progress
from aie.settings import load_settings
from aie_engine import AieError, InvalidInputError
from aie_loader import load_model
from aie_tensor import DType

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("AIE_CACHE", str(tmp_path / "cache"))

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def fails(result: Result, exit_code: int, says: str) -> None:
    assert isinstance(result.exception, AieError), result.output
    assert (result.exception.exit_code, says in str(result.exception)) == (exit_code, True), str(result.exception)


def test_write_one(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "a.gguf", tmp_path / "a.json"
    result = run("quantize", tiny_model, "--to", "int4", "--out", out, "--json", figures)
    assert result.exit_code == 0, result.output
    assert "read back and found to be the same" in result.output
    assert json.loads(figures.read_text()) == {
        "model": str(tiny_model), "out": str(out), "precision": "int4", "bytes": out.stat().st_size,
    }  # fmt: skip
    assert load_model(out).graph.weights["blk.1.ffn_down.weight"].dtype is DType.Q4_1
    fails(run("quantize", tiny_model, "--to", "int8", "--out", out), 2, "a.gguf exists")
    assert run("quantize", tiny_model, "--to", "int8", "--out", out, "--force").exit_code == 0
    assert load_model(out).graph.weights["blk.1.ffn_down.weight"].dtype is DType.Q8_0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["--to", "int8"], 2, "--to and --out go together"),
        (["--out", "x.gguf"], 2, "--to and --out go together"),
        ([], 2, "or --check to compare all kinds"),
        (["--to", "int3", "--out", "x.gguf"], 2, "--to is 'int3'; choose one of fp32"),
        (["--to", "int8", "--out", "/nowhere/x"], 2, "for int8 name a .gguf file"),
        (["--to", "int8", "--out", "/dev/null/x.gguf"], 3, "cannot be written"),
        (["--check", "--kernels", "cuda"], 2, "--kernels is 'cuda'"),
        (["--check", "--activations", "int4"], 2, "--activations is 'int4'"),
        (["--check", "--activations", "int8", "--kernels", "numpy"], 2, "or int8 with native kernels"),
        (["--check", "--json", "/dev/null/x"], 3, "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    run: Run, tiny_model: Path, arguments: list[str], exit_code: int, says: str
) -> None:
    fails(run("quantize", tiny_model, *arguments), exit_code, says)


def test_the_table(run: Run, tiny_gguf: Path, tmp_path: Path) -> None:
    figures = tmp_path / "prices.json"
    result = run("quantize", tiny_gguf, "--check", "--kernels", "numpy", "--tokens", 20, "--json", figures)
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^(file|fp\S+|bf16|int\S+) +\S+ KiB +(\S+) +×(\S+) +(\S+)", result.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["file", "fp32", "fp16", "bf16", "int8", "int8-64", "int8-row", "int4"]
    assert max(map(len, result.stdout.partition("\n\n")[0].splitlines())) < 80
    assert rows[0][2] == "1.00" and rows[0][3] == "0"
    # The file's blocks are those of int8, and fp32 is what they stand for.
    assert {row[0] for row in rows if row[3] == "0"} == {"file", "fp32", "int8"}
    assert "The file itself is quantized (Q8_0)" in result.stdout
    assert "NumPy expands all weights" in result.stdout
    prices = json.loads(figures.read_text())["prices"]
    assert [price["precision"] for price in prices] == [row[0] for row in rows]


def test_check_of_what_is_written(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    arguments = ["--to", "bf16", "--out", tmp_path / "b", "--check", "--kernels", "numpy", "--tokens", 20]
    result = run("quantize", tiny_model, *arguments)
    assert result.exit_code == 0, result.output
    assert re.search(r"^bf16 .* 16\.0", result.stdout, re.MULTILINE) and "int8" not in result.stdout
    assert (tmp_path / "b" / "model.safetensors").is_file()


def test_convert_there_and_back(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    assert run("convert", tiny_model, tmp_path / "a.gguf").exit_code == 0
    assert run("convert", tmp_path / "a.gguf", tmp_path / "b").exit_code == 0
    first, last = load_model(tiny_model).checkpoint, load_model(tmp_path / "b").checkpoint
    assert {name: bytes(matrix.data) for name, matrix in first.items()} == {
        name: bytes(matrix.data) for name, matrix in last.items()
    }
    assert run("convert", tmp_path / "a.gguf", tmp_path / "half", "--dtype", "fp16").exit_code == 0
    half = load_model(tmp_path / "half").graph.weights["output.weight"]
    assert half.dtype is DType.F16
    fails(run("convert", tmp_path / "a.gguf", tmp_path / "b"), 2, "b exists")
    fails(run("convert", tmp_path / "a.gguf", tmp_path / "a.gguf", "--force"), 2, "is the model that is read")
    fails(run("convert", "nope", tmp_path / "c"), 2, "no model 'nope'")
    fails(run("convert", tiny_model, tmp_path / "c.bin"), 2, "should be a .gguf file or a folder")


def test_figures_never_replace_a_model(run: Run, tiny_model: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(tiny_gguf.read_bytes())
    says = "is a file of the model; choose another name"
    fails(run("convert", source, tmp_path / "a", "--json", source), 2, says)
    fails(run("convert", source, tmp_path / "a.gguf", "--json", tmp_path / "a.gguf"), 2, says)
    fails(run("quantize", source, "--check", "--json", source), 2, says)
    fails(run("convert", tiny_model, tmp_path / "b.gguf", "--json", tiny_model / "config.json"), 2, says)
    assert source.read_bytes() == tiny_gguf.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} <= {"source.gguf", "cache"}


def test_encoders_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    fails(run("convert", tmp_path / "bert", tmp_path / "out.gguf"), 2, "only language models can be written")


def test_flags_of_serving() -> None:
    assert load_settings({}, environ={}).quantize == "file"
    assert load_settings({"quantize": "int8"}, environ={"AIE_QUANTIZE": "bf16"}).quantize == "int8"
    with pytest.raises(InvalidInputError, match=r"--quantize is 'int9'; choose file, fp32"):
        load_settings({"quantize": "int9"}, environ={})
    with pytest.raises(InvalidInputError, match=r"quantize \(from AIE_QUANTIZE\) is 'int9'"):
        load_settings({}, environ={"AIE_QUANTIZE": "int9"})


def test_generate_in_another_precision(run: Run, tiny_model: Path) -> None:
    texts = {
        kind: run("generate", "the", "--model", tiny_model, "--kernels", "numpy", "--quantize", kind).stdout
        for kind in ("file", "fp32", "int4")
    }
    assert texts["file"] == texts["fp32"] != texts["int4"]


def test_progress_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 5.0, 10.0, 10.0, 12.0])
    report = byte_progress("Writing x", clock=lambda: next(now))
    for done in (1 << 20, 2 << 20, 4 << 20):
        report(done, 4 << 20)
    assert capsys.readouterr().err == "Writing x: 2.0 MiB of 4.0 MiB (50 %)\n"
