"""A process's memory at one moment, as data that can be saved, sent, compared and drawn.

The JSON carries a version. A file of another version, one that is cut off and one whose fields have other types are
refused with a sentence that names the file and the field: figures that are silently wrong would be worse than none.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from aie_tensor.errors import EnvironmentLacksError, InvalidInputError
from aie_tensor.memory.state import PoolState

__all__ = ["SNAPSHOT_VERSION", "HeldGroup", "MemorySnapshot", "load_snapshot", "save_snapshot", "snapshot_from_json"]

SNAPSHOT_VERSION = 1
_YEAR_9999 = 253_370_764_800  # Unix time


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Everything still held that one call stack asked for, for one kind of owner."""

    what: str  # `Owner.what`, so without request ids: a leak is one place in the code, whatever request met it
    model: str
    worker: str
    stage: str
    stack: tuple[str, ...]  # "file:line in function", innermost first
    count: int
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    oldest_s: float
    requests: tuple[str, ...]  # ids of up to three of the requests that hold it


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """See the module's text. Bytes throughout."""

    version: int
    taken_at: float  # Unix time
    process: str  # "engine-0", "script"
    pid: int
    num_requests: int  # ended since the start, however they ended
    sample_every: int  # 0: the ledger was off, 1: every allocation was recorded, 64: one in 64
    pools: tuple[PoolState, ...]
    groups: tuple[HeldGroup, ...]  # most bytes first
    ages: tuple[tuple[str, int, int], ...]  # histogram of what is held: (label as "< 1 s", count, bytes)
    rss_bytes: int
    num_lost: int = 0  # held things that were not recorded, since the ledger was off or sampling when they were made
    device_bytes: tuple[
        tuple[str, int], ...
    ] = ()  # what this process uses of each device, as the driver says: (device, bytes)

    def to_json(self) -> dict[str, object]:
        """Dictionaries, lists, text and numbers only; `snapshot_from_json` is the way back."""
        return cast(dict[str, object], msgspec.to_builtins(self, builtin_types=()))


def snapshot_from_json(obj: object, *, name: str = "the snapshot") -> MemorySnapshot:
    """What `to_json` gave. InvalidInputError says what is wrong with `name`."""
    if not isinstance(obj, dict) or not isinstance(obj.get("version"), int):
        raise InvalidInputError(f"{name} is not a memory snapshot: it is no JSON object with a version number.")
    if obj["version"] != SNAPSHOT_VERSION:
        raise InvalidInputError(
            f"{name} is a memory snapshot of version {obj['version']}, and this program reads version "
            f"{SNAPSHOT_VERSION}. Take it again, or read it with the program that wrote it."
        )
    try:
        snapshot = msgspec.convert(obj, MemorySnapshot)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{name} is not a memory snapshot of version {SNAPSHOT_VERSION}: {error}.") from error
    if not 0 <= snapshot.taken_at < _YEAR_9999:
        raise InvalidInputError(f"{name} is not a memory snapshot: {snapshot.taken_at:g} s is no time of our calendar.")
    return snapshot


def save_snapshot(snapshot: MemorySnapshot, path: Path) -> None:
    """Write it as JSON; a reader sees the old file or the whole new one. EnvironmentLacksError where it cannot."""
    if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced
        raise EnvironmentLacksError(f"cannot write the snapshot {path}: it is no ordinary file.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(msgspec.json.encode(snapshot))
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise EnvironmentLacksError(f"cannot write the snapshot {path}: {error.strerror or error}.") from error


def load_snapshot(path: Path) -> MemorySnapshot:
    """What `save_snapshot` wrote. InvalidInputError where it cannot be read, is cut off or of another version."""
    try:
        obj = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"cannot read the snapshot {path}: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not a memory snapshot, or it is cut off: {error}.") from error
    return snapshot_from_json(obj, name=str(path))
