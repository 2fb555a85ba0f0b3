"""One model in several GGUF files: `NAME-00001-of-00003.gguf` and its sisters.

The first file has the model's metadata; each has its own tensors and says which part it is (`split.no`, from 0), of how
many (`split.count`) and how many tensors the whole has (`split.tensors.count`). The sisters' names follow from the
first one's, so nothing in a file can make us open something else.

Convention: llama.cpp's `gguf-split`.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, MissingFileError
from aie_loader.formats.source import path_kind

__all__ = ["check_part", "check_whole", "is_later_part", "split_count", "split_paths"]

_MAX_PARTS = 10_000
_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_count(path: Path, metadata: Mapping[str, object]) -> int:
    """Files that form the model: 1 unless the metadata says otherwise."""
    count = metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= _MAX_PARTS:
        raise MalformedHeaderError(f"{path}: split.count is {count!r}, not a number up to {_MAX_PARTS:,}")
    return max(count, 1)


def is_later_part(path: Path) -> bool:
    """True when the name says that this is not the first file of its model."""
    named = _NAME.fullmatch(path.name)
    return named is not None and int(named["number"]) > 1


def split_paths(path: Path, count: int) -> list[Path]:
    """All files of the model whose first is `path`, in order.

    MalformedHeaderError when `path` is not named as the first of `count`, MissingFileError when a sister is missing.
    """
    named = _NAME.fullmatch(path.name)
    if named is None or int(named["count"]) != count:
        raise MalformedHeaderError(
            f"{path} is one of {count} files of a model, so its name must end in -00001-of-{count:05}.gguf"
        )
    paths = [path.with_name(f"{named['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if int(named["number"]) != 1:
        raise MalformedHeaderError(f"{path} is not the first file of its model; open {paths[0].name} instead")
    missing = [part.name for part in paths if path_kind(part) != "file"]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MissingFileError(
            f"{path} is one of {count} files of a model, but {missing[0]}{more} is missing beside it"
        )
    return paths


def check_part(path: Path, metadata: Mapping[str, object], number: int, count: int) -> None:
    """Part `number` (from 0) must say that it is, and of how many."""
    said = metadata.get("split.no"), metadata.get("split.count")
    if said != (number, count) or isinstance(said[0], bool):
        raise MalformedHeaderError(
            f"{path} says that it is part {said[0]!r} of {said[1]!r} (split.no, split.count), "
            f"but its name says part {number} of {count}"
        )


def check_whole(path: Path, metadata: Mapping[str, object], num_tensors: int) -> None:
    """All parts together must hold as many tensors as the first one promises."""
    promised = metadata.get("split.tensors.count", num_tensors)
    if promised != num_tensors or isinstance(promised, bool):
        raise MalformedHeaderError(
            f"{path} promises {promised!r} tensors (split.tensors.count), but its files hold {num_tensors}"
        )
