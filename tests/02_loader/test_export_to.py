"""Where an exported model goes: what is in the way, what a failure leaves behind, and that what was written is read."""

import errno
import os
from pathlib import Path

import pytest

from aie_loader import Model, load_model, write_tiny_gguf, write_tiny_llama
from aie_loader.errors import ModelFileError
from aie_loader.export import writing as export_module
from aie_loader.export.to_path import export_model
from aie_loader.formats import replacing
from aie_loader.precision import find_precision
from aie_tensor import DType, EnvironmentLacksError, InvalidInputError


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return load_model(write_tiny_llama(tmp_path / "source" / "tiny"))


def test_both_formats(model: Model, tmp_path: Path) -> None:
    there = load_model(export_model(model, tmp_path / "new" / "a.gguf"))
    back = load_model(export_model(there, tmp_path / "b", find_precision("bf16")))
    assert back.graph.weights["output.weight"].dtype is DType.BF16
    assert {path.name for path in tmp_path.iterdir()} == {"source", "new", "b"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.gguf"]
    assert os.stat(tmp_path / "b" / "model.safetensors").st_mode & 0o444 == 0o444


def test_special_tokens_and_the_longest_text_survive_both_ways(tmp_path: Path) -> None:
    first = load_model(write_tiny_gguf(tmp_path / "t.gguf"))
    folder = load_model(export_model(first, tmp_path / "folder"))
    back = load_model(export_model(folder, tmp_path / "back.gguf"))
    assert first.chat_template is not None and first.chat_template.tokens["unk_token"] == "<|endoftext|>"
    for other in (folder, back):
        assert other.chat_template is not None
        assert other.chat_template.tokens == first.chat_template.tokens
        assert other.tokenizer.batch_rules == first.tokenizer.batch_rules
        assert other.tokenizer.batch_rules.max_length == first.config.max_position_embeddings


@pytest.mark.parametrize("name", ["a.gguf", "folder"])
def test_what_exists_stays_without_force(name: str, model: Model, tmp_path: Path) -> None:
    out = tmp_path / name
    export_model(model, out)
    with pytest.raises(InvalidInputError, match=rf"{name} exists; choose another name, or --force"):
        export_model(model, out)
    export_model(model, out, find_precision("fp16"), force=True)
    assert load_model(out).graph.weights["output.weight"].dtype is DType.F16
    assert {path.name for path in tmp_path.iterdir()} == {"source", name}


def test_force_replaces_models_only(model: Model, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInputError, match="is no such model"):
        export_model(model, home, force=True)
    (tmp_path / "x.gguf").mkdir()
    (tmp_path / "x.gguf" / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="is no such model"):
        export_model(model, tmp_path / "x.gguf", force=True)
    (home / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="is no such model"):
        export_model(model, home, force=True)
    (tmp_path / "notes.gguf").write_text("not a model")
    with pytest.raises(InvalidInputError, match="is no such model"):
        export_model(model, tmp_path / "notes.gguf", force=True)
    older = export_model(model, tmp_path / "older")
    (older / ".git").mkdir()
    with pytest.raises(InvalidInputError, match="is no such model"):
        export_model(model, older, force=True)
    assert (home / "letter.txt").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    export_model(model, tmp_path / "empty")  # nothing is lost there


def test_never_the_model_that_is_read(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is the model that is read"):
        export_model(model, model.path, force=True)
    single = load_model(model.path / "model.safetensors")
    with pytest.raises(InvalidInputError, match="is the model that is read"):
        export_model(single, model.path, force=True)
    path = write_tiny_gguf(tmp_path / "t.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    with pytest.raises(InvalidInputError, match="is the model that is read"):
        export_model(load_model(path), link, force=True)
    around = export_model(model, tmp_path / "around")
    inside = export_model(model, around / "inside.gguf")
    with pytest.raises(InvalidInputError, match="around holds the model that is read"):
        export_model(load_model(inside), around, force=True)
    assert inside.is_file()


@pytest.mark.parametrize(
    ("name", "precision", "says"),
    [
        ("a.safetensors", None, "should be a .gguf file or a folder"),
        ("a", "int8", "which holds fp32, fp16 or bf16; for int8 name a .gguf file"),
    ],
)
def test_names_that_cannot_be(name: str, precision: str | None, says: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=says):
        export_model(model, tmp_path / name, precision and find_precision(precision))
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["a.gguf", "folder"])
def test_full_disk(name: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / name
    export_model(model, out)
    before = {path: path.read_bytes() for path in [out, *out.rglob("*")] if path.is_file()}

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replacing.os, "replace", full)
    with pytest.raises(EnvironmentLacksError, match="No space left on device") as caught:
        export_model(model, out, force=True)
    assert str(caught.value).startswith(str(out))
    assert {path: path.read_bytes() for path in [out, *out.rglob("*")] if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", name}


def test_a_parent_that_is_a_file(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacksError, match="cannot be written"):
        export_model(model, tmp_path / "file" / "a.gguf")


def test_what_the_disk_spoils_is_noticed(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = export_module.write_gguf

    def spoiled(path: Path, metadata: object, tensors: object) -> Path:
        write(path, metadata, tensors)  # type: ignore[arg-type]
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        return path

    monkeypatch.setattr(export_module, "write_gguf", spoiled)
    with pytest.raises(ModelFileError, match="does not hold what was written"):
        export_model(model, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()
