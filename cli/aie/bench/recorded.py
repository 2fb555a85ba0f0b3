"""A report that `aie bench --json` wrote, read back: its levels by label, and whether another is of the same test."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aie.bench.options import GENERATE, MIX
from aie_engine import InvalidInputError

__all__ = ["FORMAT", "Recorded", "level_label", "read_report"]

FORMAT = 3
_TEST = ("endpoint", "lengths")  # that must agree, beside all of `test`
_NUMBERS = ("requests", "answered", "failed", "requests_per_s")  # that every level has


@dataclass(frozen=True, slots=True)
class Recorded:
    """One report."""

    path: Path
    document: Mapping[str, Any]
    levels: Mapping[str, Sequence[Mapping[str, Any]]]  # label → a row for each run; of a mix by level and part

    @property
    def generates(self) -> bool:
        """Whether it is of a model that generates text, or may be in part."""
        return self.document["endpoint"] in (*GENERATE, MIX)

    @property
    def is_search(self) -> bool:
        """Whether it looked for the highest rate; its levels are then probes, of rates of its own."""
        return isinstance(self.document.get("find_max"), dict)

    def must_be_of_the_same_test(self, other: "Recorded") -> None:
        """Raises `InvalidInputError`."""
        self._must_agree("--find-max", self.is_search, other, other.is_search)
        for name in _TEST:
            self._must_agree(name, self.document.get(name), other, other.document.get(name))
        test, others = self.document.get("test") or {}, other.document.get("test") or {}
        for name in sorted({*test, *others}):
            self._must_agree(name, test.get(name), other, others.get(name))

    def shared_levels(self, other: "Recorded") -> list[str]:
        """Raises `InvalidInputError` where the two are of different tests."""
        self.must_be_of_the_same_test(other)
        shared = [label for label in self.levels if label in other.levels]
        if not shared:
            raise InvalidInputError(
                f"No level is in both: {self.path} has {', '.join(self.levels) or 'none'}, "
                f"{other.path} has {', '.join(other.levels) or 'none'}. Measure the same --concurrency or --rate."
            )
        return shared

    def remarks(self, side: str, shared: Sequence[str]) -> list[str]:
        """What a reader must know about this side: it was cut off, requests failed, a level has no partner."""
        found = []
        if not self.document.get("complete", True):
            part = "its search ended early" if self.is_search else "its last level is of a part of the requests"
            found.append(f"{side} was interrupted: {part}.")
        for label in shared:
            failed = sum(level["failed"] for level in self.levels[label])
            if failed:
                total = sum(level["requests"] for level in self.levels[label])
                found.append(f"{side} at {label}: {failed} of {total} requests failed; latencies are of the others.")
        stopped = [label for label in shared if any(level.get("stopped") for level in self.levels[label])]
        if stopped and not self.is_search:
            found.append(f"{side} was stopped early at {', '.join(stopped)}, so that is not judged.")
        alone = [label for label in self.levels if label not in shared]
        if alone and not self.is_search:
            found.append(f"Only in {side}: {', '.join(alone)}.")
        return found

    def _must_agree(self, name: str, mine: object, other: "Recorded", others: object) -> None:
        if mine != others:
            raise InvalidInputError(
                f"The two are of different tests: {name} is {_shown(mine)} in {self.path} and {_shown(others)} in "
                f"{other.path}."
            )


def read_report(path: Path) -> Recorded:
    """Raises `InvalidInputError` for a file that is no such report."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{path} is no JSON; give a file that `aie bench --json PATH` wrote.") from None
    if not isinstance(document, dict) or not isinstance(document.get("levels"), list) or "endpoint" not in document:
        raise InvalidInputError(f"{path} is no report of `aie bench --json`.")
    if document.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} has format {_shown(document.get('format'))}, and this aie reads {FORMAT}; measure again."
        )
    levels: dict[str, list[Mapping[str, Any]]] = {}
    for level in document["levels"]:
        if not isinstance(level, dict) or not all(isinstance(level.get(name), int | float) for name in _NUMBERS):
            raise InvalidInputError(f"{path} has a level without its figures; is the file damaged?")
        for label, row in _rows(level):
            levels.setdefault(label, []).append(row)
    return Recorded(path, document, levels)


def _rows(level: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Of a mix the parts by themselves: a median over all of them would be that of none."""
    label, parts = level_label(level), level.get("parts")
    if not isinstance(parts, dict) or not parts:
        return [(label, level)]
    return [(f"{label}, {name}", part) for name, part in parts.items()]


def level_label(level: Mapping[str, Any]) -> str:
    """What was asked of the server."""
    if level.get("rate") is not None:
        return str(level["rate"])
    rate = level.get("offered_per_s")
    if rate is not None:
        return f"{rate:g} requests/s"
    clients = level.get("concurrency")
    return f"{clients} client{'' if clients == 1 else 's'}"


def _shown(value: object) -> str:
    return "not given" if value is None else json.dumps(value)
