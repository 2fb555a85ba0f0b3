"""`aie pull org/name`: the files of one model from a hub, resumed where a pull was cut off, verified, and only then
shown under their names.

huggingface_hub does the talking: it knows the user's token (HF_TOKEN), mirror (HF_ENDPOINT), proxy and certificates.
What is fetched is data, chosen by `hub_files.py`; no code of the repository is fetched, let alone run. The hub says the
digest of each file, and what arrives is checked against it: SHA-256 for weights, Git's own for small files. A model
that is here whole is not asked for again, so that nothing needs a network twice.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from aie_loader.errors import ModelNotFoundError, PullError
from aie_loader.fetching.hub_cache import HubFolder, is_whole
from aie_loader.fetching.hub_files import HubFile, choose_files
from aie_loader.fetching.hub_names import HubName
from aie_tensor import EnvironmentLacksError

__all__ = ["HubReport", "pull_from_hub"]

HubReport = Callable[[Literal["download", "verify", "done"], int, int], None]  # phase, bytes done, bytes in all

_SPARE_BYTES = 16 << 20
_MAX_FILES = 10_000


def pull_from_hub(name: HubName, *, report: HubReport, cache: Path | None = None) -> Path:
    """Make sure that `name` is in the cache, whole, and return what a loader is given.

    Raises `ModelNotFoundError` for what the hub does not have, `EnvironmentLacksError` without huggingface_hub, and
    `PullError` with the remedy for all else: no network, no access, no space, other bytes than promised.
    """
    folder = HubFolder.of(name, cache)
    if (path := _if_intact(folder, name, report)) is not None:
        return path
    library = _library()
    with _disk(folder), _lock(library, folder):
        folder = HubFolder.of(name, cache)  # another pull may have brought it while this one waited
        commit, files = _listing(library, name)
        wanted = choose_files(files, name)
        missing = [file for file in wanted if not (folder.has(file) and _quietly_whole(folder.path / file.name, file))]
        _check_space(folder, missing)
        _download(library, name, commit, folder, missing, report)
        _verify(name, folder, missing, report)
        folder.path.mkdir(parents=True, exist_ok=True)
        for file in missing:
            target = folder.path / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(_partial(folder, file), target)
        folder.record(wanted, commit, name)
        for path in folder.outdated(wanted):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder.part, ignore_errors=True)
    size = sum(file.size_bytes for file in wanted)
    report("done", size, size)
    return HubFolder.of(name, cache).find(name)


def _if_intact(folder: HubFolder, name: HubName, report: HubReport) -> Path | None:
    if (name.selection or "") not in folder.pulled:  # what is here may be another choice of the same model
        return None
    try:
        path = folder.find(name)
        total, done = sum(file.size_bytes for file in folder.files), 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            report("verify", done, total)

        if not all(is_whole(folder.path / file.name, file, on_bytes) for file in folder.files):
            return None
    except (ModelNotFoundError, OSError):
        return None
    report("done", total, total)
    return path


def _quietly_whole(path: Path, file: HubFile) -> bool:
    return is_whole(path, file, lambda _: None)


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.file_download
    except ImportError as error:
        raise EnvironmentLacksError(
            "pulling from a hub needs the package huggingface_hub; install it with `pip install 'aie[hub]'`"
        ) from error
    return huggingface_hub


def _endpoint() -> str | None:
    """The mirror, read now: the library reads it only when it is imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _listing(library: Any, name: HubName) -> tuple[str, list[HubFile]]:
    """The commit that the revision means now, and its files."""
    api = library.HfApi(endpoint=_endpoint(), library_name="aie")
    with _translated(library, name):
        info = api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=30)
    siblings = list(info.siblings or ())
    if not isinstance(info.sha, str) or not info.sha.isalnum() or len(siblings) > _MAX_FILES:
        raise PullError(f"the hub's answer for {name.repo} cannot be used: no commit, or more than {_MAX_FILES} files")
    return info.sha, [file for sibling in siblings if (file := _as_file(sibling)) is not None]


def _as_file(sibling: Any) -> HubFile | None:
    """None for a file that nobody could verify, as a mirror without metadata lists it."""
    lfs, size, path = sibling.lfs, sibling.size, sibling.rfilename
    sha256 = lfs.get("sha256") if lfs else None
    digest = sha256 or sibling.blob_id
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not isinstance(path, str):
        return None
    return HubFile(path, size, sha256=sha256, git_sha1=None if sha256 else digest)


def _partial(folder: HubFolder, file: HubFile) -> Path:
    """By its digest, so that what is resumed belongs to the same contents; and by its path: two files may be equal."""
    digest = "".join(char for char in file.sha256 or file.git_sha1 or "" if char.isalnum())
    return folder.part / f"{digest[:64]}-{hashlib.sha256(file.name.encode()).hexdigest()[:16]}"


