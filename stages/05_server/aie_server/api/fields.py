"""Reading one field of a JSON object at a time, so that every refusal can name the field and the rule.

`null` means "not given" everywhere, as OpenAI's clients send it. `true` is not a number, although Python thinks so.
"""

import math
from collections.abc import Mapping

from aie_engine import InvalidInputError

__all__ = ["Fields"]


class Fields:
    """All methods raise `InvalidInputError` with `param` set to the field's name."""

    def __init__(self, values: Mapping[str, object], path: str = "") -> None:
        self._values = values
        self._path = path

    def name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def get(self, field: str) -> object:
        return self._values.get(field)

    def has(self, field: str) -> bool:
        return self._values.get(field) is not None

    def error(self, field: str, rule: str) -> InvalidInputError:
        return InvalidInputError(f"{self.name(field)} must be {rule}.", param=self.name(field))

    def text(self, field: str) -> str | None:
        value = self._values.get(field)
        if value is None or isinstance(value, str):
            return value
        raise self.error(field, "a string")

    def flag(self, field: str, default: bool) -> bool:
        value = self._values.get(field)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self.error(field, "true or false")

    def integer(self, field: str, *, low: int, high: int) -> int | None:
        value = self._values.get(field)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # some clients send 16.0
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, "a whole number")
        if not low <= value <= high:
            raise self.error(field, f"from {low} to {high}")
        return value

    def number(self, field: str, default: float, *, low: float, high: float, low_excluded: bool = False) -> float:
        value = self._values.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(field, "a number")
        if not low <= value <= high or (low_excluded and value == low):  # compared before float(): an int may be huge
            raise self.error(
                field,
                f"{'above' if low_excluded else 'from'} {low:g} {'and at most' if low_excluded else 'to'} {high:g}",
            )
        assert math.isfinite(value)
        return float(value)

    def object(self, field: str) -> "Fields | None":
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(field, "an object")
        return Fields(value, self.name(field))

    def names(self) -> list[str]:
        return list(self._values)

    def token_ids(
        self, field: str, *, vocab_size: int, max_length: int, what: str = "token ids"
    ) -> tuple[int, ...] | None:
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(field, f"a list of {what}")
        if len(value) > max_length:
            raise self.error(field, f"a list of at most {max_length} {what}, not {len(value)}")
        if not all(type(token) is int and 0 <= token < vocab_size for token in value):
            raise self.error(field, f"a list of {what}, each from 0 to {vocab_size - 1}")
        return tuple(value)

    def strings(self, field: str, *, max_length: int, max_chars: int) -> tuple[str, ...]:
        """A string or a list of strings; empty ones are refused."""
        value = self._values.get(field)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.error(field, "a string or a list of strings")
        if len(values) > max_length:
            raise self.error(field, f"a list of at most {max_length} strings, not {len(values)}")
        if not all(0 < len(item) <= max_chars for item in values):
            raise self.error(field, f"made of strings of 1 to {max_chars} characters")
        return tuple(values)
