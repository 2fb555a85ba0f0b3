"""The files that a load test writes: checked before it starts, and written also when it was interrupted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aie.console import check_writable, write_file
from aie_engine import InvalidInputError

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where to; None: not wanted."""

    json: Path | None = None
    rows: Path | None = None
    markdown: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Raises `EnvironmentLacksError` for a path that cannot be written, `InvalidInputError` for two that are one:
        better before a long measurement."""
        taken: dict[Path, str] = {}
        for flag, path in self._paths().items():
            check_writable(path, flag=flag)
            other = taken.setdefault(path.resolve(), flag)
            if other != flag and not (path.exists() and not path.is_file()):
                raise InvalidInputError(f"{other} and {flag} name the same file, {path}; give each its own.")

    def write(self, document: Mapping[str, Any], requests: Sequence[Mapping[str, object]]) -> None:
        """document: of `--json`. requests: single ones, a line for each."""
        from aie.bench.pages import html, markdown

        makers = {
            "--json": lambda: json.dumps(document, indent=2) + "\n",
            "--rows": lambda: "".join(json.dumps(row) + "\n" for row in requests),
            "--markdown": lambda: markdown(document),
            "--html": lambda: html(document),
        }
        for flag, path in self._paths().items():
            write_file(path, makers[flag]().encode(), flag=flag)

    def _paths(self) -> dict[str, Path]:
        named = {"--json": self.json, "--rows": self.rows, "--markdown": self.markdown, "--html": self.html}
        return {flag: path for flag, path in named.items() if path is not None}