def _download(
    library: Any, name: HubName, commit: str, folder: HubFolder, files: Sequence[HubFile], report: HubReport
) -> None:
    total = sum(file.size_bytes for file in files)
    done = 0
    headers = library.utils.build_hf_headers(library_name="aie")
    for file in files:
        url = library.hf_hub_url(name.repo, file.name, revision=commit, endpoint=_endpoint())
        path = _partial(folder, file)
        if path.is_file() and path.stat().st_size > file.size_bytes:
            path.unlink()
        with open(path, "r+b" if path.is_file() else "w+b") as raw:
            before = raw.seek(0, os.SEEK_END)
            sink = _Counting(raw, done, total, report, max_bytes=before + file.size_bytes)
            sink.tell_all()
            if before < file.size_bytes or file.size_bytes == 0:
                with _translated(library, name), _no_bars(library):
                    _fetch(library, url, sink, before, headers, file.size_bytes)
            raw.flush()
            os.fsync(raw.fileno())  # the rename must not reach the disk before the bytes do
        done += file.size_bytes


def _fetch(library: Any, url: str, sink: "_Counting", before: int, headers: dict[str, str], size: int) -> None:
    get = library.file_download.http_get
    try:
        get(url, sink, resume_size=before, headers=headers, expected_size=size)
    except OSError:
        if not before or sink.tell() <= size:
            raise
        # A server that knows no ranges sent all of it, and older versions of the library put that behind what was here.
        sink.seek(0)
        sink.truncate()
        get(url, sink, resume_size=0, headers=headers, expected_size=size)


class _Counting:
    """A file that reports how far the download is whenever something is written. `before`: bytes of earlier files.

    `max_bytes`: OSError for more, so that a server that never stops does not fill the disk.
    """

    def __init__(self, raw: IO[bytes], before: int, total: int, report: HubReport, *, max_bytes: int) -> None:
        self._raw, self._max_bytes = raw, max_bytes
        self._before, self._total, self._report = before, total, report
        self.seek, self.tell, self.truncate, self.flush = raw.seek, raw.tell, raw.truncate, raw.flush
        self.name = raw.name

    def tell_all(self) -> None:
        self._report("download", min(self._before + self._raw.tell(), self._total), self._total)

    def write(self, data: bytes) -> int:
        if self._raw.tell() + len(data) > self._max_bytes:
            raise OSError("it sends more bytes than it lists")
        count = self._raw.write(data)
        self.tell_all()
        return count


def _verify(name: HubName, folder: HubFolder, files: Sequence[HubFile], report: HubReport) -> None:
    total, done = sum(file.size_bytes for file in files), 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        report("verify", done, total)

    for file in files:
        path = _partial(folder, file)
        if not is_whole(path, file, on_bytes):
            path.unlink(missing_ok=True)
            raise PullError(
                f"what the hub sent as {file.name} of {name.repo} is not the file that it lists "
                f"({file.size_bytes:,} bytes, {file.sha256 or file.git_sha1}); it was deleted. Try again, or check the "
                "mirror in HF_ENDPOINT"
            )


@contextlib.contextmanager
def _translated(library: Any, name: HubName) -> Iterator[None]:
    """Turns whatever the library raises into one sentence of ours."""
    errors = library.errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise PullError(
            f"{name.repo} is open only to those who accepted its terms; do so on its page, and put a token of yours "
            "into HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{name.repo} has no revision {name.revision!r}", param="model") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no model {name.repo!r}, or it is private: then put a token into HF_TOKEN", param="model"
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise _no_answer(error) from error
    except Exception as error:  # of the library's HTTP client, whose classes change from version to version
        raise _no_answer(error) from error


def _no_answer(error: Exception) -> PullError:
    where = _endpoint() or "the hub"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    return PullError(
        f"{where} could not be read: {reason}. Check the network connection, HF_ENDPOINT and HF_HUB_OFFLINE; "
        "a pull that was cut off goes on where it stopped"
    )


@contextlib.contextmanager
def _no_bars(library: Any) -> Iterator[None]:
    """Progress is ours to show."""
    if library.utils.are_progress_bars_disabled():
        yield
        return
    library.utils.disable_progress_bars()
    try:
        yield
    finally:
        library.utils.enable_progress_bars()


@contextlib.contextmanager
def _lock(library: Any, folder: HubFolder) -> Iterator[None]:
    """Two pulls of one model take turns: they would write into one partial file."""
    folder.part.mkdir(parents=True, exist_ok=True)
    with library.utils.WeakFileLock(folder.part.with_name(f".{folder.part.name}.lock")):
        folder.part.mkdir(parents=True, exist_ok=True)  # the one before has removed it
        yield


@contextlib.contextmanager
def _disk(folder: HubFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        root = folder.path.parent
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise PullError(f"the disk of {root} is full; make room, or name another folder in AIE_CACHE") from error
        raise PullError(
            f"the cache folder {root} cannot be used ({error.strerror or error}); make it writable, or name another "
            "one in AIE_CACHE"
        ) from error


def _check_space(folder: HubFolder, files: Sequence[HubFile]) -> None:
    here = sum(path.stat().st_size for path in (_partial(folder, file) for file in files) if path.is_file())
    needed = sum(file.size_bytes for file in files) - here + _SPARE_BYTES
    free = shutil.disk_usage(folder.part).free
    if free < needed:
        raise PullError(
            f"the disk of {folder.path.parent} has {free:,} bytes free, but the pull needs {needed:,}; make room, or "
            "name a folder on another disk in AIE_CACHE"
        )
