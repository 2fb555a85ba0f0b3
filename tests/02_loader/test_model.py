"""From a path to a model, and back into files; everything that can be wrong with a path."""

import json
import mmap
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aie_loader import (
    MissingFileError,
    Model,
    ModelFileError,
    TokenizerError,
    TruncatedFileError,
    UnknownArchitectureError,
    export_safetensors,
    load_model,
    load_tokenizer,
    write_tiny_gguf,
    write_tiny_llama,
)
from aie_loader.formats.gguf_writer import write_gguf
from aie_tensor import AieError, DType, EnvironmentLacksError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


def same_weights(a: Model, b: Model) -> None:
    assert set(a.graph.weights) == set(b.graph.weights)
    for name, matrix in a.graph.weights.items():
        np.testing.assert_array_equal(matrix.dequantize(), b.graph.weights[name].dequantize())


def test_folder_and_file(folder: Path, tmp_path: Path) -> None:
    a, b = load_model(folder), load_model(write_tiny_gguf(tmp_path / "other.gguf"))
    assert (a.name, a.format, b.name, b.format) == ("tiny", "safetensors", "other", "gguf")
    assert a.graph.shapes.keys() == b.graph.shapes.keys()
    assert a.weight_bytes > b.weight_bytes > 0 and a.load_seconds > 0
    assert a.metadata["model_type"] == "llama" and b.metadata["general.architecture"] == "llama"
    assert a.tokenizer.encode("the queue") == b.tokenizer.encode("the queue")
    assert a.chat_template is not None and b.chat_template is not None


def test_one_safetensors_file_with_its_neighbours(folder: Path) -> None:
    same_weights(load_model(folder), load_model(folder / "model.safetensors"))


def test_shards_load_like_one_file(folder: Path) -> None:
    whole = load_model(folder)
    arrays = load_file(folder / "model.safetensors")
    halves = {"one.safetensors": sorted(arrays)[::2], "two.safetensors": sorted(arrays)[1::2]}
    for name, keys in halves.items():
        save_file({key: arrays[key] for key in keys}, folder / name)
    weight_map = {key: name for name, keys in halves.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    same_weights(whole, load_model(folder))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_tokenizer_without_weights(kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder if kind == "folder" else write_tiny_gguf(tmp_path / "t.gguf")
    model = load_model(path)

    def no_mapping(*_: object, **__: object) -> None:
        raise AssertionError("the front process must not map model files")

    monkeypatch.setattr(mmap, "mmap", no_mapping)
    tokenizer, template, config = load_tokenizer(path)
    assert tokenizer.encode("a request") == model.tokenizer.encode("a request")
    assert template is not None and model.chat_template is not None
    assert template.source == model.chat_template.source
    assert config.num_layers == model.config.num_layers


def test_weights_survive_close_and_deletion(folder: Path) -> None:
    model = load_model(folder)
    norm = model.graph.weights["output_norm.weight"]
    before = norm.dequantize()
    model.close()
    shutil.rmtree(folder)
    assert not model.graph.weights and not model.checkpoint.tensors
    np.testing.assert_array_equal(norm.dequantize(), before)


# Wrong paths and files


def cut(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3])


def set_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


WRONG_FOLDERS: dict[str, tuple[Callable[[Path], object], type[AieError], str]] = {
    "cut": (lambda f: cut(f / "model.safetensors"), TruncatedFileError, "model.safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), MissingFileError, "holds neither"),
    "no config": (lambda f: (f / "config.json").unlink(), MissingFileError, "config.json"),
    "config no JSON": (lambda f: (f / "config.json").write_text("{"), ModelFileError, "not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), ModelFileError, "JSON object"),
    "config huge": (lambda f: (f / "config.json").write_text(" " * (17 << 20)), ModelFileError, "bytes"),
    "other family": (lambda f: set_config(f, model_type="mamba"), UnknownArchitectureError, "known: llama"),
    "other size": (lambda f: set_config(f, intermediate_size=7), ModelFileError, "asks for"),
    "small vocabulary": (lambda f: set_config(f, vocab_size=500), TokenizerError, "has 512 tokens, but the model only"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), TokenizerError, "tokenizer.json"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), TokenizerError, "tokenizer.json"),
}


@pytest.mark.parametrize("case", WRONG_FOLDERS)
def test_wrong_folders(case: str, folder: Path) -> None:
    spoil, error, words = WRONG_FOLDERS[case]
    spoil(folder)
    with pytest.raises(error, match=words) as caught:
        load_model(folder)
    assert caught.value.exit_code == 2
    assert str(folder) in str(caught.value)


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        load_model(tmp_path / "none.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelFileError, match="neither a GGUF file nor"):
        load_model(tmp_path / "notes.txt")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(TruncatedFileError, match=r"empty\.gguf is truncated"):
        load_model(tmp_path / "empty.gguf")
    path = write_tiny_gguf(tmp_path / "t.gguf")
    cut(path)
    with pytest.raises(TruncatedFileError, match=r"t\.gguf is truncated: tensor"):
        load_model(path)


def test_gguf_without_tokenizer(tmp_path: Path) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "t.gguf"))
    kept = {key: value for key, value in model.metadata.items() if not key.startswith("tokenizer.")}
    path = write_gguf(tmp_path / "bare.gguf", kept, dict(model.checkpoint.tensors))
    with pytest.raises(TokenizerError, match=r"bare\.gguf"):
        load_model(path)


# Export


def test_export_of_a_gguf_is_the_folder_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    exported = export_safetensors(load_model(write_tiny_gguf(tmp_path / "t.gguf", quant=DType.F32)), tmp_path / "out")
    ours, original = load_file(exported / "model.safetensors"), load_file(folder / "model.safetensors")
    assert set(ours) == set(original)
    for name, array in original.items():
        np.testing.assert_array_equal(ours[name], array)
    again = load_model(exported)
    assert again.config.rope_interleaved is False and again.config.eos_token_ids == (2,)
    assert again.tokenizer.encode("<|im_start|>one 12") == load_model(folder).tokenizer.encode("<|im_start|>one 12")
    assert again.chat_template is not None
    messages = [{"role": "user", "content": "hi"}]
    template = load_model(folder).chat_template
    assert template is not None and again.chat_template.render(messages) == template.render(messages)


def test_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "t.gguf"))
    (tmp_path / "out" / "model.safetensors").mkdir(parents=True)  # cannot be replaced by a file
    with pytest.raises(EnvironmentLacksError, match="cannot be written"):
        export_safetensors(model, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]


@pytest.mark.real_model
def test_the_real_model(real_model: Path) -> None:
    model = load_model(real_model)
    config = model.config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert config.tie_word_embeddings and config.rope_interleaved and config.rope_theta == 100_000.0
    assert len(model.graph.nodes) == 30 * 16 + 4
    assert model.load_seconds < 5
