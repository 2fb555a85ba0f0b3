"""What one rendering of a chat template has used up, and how large the things are that it builds."""

from collections.abc import Callable, Iterable, Mapping, MappingView, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from jinja2.runtime import Context

from aie_loader.errors import ChatTemplateError

__all__ = ["METER", "Meter", "RenderLimits", "meter_of", "result_size"]

METER = "_meter"  # the template's variable that holds it
_MAX_INT_BITS = 4096
_ATOM_CHARS = 8  # a number, None, a bracket with its comma


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Far above what real templates need: they take one step per message and part, and milliseconds."""

    max_chars: int = 16 << 20  # of the output, and of any text or list on the way
    max_steps: int = 1_000_000  # loop iterations and calls, all together
    max_built: int = 256 << 20  # characters of all texts on the way together, eight for an entry of a list
    max_seconds: float = 5.0

    def check_size(self, size: int) -> None:
        if size > self.max_chars:
            raise ChatTemplateError(f"the chat template builds a text of more than {self.max_chars} characters")


@dataclass(slots=True)
class Meter:
    """One per rendering."""

    limits: RenderLimits
    clock: Callable[[], float]
    started: float
    steps: int = field(default=0)
    _built: int = field(default=0)
    # id → the value, kept so that the id stays its own, and its weight: nothing in a template can be changed
    _weights: dict[int, tuple[object, int]] = field(default_factory=dict)

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > self.limits.max_steps:
            raise ChatTemplateError(f"the chat template loops more than {self.limits.max_steps} times in all")
        self._check_time()

    def built(self, value: Any) -> Any:
        """`value`, which the template has just made: not too heavy, nor is all that it has made, kept or not."""
        if isinstance(value, str):
            self.limits.check_size(len(value))
            self._built += len(value)
        elif isinstance(value, list | tuple | dict):
            self.weighed(value)
            self._built += _ATOM_CHARS * len(value)
        else:
            return value
        if self._built > self.limits.max_built:
            raise ChatTemplateError(f"the chat template builds more than {self.limits.max_built} characters in all")
        self._check_time()
        return value

    def _check_time(self) -> None:
        if self.clock() - self.started > self.limits.max_seconds:
            raise ChatTemplateError(f"the chat template takes longer than {self.limits.max_seconds:g} s")

    def weigh(self, value: object) -> int:
        """About the characters of `value` as a text; a part that it refers to twice counts twice.

        A list of twice the list before, forty times over, takes no memory, until something makes a text of it. Raises
        `ChatTemplateError` at the limit.
        """
        if isinstance(value, str):
            return len(value)
        if isinstance(value, range):
            return _ATOM_CHARS * len(value)
        parts: Iterable[object]
        if isinstance(value, Mapping):
            parts = chain(value.keys(), value.values())
        elif isinstance(value, list | tuple | set | frozenset | MappingView):
            parts = value if not isinstance(value, MappingView) else iter(value)  # type: ignore[call-overload]
        else:
            return _ATOM_CHARS
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        total = _ATOM_CHARS
        for part in parts:
            total += 2 + self.weigh(part)
            self.limits.check_size(total)
        self._weights[id(value)] = (value, total)
        return total

    def weighed(self, value: Any) -> Any:
        """`value`, if it is not too heavy."""
        self.limits.check_size(self.weigh(value))
        return value


def meter_of(context: Context) -> Meter:
    meter = context.resolve(METER)
    assert isinstance(meter, Meter), meter
    return meter


def result_size(meter: Meter, operator: str, left: Any, right: Any) -> int:
    """Weight of what `left operator right` would build; 0 where it builds a number of sane size."""
    sizes = [meter.weigh(side) for side in (left, right) if isinstance(side, Sized)]
    counts = [side for side in (left, right) if isinstance(side, int)]
    if operator == "+":
        return sum(sizes)
    if operator == "*" and sizes and counts:
        return sizes[0] * max(counts[0], 0)
    if operator in {"*", "**"} and len(counts) == 2:
        bits = [abs(count).bit_length() for count in counts]
        if (sum(bits) if operator == "*" else bits[0] * abs(counts[1])) > _MAX_INT_BITS:
            raise ChatTemplateError("the chat template computes with numbers of more than 4096 bits")
    return 0
