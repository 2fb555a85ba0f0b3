"""Running pip as a program, wherever it is to be found, to download one wheel.

pip and not our own HTTP client, because pip already knows the user's index, mirror, proxy and certificates. An
environment made by uv has no pip, so three other places are tried. pip is only asked to download: it installs nothing
and runs no package code.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aie_loader.errors import PullError

__all__ = ["download_wheel", "find_pip"]

_POLL_S = 0.2
_GRACE_S = 5.0


def find_pip() -> list[str]:
    """The start of a command line that runs pip. Raises `PullError` when there is none.

    In order: this interpreter's pip; pip on the PATH; the pip that Python keeps for making environments (a wheel can
    be run without being installed); pip run by uv, which fetches it first.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        # A shim on the PATH may point to nothing, so it must answer.
        if (found := shutil.which(name)) and _answers([found]):
            return [found]
    for wheel in _bundled_wheels():
        if _answers(command := [sys.executable, str(wheel / "pip")]):
            return command
    if uv := shutil.which("uv"):
        # Named, or uv might go and fetch an interpreter of its own.
        return [uv, "tool", "run", "--python", sys.executable, "--from", "pip", "pip"]
    raise PullError(
        f"there is no pip to download with: neither in {sys.prefix}, nor on the PATH, nor uv. "
        f"Install it with `{Path(sys.executable).name} -m ensurepip`"
    )


def _bundled_wheels() -> list[Path]:
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl"))


def _answers(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def download_wheel(
    requirement: str, folder: Path, *, pip: Sequence[str], on_bytes: Callable[[int], None]
) -> tuple[Path | None, list[str]]:
    """Download the wheel of `requirement` (`name==version`) into `folder`, an empty folder that is all pip's.

    Returns its path, or None when pip failed, and what pip printed. `on_bytes` is told the bytes so far, some times a
    second. Leaving by any exception, such as KeyboardInterrupt, ends pip first.
    """
    target, scratch, log = folder / "wheel", folder / "scratch", folder / "pip.log"
    target.mkdir()
    scratch.mkdir()
    # pip downloads into its temporary folder and copies then: keep that on the disk whose space was checked, and
    # visible.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    command = [
        *pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off",
        "--no-input", "--disable-pip-version-check", "--dest", str(target), requirement,
    ]  # fmt: skip
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        except OSError as error:
            raise PullError(f"pip cannot be started as {pip[0]}: {error.strerror or error}") from error
        try:
            while process.poll() is None:
                on_bytes(_largest_file(folder))
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            _end(process)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    wheels = sorted(target.glob("*.whl"))
    return (wheels[0] if process.returncode == 0 and wheels else None), lines


def _largest_file(folder: Path) -> int:
    """Size of the biggest file below `folder`: the wheel, under whatever name it has while it grows."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # moved or deleted while we look
                continue
    return largest


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
