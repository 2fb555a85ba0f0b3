"""The files that a run may leave behind: report, snapshot, log, and forms that other viewers open."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aie.console import check_writable, note, write_file, write_json
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_tensor.memdebug import MemorySnapshot

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the person wants what; None: not wanted."""

    json_path: Path | None = None
    snapshot: Path | None = None
    flamegraph: Path | None = None
    memory_viz: Path | None = None
    perfetto: Path | None = None
    record: Path | None = None  # the log of every allocation, written while the run lasts

    def check(self) -> None:
        """Raises `EnvironmentLacksError` where one cannot be written: better now than after a long run."""
        paths = {
            "--json": self.json_path,
            "--snapshot": self.snapshot,
            "--flamegraph": self.flamegraph,
            "--memory-viz": self.memory_viz,
            "--perfetto": self.perfetto,
            "--record": self.record,
        }
        wanted = {flag: path for flag, path in paths.items() if path is not None}
        for flag, path in wanted.items():
            check_writable(path, flag=flag)
        places: dict[Path, str] = {}
        for flag, path in wanted.items():
            if path.resolve() in places and (path.is_file() or not path.exists()):
                raise InvalidInputError(f"{places[path.resolve()]} and {flag} name the same file, {path}.")
            places[path.resolve()] = flag

    def absolute(self) -> "Outputs":
        """The same files, wherever the process goes."""
        paths = {field.name: getattr(self, field.name) for field in fields(self)}
        return Outputs(**{name: path if path is None else path.absolute() for name, path in paths.items()})

    @property
    def takes_one(self) -> bool:
        """Whether a file is wanted that holds one snapshot, of one process."""
        return self.snapshot is not None or self.memory_viz is not None

    @contextmanager
    def recording(self) -> "Iterator[Outputs]":
        """These outputs with a log where one is needed: the history over time is made from it."""
        if self.record is not None or (self.perfetto is None and self.memory_viz is None):
            yield self
            return
        with TemporaryDirectory(prefix="aie-memdebug-") as folder:
            yield replace(self, record=Path(folder) / "memory.log")

    def write_snapshots(self, snapshots: "Sequence[MemorySnapshot]") -> None:
        """The snapshot, and what is made from it and from the log. What takes one snapshot takes the first."""
        from aie_tensor.memdebug import collapsed_stacks, memory_viz, perfetto, read_log

        assert len(snapshots) == 1 or not self.takes_one, "several snapshots for one file"
        events = read_log(self.record) if self.record is not None and (self.memory_viz or self.perfetto) else ()
        if self.snapshot is not None:
            write_file(self.snapshot, json.dumps(snapshots[0].to_json()).encode() + b"\n", flag="--snapshot")
        if self.flamegraph is not None:
            text = "".join(collapsed_stacks(snapshot) for snapshot in snapshots)
            write_file(self.flamegraph, text.encode(), flag="--flamegraph")
        if self.memory_viz is not None:
            write_file(self.memory_viz, memory_viz(snapshots[0], events), flag="--memory-viz")
        if self.perfetto is not None:
            write_file(self.perfetto, json.dumps(perfetto(events)).encode(), flag="--perfetto")
        for path, opens in self._viewers():
            note(f"{path}: {opens}")

    def write_report(self, document: object) -> None:
        if self.json_path is not None:
            write_json(self.json_path, document)

    def _viewers(self) -> list[tuple[Path, str]]:
        """How to look at what was written."""
        candidates = [
            (self.snapshot, "compare it with another by `aie memdebug diff`"),
            (self.flamegraph, "collapsed stacks, for flamegraph.pl or speedscope"),
            (self.memory_viz, "open it in PyTorch's memory_viz page"),
            (self.perfetto, "open it in Perfetto or chrome://tracing"),
        ]
        return [(path, opens) for path, opens in candidates if path is not None]
