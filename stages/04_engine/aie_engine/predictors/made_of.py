"""Whether all workers of a predictor, those that are started again too, compute with the same model."""

import threading
from pathlib import Path

from aie_engine.errors import ModelCheckError
from aie_loader import Predictor

__all__ = ["FileStamp", "SameFiles", "stamps_of"]

FileStamp = tuple[str, int, int]  # path, bytes, nanoseconds of the last change

_BESIDE = ("graph.json", "config.json")  # say what is computed with the weights


def stamps_of(predictor: Predictor) -> list[FileStamp]:
    """Of the files that decide what `predictor` computes."""
    folder = predictor.path if predictor.path.is_dir() else predictor.path.parent
    files = [*predictor.checkpoint.files, *(folder / name for name in _BESIDE)]
    return [_stamp(path) for path in sorted(set(files)) if path.exists()]


class SameFiles:
    """What the first worker read; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: list[FileStamp] | None = None

    def check(self, stamps: list[FileStamp]) -> None:
        """Raises `ModelCheckError` for a worker that read others: answers would depend on who computes them."""
        with self._lock:
            if self._first is None:
                self._first = stamps
            changed = sorted(set(self._first) ^ set(stamps))
        if changed:
            raise ModelCheckError(
                f"{changed[0][0]} has changed since the first worker read it, so this one would answer differently; "
                "start the server again to serve the new model."
            )


def _stamp(path: Path) -> FileStamp:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns
