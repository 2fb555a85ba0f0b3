"""What `aie doctor` looks at without a server: is everything here that serving needs?"""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from aie.console import format_bytes
from aie.doctor.finding import Finding, Level
from aie.doctor.machine import judge_machine, read_machine
from aie_engine import AieError, InvalidInputError, available_cores

__all__ = ["static_findings"]


def static_findings(port: int) -> list[Finding]:
    """Python, machine, kernels, models and port. Raises `InvalidInputError` for a port that is none."""
    if not 0 <= port <= 65535:
        raise InvalidInputError(f"--port is {port}; it must be from 0 to 65535.", param="port")
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _machine,
        _cache,
        _kernels,
        _models,
        lambda: _port(port),
        _cuda,
        lambda: judge_machine(read_machine()),
    ]
    return [finding for check in checks for finding in check()]


def _python() -> list[Finding]:
    from aie.version import versions

    text = f"{platform.python_version()} with " + ", ".join(f"{k} {v}" for k, v in versions().items())
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return [Finding("python", "ok" if fits else "note", text if fits else f"{text}; tested are 3.11 to 3.13")]


def _machine() -> list[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    need = 1.3e9  # the default model with its whole KV cache in use, all processes together
    level: Level = "ok" if memory.available >= need else "note"
    text = (
        f"{available_cores()} cores for this process, "
        f"{format_bytes(memory.available)} of {format_bytes(memory.total)} memory free"
    )
    remedy = "" if level == "ok" else "; the default settings may use 1.2 GiB, so give --kv-memory 256MiB"
    return [Finding("machine", level, text + remedy)]


def _cache() -> list[Finding]:
    """Can a model be pulled to where models are kept? Asked of the nearest folder that exists; nothing is created."""
    from aie.assemble import DEFAULT_MODEL
    from aie_loader import resolve
    from aie_tensor import cache_dir

    folder = cache_dir()
    nearest = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK) and _takes_a_file(nearest):
        return [Finding("cache", "ok", f"{folder} ({format_bytes(shutil.disk_usage(nearest).free)} free)")]
    text = f"{folder} cannot be written; make it writable, or name another folder in AIE_CACHE"
    try:
        resolve(DEFAULT_MODEL)
    except AieError:
        return [Finding("cache", "bad", f"{text} (the default model is not there yet)")]
    return [Finding("cache", "note", text)]


def _takes_a_file(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _kernels() -> list[Finding]:
    from aie_tensor import native

    lines: list[str] = []
    try:
        library = native.load(report=lines.append)
    except AieError as error:
        return [
            Finding(
                "kernels", "note", f"{error} Until then everything runs on NumPy, correctly and several times slower."
            )
        ]
    return [Finding("kernels", "ok", f"{library.isa}, compiled at {library.path}")]


def _models() -> list[Finding]:
    from aie_loader import list_models

    findings = []
    for entry in list_models():
        if entry.is_present:
            findings.append(Finding(f"model {entry.alias}", "ok", f"{entry.path} ({format_bytes(entry.size_bytes)})"))
        else:
            findings.append(Finding(f"model {entry.alias}", "note", f"not here; `aie pull {entry.alias}` gets it"))
    return findings


def _port(port: int) -> list[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error)
            return [Finding(f"port {port}", "note", f"{reason}; stop what uses it, or serve with --port N")]
    return [Finding(f"port {port}", "ok", "free")]


def _cuda() -> list[Finding]:
    return [Finding("cuda", "note", "there is no CUDA executor yet; everything runs on the CPU")]
