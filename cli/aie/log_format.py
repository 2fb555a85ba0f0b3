"""Lines of the log as JSON, one object each: for those who read logs with programs.

    {"timestamp": "2026-11-30T14:05:01.123456Z", "level": "info", "logger": "aie.access", "message": "…", "status": 200}

What a client sent may hold anything. Only ASCII is written, everything else escaped; half a character, which no JSON
text may hold, is shown as Python would write it; a number that is none is text. So each line is one valid object.
"""

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["FORMATS", "JsonFormatter", "TextFormatter", "json_line", "make_formatter"]

FORMATS: Final = ("text", "json")
_OWN: Final = ("timestamp", "level", "logger", "message")


class TextFormatter(logging.Formatter):
    """For people: local time, level, who says it, what."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """A record may carry `fields`, by name, or what gives them; a field that has the name of one of ours gets an
    underscore behind it."""

    def format(self, record: logging.LogRecord) -> str:
        found = getattr(record, "fields", {})
        fields = dict(found() if callable(found) else found)
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(record.created, record.levelname, record.name, record.getMessage(), fields)


def make_formatter(name: str) -> logging.Formatter:
    """name: one of `FORMATS`."""
    return JsonFormatter() if name == "json" else TextFormatter()


def json_line(at_s: float, level: str, logger: str, message: str, fields: Mapping[str, object] | None = None) -> str:
    """One object, without the end of the line. at_s: since 1970."""
    when = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"timestamp": when, "level": level.lower(), "logger": logger, "message": _plain(message)}
    for name, value in (fields or {}).items():
        line[f"{name}_" if name in _OWN else str(_plain(name))] = _plain(value)
    return json.dumps(line)


def _plain(value: object) -> Any:
    """What JSON has a form for."""
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value).encode("utf-8", "backslashreplace").decode()
