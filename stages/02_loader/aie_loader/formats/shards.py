"""A model in shards: files of a folder that an index names.

    model.safetensors.index.json   {"weight_map": {tensor: file}}
    pytorch_model.bin.index.json   the same for files of `torch.save`

The index is a file from a stranger that names other files, so the names must stay inside the folder (also through
symbolic links; the hub's own cache, where `snapshots/X/file` links to `blobs/Y` beside it, is the one layout allowed).
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from aie_loader.errors import MalformedHeaderError, MissingFileError
from aie_loader.formats.checkpoint import Checkpoint
from aie_loader.formats.leniency import STRICT, Leniency, remedy
from aie_loader.formats.source import path_kind, shown
from aie_loader.formats.strict_json import read_json_object
from aie_tensor import Matrix

__all__ = ["INDEX_SUFFIX", "Opener", "open_index"]

INDEX_SUFFIX = ".index.json"
_MAX_INDEX_BYTES = 100_000_000


class Opener(Protocol):
    """Opens one file of a format."""

    def __call__(self, path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint: ...


def open_index(index: Path, opener: Opener, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """The shards that `index` names, as one checkpoint. Each tensor must be in exactly the file the index says."""
    folder, weight_map = index.parent, _read_index(index)
    tensors: dict[str, Matrix] = {}
    metadata: dict[str, object] = {}
    mapped_bytes = 0
    shard_paths = {file_name: _inside(index, file_name) for file_name in dict.fromkeys(weight_map.values())}
    for file_name, path in shard_paths.items():
        shard = opener(path, lenient=lenient)
        metadata.update(shard.metadata)
        mapped_bytes += shard.mapped_bytes
        for name, matrix in shard.tensors.items():
            if name in tensors:
                raise MalformedHeaderError(f"{folder / file_name}: tensor {shown(name)} is also in another shard")
            if weight_map.get(name) != file_name:
                listed = weight_map.get(name, "no file")
                raise MalformedHeaderError(
                    f"{folder / file_name} holds tensor {shown(name)}, for which the index names {listed}"
                )
            tensors[name] = matrix
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None and Leniency.MISSING_TENSORS not in lenient:
        raise MalformedHeaderError(
            f"{folder / weight_map[missing]} lacks tensor {shown(missing)}, which the index promises; "
            f"{remedy(Leniency.MISSING_TENSORS)}"
        )
    return Checkpoint(index, shard.format, metadata, tensors, (index, *shard_paths.values()), mapped_bytes)


def _read_index(index: Path) -> Mapping[str, str]:
    """tensor name → file name."""
    weight_map = read_json_object(index, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise MalformedHeaderError(f"{index}: weight_map is not an object of file names")
    return weight_map


def _inside(index: Path, file_name: str) -> Path:
    folder, parts = index.parent, PurePosixPath(file_name).parts
    if not parts or ".." in parts or parts[0] == "/" or "\\" in file_name or "\0" in file_name:
        raise MalformedHeaderError(f"{index} names the file {shown(file_name)}, which is outside the model folder")
    path = folder.joinpath(*parts)
    home = Path(os.path.realpath(folder))
    allowed = [home] if home.parent.name != "snapshots" else [home, home.parent.parent / "blobs"]
    # Nothing is looked at before a link is known to stay inside; `realpath` takes a circle of links for a plain name.
    if not any(Path(os.path.realpath(path)).is_relative_to(root) for root in allowed):
        raise MalformedHeaderError(f"{path} is a link that leads outside the model folder")
    if path_kind(path) != "file":
        raise MissingFileError(f"{index} names {shown(file_name)}, which is not in the folder")
    return path
