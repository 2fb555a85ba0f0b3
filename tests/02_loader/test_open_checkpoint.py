"""One entry for every format: what a file is, its bytes say."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from aie_loader import (
    Checkpoint,
    MalformedHeaderError,
    MissingFileError,
    ModelFileError,
    load_model,
    load_predictor,
    load_tokenizer,
)
from aie_loader.formats import open_checkpoint
from aie_loader.formats.gguf_writer import write_gguf
from aie_tensor import EnvironmentLacksError, Matrix

TORCH_FILES = Path(__file__).parent / "torch_files"
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_safetensors(path: Path) -> None:
    save_file({"x": VALUES}, path)


def write_gguf_file(path: Path) -> None:
    write_gguf(path, {"general.architecture": "none"}, {"x": Matrix.from_array(VALUES)})


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=VALUES)


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, VALUES)


WRITERS: dict[str, Callable[[Path], None]] = {
    "safetensors": write_safetensors,
    "gguf": write_gguf_file,
    "numpy": write_npz,
}


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".npz", ".pt", ".bin", ""])
@pytest.mark.parametrize("kind", WRITERS)
def test_the_name_does_not_matter(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    WRITERS[kind](path)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.format, checkpoint.path, checkpoint.files) == (kind, path, (path,))
    np.testing.assert_array_equal(checkpoint["x"].array(), VALUES)


def test_a_checkpoint_is_a_mapping(tmp_path: Path) -> None:
    write_npz(tmp_path / "a")
    with open_checkpoint(str(tmp_path / "a")) as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        assert (list(checkpoint), len(checkpoint), "x" in checkpoint, checkpoint.get("y")) == (["x"], 1, True, None)
        assert checkpoint.nbytes == VALUES.nbytes
        x = checkpoint["x"]
        with pytest.raises(KeyError):
            checkpoint["y"]
    assert len(checkpoint) == 0, "closed"
    np.testing.assert_array_equal(x.array(), VALUES)


def test_a_single_array_and_torch(tmp_path: Path) -> None:
    write_npy(tmp_path / "a")
    assert open_checkpoint(tmp_path / "a")["arr_0"].shape == (2, 3)
    for file in ("state.pt", "legacy.pt"):
        assert open_checkpoint(TORCH_FILES / file).format == "torch"


def test_a_header_that_looks_like_something_else(safetensors_file: Callable[..., Any], tmp_path: Path) -> None:
    """0x0280 and 0x8b1f are lengths of a safetensors header; they are also the starts of a pickle and of gzip."""
    for size in (0x0280, 0x8B1F):
        header = json.dumps({"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode().ljust(size)
        (tmp_path / "a").write_bytes(safetensors_file(header=header, data=b"").bytes())
        assert open_checkpoint(tmp_path / "a").format == "safetensors"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"lmgg\1\0\0\0", "a GGML file from before GGUF"),
        (b"\x08\x07\x12\x07pytorch\x1a", "an ONNX graph"),
        (b"\x1c\0\0\0TFL3", "a TensorFlow Lite model"),
        (b"\x1f\x8b\x08\0", "compressed by gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"name".ljust(257, b"\0") + b"ustar", "a tar archive"),
        (pickle.dumps({"weight": 1}), "a bare pickle, which can run code"),
        (b"hello", "begins like no format"),
        (b"", "begins like no format"),
    ],
)
def test_what_else_a_file_can_be(head: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(head)
    with pytest.raises(ModelFileError, match=words):
        open_checkpoint(tmp_path / "a")


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        (".safetensors", "at least 8 bytes"),
        (".gguf", "the magic number"),
        (".npz", "ends with its directory"),
        (".npy", "not a NumPy array"),
        (".pt", "ends with its directory"),
    ],
)
def test_an_empty_file_is_judged_by_its_name(suffix: str, words: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"")
    with pytest.raises(ModelFileError, match=words):
        open_checkpoint(tmp_path / f"a{suffix}")


def test_a_safetensors_header_of_an_impossible_length(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(MalformedHeaderError, match="claims a header of 18,446"):
        open_checkpoint(tmp_path / "a")


# Folders


def torch_shards(folder: Path) -> None:
    for name in ("state", "views"):
        (folder / f"{name}.bin").write_bytes((TORCH_FILES / f"{name}.pt").read_bytes())
    weight_map = {
        tensor: f"{name}.bin" for name in ("state", "views") for tensor in open_checkpoint(folder / f"{name}.bin")
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_of_torch_files(tmp_path: Path) -> None:
    torch_shards(tmp_path)
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.format == "torch" and len(checkpoint) == 18
        assert [file.name for file in checkpoint.files] == ["pytorch_model.bin.index.json", "state.bin", "views.bin"]


def test_a_folder_prefers_safetensors(tmp_path: Path) -> None:
    torch_shards(tmp_path)
    write_safetensors(tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).format == "safetensors"


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_with_one_file_of_weights(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / f"anything.{'npz' if kind == 'numpy' else kind}")
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).format == kind


def test_a_folder_with_none_or_two(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"neither model\.safetensors, pytorch_model\.bin nor an index"):
        open_checkpoint(tmp_path)
    write_npz(tmp_path / "a.npz")
    write_npz(tmp_path / "b.npz")
    with pytest.raises(MissingFileError, match=r"2 others, such as a\.npz: name one"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_itself(tmp_path: Path) -> None:
    index = tmp_path / "a.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.index.json"}}))
    with pytest.raises(ModelFileError, match="begins like no format"):
        open_checkpoint(index)


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        open_checkpoint(tmp_path / "none")


def test_mapped_weights_cost_no_memory(tmp_path: Path) -> None:
    """Opening reads headers: 64 MB of weights are not in the reads of any format's parser."""
    import tracemalloc

    weights = np.ones((4096, 4096), np.float32)
    save_file({"x": weights}, tmp_path / "a.safetensors")
    write_gguf(tmp_path / "a.gguf", {}, {"x": Matrix.from_array(weights)})
    np.savez(tmp_path / "a.npz", x=weights)
    for suffix in ("safetensors", "gguf", "npz"):
        tracemalloc.start()
        try:
            checkpoint = open_checkpoint(tmp_path / f"a.{suffix}")
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert checkpoint.nbytes == weights.nbytes


