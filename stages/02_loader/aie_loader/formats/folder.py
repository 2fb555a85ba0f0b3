"""A Hugging Face model folder: one `model.safetensors`, or shards that `model.safetensors.index.json` names.

The index is a file from a stranger that names other files, so the names must stay inside the folder (also through
symbolic links; the hub's own cache, where `snapshots/X/file` links to `blobs/Y` beside it, is the one layout allowed).
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from aie_loader.errors import MalformedHeaderError, MissingFileError
from aie_loader.formats.safetensors import SafetensorsCheckpoint, open_safetensors
from aie_loader.formats.strict_json import read_json_object
from aie_tensor import Matrix

__all__ = ["open_folder"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000


def open_folder(folder: Path) -> SafetensorsCheckpoint:
    """All tensors of a model folder, mapped. Shards are opened one by one; each tensor must be in exactly one."""
    if (folder / _INDEX).is_file():
        return _open_shards(folder, _read_index(folder))
    if not (folder / _SINGLE).exists():
        raise MissingFileError(f"{folder} holds neither {_SINGLE} nor {_INDEX}")
    return open_safetensors(folder / _SINGLE)


def _read_index(folder: Path) -> Mapping[str, str]:
    """tensor name → file name."""
    index = folder / _INDEX
    weight_map = read_json_object(index, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise MalformedHeaderError(f"{index}: weight_map is not an object of file names")
    return weight_map


def _open_shards(folder: Path, weight_map: Mapping[str, str]) -> SafetensorsCheckpoint:
    tensors: dict[str, Matrix] = {}
    metadata: dict[str, object] = {}
    mapped_bytes = 0
    for file_name in dict.fromkeys(weight_map.values()):
        shard = open_safetensors(_inside(folder, file_name))
        metadata.update(shard.metadata)
        mapped_bytes += shard.mapped_bytes
        for name, matrix in shard.tensors.items():
            if name in tensors:
                raise MalformedHeaderError(f"{folder / file_name}: tensor {name!r} is also in another shard")
            if weight_map.get(name) != file_name:
                listed = weight_map.get(name, "no file")
                raise MalformedHeaderError(
                    f"{folder / file_name} holds tensor {name!r}, for which the index names {listed}"
                )
            tensors[name] = matrix
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise MalformedHeaderError(f"{folder / weight_map[missing]} lacks tensor {missing!r}, which the index promises")
    return SafetensorsCheckpoint(folder, metadata, tensors, mapped_bytes)


def _inside(folder: Path, file_name: str) -> Path:
    parts = PurePosixPath(file_name).parts
    if not parts or ".." in parts or parts[0] == "/" or "\\" in file_name or "\0" in file_name:
        raise MalformedHeaderError(f"{folder / _INDEX} names the file {file_name!r}, which is outside the model folder")
    path = folder.joinpath(*parts)
    home = folder.resolve()
    allowed = [home] if home.parent.name != "snapshots" else [home, home.parent.parent / "blobs"]
    if not any(path.resolve().is_relative_to(root) for root in allowed):
        raise MalformedHeaderError(f"{path} is a link that leads outside the model folder")
    if not path.is_file():
        raise MissingFileError(f"{folder / _INDEX} names {file_name!r}, which is not in the folder")
    return path
