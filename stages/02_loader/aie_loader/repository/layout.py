"""How one version of a model lies on a disk: which path is loaded, how large it is, and whether it still changes."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aie_loader.formats.gguf_split import is_later_part

__all__ = ["ModelVersion", "file_version", "name_of_file", "shown", "versions_of", "visible"]

Stamp = tuple[tuple[str, int, int, int], ...]  # of each file: path, inode, bytes, time of its last change in ns

_TEMPORARY_STARTS = (".", "_", "~")
_TEMPORARY_ENDS = (".tmp", ".part", ".partial", ".incomplete", "~")
_MAX_DEPTH = 3  # of folders inside a version
_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of one model, as it was when somebody looked. Two looks at files that changed have different
    stamps."""

    model: str
    version: str
    path: Path  # what `load_model` takes
    golden: Path  # where the prompt and the tokens would be that a check of this version expects
    nbytes: int  # of all files
    stamp: Stamp = field(repr=False)
    problem: str | None = None  # why there is nothing to be loaded


def visible(folder: Path) -> list[Path]:
    """What lies in `folder` and is not marked as temporary. Raises `OSError`."""
    with os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if not entry.name.startswith(_TEMPORARY_STARTS) and not entry.name.endswith(_TEMPORARY_ENDS)
        ]


def name_of_file(path: Path) -> str | None:
    """`tiny` for `tiny.gguf` and for `tiny-00001-of-00003.gguf`; None for what is no model by itself."""
    return _PART.sub("", path.stem) if _is_gguf(path) else None


def file_version(model: str, path: Path) -> ModelVersion:
    """A model that is one path and has no versions."""
    if path.is_dir():
        return _look(model, "1", path, path / "golden.json", lambda: _files(path, _MAX_DEPTH))
    golden = path.with_name(f"{_PART.sub('', path.stem)}.golden.json")
    return _look(model, "1", path, golden, lambda: iter(_parts(path)))


def versions_of(folder: Path) -> Iterator[ModelVersion]:
    """The versions in one model's folder, oldest first. It may be the model itself, and then there is one."""
    try:
        if (own := _model_in(folder)) is not None:
            yield _look(folder.name, "1", own, folder / "golden.json", lambda: _files(folder, _MAX_DEPTH))
            return
        versions = sorted((path for path in visible(folder) if path.is_dir()), key=_natural)
    except OSError:  # it went while we looked
        return
    for path in versions:
        yield _version(folder.name, path)


def _version(model: str, folder: Path) -> ModelVersion:
    problem = None
    try:
        path = _model_in(folder) or _model_in_only_folder(folder)
        if path is None:
            problem = f"{folder} holds no model: neither one .gguf file nor config.json and safetensors"
    except OSError as error:
        path, problem = None, f"{folder} cannot be read: {error.strerror or error}"
    return _look(
        model, folder.name, path or folder, folder / "golden.json", lambda: _files(folder, _MAX_DEPTH), problem
    )


def _model_in(folder: Path) -> Path | None:
    """`folder` itself, if it is a model's; the .gguf file inside, if there is one (or the first part of one)."""
    entries = visible(folder)
    if any(path.name == "config.json" or path.suffix == ".safetensors" for path in entries):
        return folder
    files = [path for path in entries if _is_gguf(path)]
    return files[0] if len(files) == 1 else None


def _model_in_only_folder(folder: Path) -> Path | None:
    """For a version that was copied together with the folder around it."""
    inside = [path for path in visible(folder) if path.is_dir()]
    return _model_in(inside[0]) if len(inside) == 1 else None


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and not is_later_part(path) and path.is_file()


def _look(
    model: str,
    version: str,
    path: Path,
    golden: Path,
    files: Callable[[], Iterator[Path]],
    problem: str | None = None,
) -> ModelVersion:
    if shown(version) != version or shown(model) != model:
        problem = f"the name {shown(model)}/{shown(version)} is not UTF-8; rename it"
    stamp: list[tuple[str, int, int, int]] = []
    try:
        for file in files():
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):  # whoever opens a pipe waits for ever
                problem = problem or f"{file} is no regular file"
            stamp.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:  # a link to nowhere, or gone since
        problem = problem or f"{error.filename or path} cannot be read: {error.strerror or error}"
    nbytes = sum(size for _, _, size, _ in stamp)
    return ModelVersion(shown(model), shown(version), path, golden, nbytes, tuple(sorted(stamp)), problem)


def shown(name: str) -> str:
    """What a client can be told: nobody can write, or ask for, a name that is no UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in visible(folder):
        if not path.is_dir():
            yield path
        elif depth > 1:
            yield from _files(path, depth - 1)


def _parts(path: Path) -> list[Path]:
    """The file, or all files of the split model whose first it is."""
    if _PART.search(path.stem) is None:
        return [path]
    start = _PART.sub("", path.stem) + "-"
    return [other for other in visible(path.parent) if other.suffix == ".gguf" and other.name.startswith(start)]


def _natural(path: Path) -> tuple[tuple[bool, int, str], ...]:
    """Numbers by value, and before text."""
    parts = re.findall(r"[0-9]+|[^0-9]+", path.name)
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
