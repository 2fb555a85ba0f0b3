"""Models in shards: an index that lies is refused, and no name in it leads out of the folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aie_loader import MalformedHeaderError, MissingFileError
from aie_loader.formats import Leniency, open_checkpoint


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(2, np.float32)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert set(checkpoint) == {"a", "b"} and checkpoint.path == sharded
    assert [path.name for path in checkpoint.files] == [
        "model.safetensors.index.json", "one.safetensors", "two.safetensors",
    ]  # fmt: skip
    assert open_checkpoint(checkpoint.files[0]).path == checkpoint.files[0]


@pytest.mark.parametrize(
    ("weight_map", "error", "words"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, MissingFileError, "'three.safetensors', which is not in"),
        ({"a": "../one.safetensors"}, MalformedHeaderError, "outside the model folder"),
        ({"a": "/etc/passwd"}, MalformedHeaderError, "outside the model folder"),
        ({"a": ""}, MalformedHeaderError, "outside the model folder"),
        ({"a": "one.safetensors", "b": "link.safetensors"}, MalformedHeaderError, "leads outside"),
        ({"a": "one.safetensors"}, MissingFileError, ""),
        ({"a": "one.safetensors", "b": "one.safetensors"}, MalformedHeaderError, "lacks tensor 'b'"),
        ({"a": "two.safetensors"}, MalformedHeaderError, "holds tensor 'b', for which the index names no file"),
        ({"a": "one.safetensors", "b": "twice.safetensors"}, MalformedHeaderError, "'a' is also in another shard"),
        ({"a": 1}, MalformedHeaderError, "weight_map"),
        ([], MalformedHeaderError, "weight_map"),
        ({}, MalformedHeaderError, "weight_map"),
    ],
)
def test_index_that_lies(
    sharded: Path, weight_map: object, error: type[Exception], words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "b.safetensors"
    save_file({"b": np.zeros(2, np.float32)}, outside)
    (sharded / "link.safetensors").symlink_to(outside)
    save_file({"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}, sharded / "twice.safetensors")
    write_index(sharded, weight_map)
    if not words:  # a subset of the tensors is a sound checkpoint; what is missing, the architecture will say
        assert set(open_checkpoint(sharded).tensors) == {"a"}
        return
    with pytest.raises(error, match=words):
        open_checkpoint(sharded)


def test_the_layout_of_the_hub_cache_is_allowed(sharded: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("one.safetensors", "two.safetensors", "model.safetensors.index.json"):
        (sharded / name).rename(tmp_path / "blobs" / name)
        (snapshot / name).symlink_to(tmp_path / "blobs" / name)
    assert set(open_checkpoint(snapshot).tensors) == {"a", "b"}


def test_folder_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"neither model\.safetensors, pytorch_model\.bin nor an index"):
        open_checkpoint(tmp_path)


def test_tensors_that_are_missing_can_be_let_through(sharded: Path) -> None:
    write_index(sharded, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})
    with pytest.raises(MalformedHeaderError, match=r"lacks tensor 'c'.*be lenient about 'missing-tensors'"):
        open_checkpoint(sharded)
    assert set(open_checkpoint(sharded, lenient={Leniency.MISSING_TENSORS})) == {"a", "b"}
