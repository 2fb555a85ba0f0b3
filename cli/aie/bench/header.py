"""What stands at the head of a report, so that its figures can be placed later: what was tested, where, when and by
which source."""

import asyncio
import json
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import aie
from aie.bench.client import get_text
from aie.bench.generator import Endpoint
from aie.console import format_bytes

__all__ = ["header", "header_lines", "server_version", "source_commit"]

_ASK_S = 2.0
# Where servers tell what they are: ours and vLLM, llama-server, SGLang, Triton and others of open inference.
_TELLING = ("/version", "/props", "/get_server_info", "/v2")
_KEYS = ("name", "version", "build_info", "git_sha", "git_commit", "commit", "revision")


def header(endpoint: Endpoint, seed: int) -> dict[str, object]:
    """For `--json`. server: whatever it tells of itself; empty where it tells nothing."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "server": asyncio.run(server_version(endpoint)),
        "commit": source_commit(Path(aie.__file__)),
        "host": {
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processor": _processor(),
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "clock": _clock(),
    }


def header_lines(found: Mapping[str, Any]) -> list[str]:
    """As sentences."""
    server = " ".join(f"{name} {value}" for name, value in found["server"].items())
    host = found["host"]
    source = "" if found["commit"] is None else f" by aie at commit {found['commit'][:12]}"
    return [
        f"The server tells of itself: {server or 'nothing'}.",
        f"Measured {found['started']}{source}, seed {found['seed']}, on {host['processor']}, "
        f"{host['cores']} cores, {format_bytes(host['memory_bytes'])}, {host['system']}; clock: {found['clock']}.",
    ]


async def server_version(endpoint: Endpoint) -> dict[str, str]:
    """Version and commit, where the server tells them. Never raises for what it answers."""
    with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        for path in _TELLING:
            status, text = await get_text(endpoint, path, timeout_s=_ASK_S)
            if status == 200 and (found := _told(text)):
                return found
    return {}


def _told(text: str) -> dict[str, str]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: document[key][:100] for key in _KEYS if isinstance(document.get(key), str) and document[key]}


def source_commit(inside: Path) -> str | None:
    """Of the checkout that holds this file; None where it is in none, such as an installed package."""
    for folder in inside.resolve().parents:
        git = folder / ".git"
        if git.is_dir():
            with suppress(OSError, UnicodeDecodeError):
                return _head(git)
            return None
    return None


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _clock() -> str:
    info = time.get_clock_info("perf_counter")
    return f"{info.implementation}, to {info.resolution * 1e9:g} ns"
