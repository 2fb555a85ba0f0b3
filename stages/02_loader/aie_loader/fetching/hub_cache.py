"""Models from a hub that are here, and how to know that they are whole.

    <cache>/models/hub/<org>--<name>[@revision]/aie-hub.json     which files are here: size and digest of each
    <cache>/models/hub/<org>--<name>[@revision]/…                those files
    <cache>/models/hub/<org>--<name>[@revision].part/            a pull under way, or cut off: the next one goes on

The list is written last, so a file counts only once it is whole. Looking up costs no network.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, ModelNotFoundError
from aie_loader.fetching.hub_files import HubFile, is_safe_path, main_file
from aie_loader.fetching.hub_names import HubName, gguf_models
from aie_loader.formats import optional_json_object
from aie_tensor import cache_dir

__all__ = ["HubFolder", "hub_folders", "hub_name_of", "is_whole"]

_LIST = "aie-hub.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFolder:
    """The files of one revision that are here."""

    name: HubName  # without a selection
    path: Path
    commit: str
    files: tuple[HubFile, ...]
    pulled: frozenset[str]  # the selections that were asked for; "" for none

    @classmethod
    def of(cls, name: HubName, cache: Path | None = None) -> "HubFolder":
        """What is here of `name`: no files where there is nothing, or a list that cannot be read."""
        path = _root(cache) / name.folder_name
        bare = HubName(name.repo, name.revision)
        try:
            listed = optional_json_object(path / _LIST)
            commit, entries, pulled = listed.get("commit"), listed.get("files"), listed.get("pulled")
            if isinstance(commit, str) and isinstance(entries, list) and isinstance(pulled, list):
                files = tuple(HubFile(**entry) for entry in entries)
                if all(is_safe_path(file.name) for file in files):
                    return cls(bare, path, commit, files, frozenset(map(str, pulled)))
        except (MalformedHeaderError, OSError, TypeError):  # pull it again
            pass
        return cls(bare, path, "", (), frozenset())

    @property
    def part(self) -> Path:
        """Where a pull collects files before they are verified."""
        return self.path.with_name(f"{self.path.name}.part")

    def has(self, file: HubFile) -> bool:
        """Whether the file is here in its right size. Contents are checked when pulling: hashing is too slow."""
        path = self.path / file.name
        return file in self.files and path.is_file() and path.stat().st_size == file.size_bytes

    def find(self, name: HubName) -> Path:
        """The file or folder that a loader is given for `name`. Raises `ModelNotFoundError`."""
        here = [file.name for file in self.files if self.has(file)]
        if not here or len(here) < len(self.files):
            raise ModelNotFoundError(
                f"there is no model {str(name)!r} here: no such file or folder; if it is on a hub, `aie pull {name}` "
                "fetches it",
                param="model",
            )
        file = main_file(here, name)
        return self.path if file is None else self.path / file

    def models(self) -> list[tuple[str, Path, int]]:
        """Each model here: its name, what a loader is given, and its bytes."""
        sizes = {file.name: file.size_bytes for file in self.files if self.has(file)}
        ggufs = gguf_models(sizes)
        rest = sum(size for name, size in sizes.items() if not any(name in files for files in ggufs.values()))
        found = [(str(self.name), self.path, rest)] if rest else []
        for first, files in ggufs.items():
            alone = len(ggufs) == 1 and not rest
            name = self.name if alone else HubName(self.name.repo, self.name.revision, first)
            found.append((str(name), self.path / first, sum(sizes[file] for file in files)))
        return found

    def outdated(self, files: Sequence[HubFile]) -> list[Path]:
        """What an earlier commit had and this one, of `files`, has no longer; GGUF files are models of their own."""
        names = {file.name for file in files}
        if all(name.lower().endswith(".gguf") for name in names):
            return []
        old = (file.name for file in self.files if file.name not in names)
        return [self.path / name for name in old if not name.lower().endswith(".gguf")]

    def record(self, files: Sequence[HubFile], commit: str, name: HubName) -> None:
        """Write the list, with `files`, which `name` asked for, in place of those of the same path."""
        outdated = set(self.outdated(files))
        kept = {file.name: file for file in self.files if self.path / file.name not in outdated}
        merged = kept | {file.name: file for file in files}
        document = {
            "name": str(self.name),
            "commit": commit,
            "pulled": sorted({*self.pulled, name.selection or ""}),
            "files": [asdict(merged[path]) for path in sorted(merged)],
        }
        handle, temporary = tempfile.mkstemp(prefix=".aie-hub-", dir=self.path)
        try:
            with open(handle, "w", encoding="utf-8") as sink:
                json.dump(document, sink, indent=1)
                sink.flush()
                os.fsync(sink.fileno())
            os.replace(temporary, self.path / _LIST)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def is_whole(path: Path, file: HubFile, on_bytes: Callable[[int], None]) -> bool:
    """Whether the file at `path` has the size and the digest that the hub promises. Raises `OSError`."""
    if path.stat().st_size != file.size_bytes:
        return False
    if file.sha256 is not None:
        digest, expected = hashlib.sha256(), file.sha256
    else:  # Git hashes a header and the contents
        digest, expected = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False), file.git_sha1 or ""
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest() == expected.lower()


def hub_folders(cache: Path | None = None) -> list[HubFolder]:
    """All that are here."""
    root = _root(cache)
    names = sorted(path.parent.name for path in root.glob(f"*/{_LIST}")) if root.is_dir() else []
    parsed = (HubName.from_folder_name(name) for name in names if not name.endswith(".part"))
    return [folder for name in parsed if name is not None and (folder := HubFolder.of(name, cache)).files]


def hub_name_of(path: Path, cache: Path | None = None) -> str | None:
    """The name of the model at a path in the cache; None for any other path."""
    root = _root(cache).resolve()
    path = path.resolve()
    if not path.is_relative_to(root):
        return None
    found = (model for folder in hub_folders(cache) for model in folder.models())
    return next((name for name, where, _ in found if where.resolve() == path), None)


def _root(cache: Path | None) -> Path:
    return cache_dir(cache) / "models" / "hub"
