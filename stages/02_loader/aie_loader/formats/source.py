"""A model file opened once: its size is taken once, its header is read, its tensors are mapped.

Headers are read with ordinary reads, never through the mapping: a mapped file that somebody truncates in place turns an
access into SIGBUS, which no `except` can catch. So the front process, which needs only headers, maps nothing; the
engine worker maps, and its death is survived by design. Whoever replaces a model file should write a new one and
rename it, which leaves the old mapping intact.
"""

import mmap
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from aie_loader.errors import MissingFileError, ModelFileError, TruncatedFileError
from aie_tensor import EnvironmentLacksError

__all__ = ["SourceFile", "path_kind", "shown"]

_LONGEST_SHOWN = 120
PathKind: TypeAlias = Literal["file", "folder", "other"]


def shown(name: str) -> str:
    """A name from a file for an error message: quoted, and cut where a file would fill the log with it."""
    return repr(name) if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]!r}… ({len(name):,} characters)"


def path_kind(path: Path) -> PathKind | None:
    """What is at `path`, links followed; None where nothing is. EnvironmentLacksError where nobody can tell: a name
    that is too long, a folder that may not be entered, links that go round in a circle (`Path.exists` lets some of
    these through as they are)."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise EnvironmentLacksError(f"{path} cannot be looked at: {error}") from error
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


class SourceFile:
    """A regular file, opened read-only. Context manager; closing it leaves mapped views usable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # A FIFO or a device would block or never end: look before opening.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ModelFileError(f"{path} is not a regular file")
            self._file = path.open("rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"{path} does not exist") from error
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"{path} cannot be opened: {error}") from error
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Exactly `num_bytes` from `offset`; TruncatedFileError if the file shrank in the meantime."""
        try:
            self._file.seek(offset)
            data = self._file.read(num_bytes)
        except OSError as error:
            raise EnvironmentLacksError(f"{self.path} cannot be read: {error}") from error
        if len(data) != num_bytes:
            raise TruncatedFileError(f"{self.path} ended at byte {offset + len(data)} while it was being read")
        return data

    def map(self) -> npt.NDArray[np.uint8]:
        """The whole file as read-only bytes; pages come in when touched. The array alone keeps the mapping alive."""
        if self.size_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        try:
            mapping = mmap.mmap(self._file.fileno(), self.size_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"{self.path} cannot be mapped into memory: {error}") from error
        return np.frombuffer(mapping, dtype=np.uint8)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