def test_streams_are_no_files(tmp_path: Path) -> None:
    assert not isinstance(io.BytesIO(), Path)
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_checkpoint("/dev/null")


def test_paths_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """A typed error also where `Path.exists` and its kin raise: a name too long, links in a circle, a zero byte."""
    circle = tmp_path / "circle.gguf"
    circle.symlink_to(circle)
    for path in (tmp_path / ("x" * 300 + ".gguf"), circle, tmp_path / "a\0b.gguf"):
        for load in (open_checkpoint, load_model, load_predictor, load_tokenizer):
            with pytest.raises(EnvironmentLacksError, match="cannot be looked at"):
                load(path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(EnvironmentLacksError, match="cannot be looked at"):
        open_checkpoint(tmp_path)
    (tmp_path / "shard.safetensors").symlink_to(tmp_path / "shard.safetensors")
    for name in ("shard.safetensors", "y" * 300):
        (tmp_path / "m.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
        with pytest.raises(EnvironmentLacksError, match="cannot be looked at"):
            open_checkpoint(tmp_path / "m.index.json")


def test_names_of_a_megabyte_do_not_fill_the_message(tmp_path: Path) -> None:
    for entry in ({"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}, {"dtype": "F32"},
                  {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}):  # fmt: skip
        header = json.dumps({"n" * 1_000_000: entry}).encode()
        path = tmp_path / "m.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(ModelFileError, match="1,000,000 characters") as caught:
            open_checkpoint(path)
        assert len(str(caught.value)) < 1000
