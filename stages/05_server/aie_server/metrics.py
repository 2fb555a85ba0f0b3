"""Counters, gauges and histograms in Prometheus' text format 0.0.4, in one small file of our own.

A family has a name and label names; `labels(...)` gives the child that counts. Children are plain objects to be kept
by whoever counts often: the per-token path does one lock and one addition, no look-up.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["Counter", "Family", "Gauge", "Histogram", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Child(Protocol):
    def render(self, name: str, labels: Sequence[tuple[str, str]]) -> Iterable[str]: ...


_C = TypeVar("_C", bound=_Child)


class Counter:
    """Only grows. `set_total` is for totals that are counted elsewhere and read at each scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen_total = 0.0
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self.value += amount

    def set_total(self, total: float) -> None:
        """A total below the last one means that the other side began anew (a restarted engine): it is added on top."""
        with self._lock:
            self.value += total - self._seen_total if total >= self._seen_total else total
            self._seen_total = total

    def begin_anew(self) -> None:
        """The next total is another counter's, whatever it is."""
        with self._lock:
            self._seen_total = 0.0

    def render(self, name: str, labels: Sequence[tuple[str, str]]) -> Iterable[str]:
        yield f"{name}{_label_text(labels)} {_number(self.value)}"


class Gauge:
    """A value of now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self.value += amount

    def render(self, name: str, labels: Sequence[tuple[str, str]]) -> Iterable[str]:
        yield f"{name}{_label_text(labels)} {_number(self.value)}"


class Histogram:
    """Counts by upper bound, cumulative when printed, as Prometheus wants it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last one: above every bound
        self._sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        index = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def render(self, name: str, labels: Sequence[tuple[str, str]]) -> Iterable[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        below = 0
        for bound, count in zip([*self._bounds, math.inf], counts, strict=True):
            below += count
            yield f"{name}_bucket{_label_text([*labels, ('le', _number(bound))])} {below}"
        yield f"{name}_sum{_label_text(labels)} {_number(total)}"
        yield f"{name}_count{_label_text(labels)} {below}"


class Family(Generic[_C]):
    """All children of one metric name."""

    def __init__(self, kind: str, name: str, text: str, label_names: Sequence[str], make: Callable[[], _C]) -> None:
        self.name = name
        self._kind = kind
        self._text = text
        self._label_names = tuple(label_names)
        self._make = make
        self._lock = threading.Lock()
        self._children: dict[tuple[str, ...], _C] = {}

    def labels(self, *values: str) -> _C:
        assert len(values) == len(self._label_names), (self.name, self._label_names, values)
        with self._lock:
            child = self._children.get(values)
            if child is None:
                child = self._children[values] = self._make()
            return child

    def forget(self, first: str) -> None:
        """Drop the children whose first label is `first`: what they told of is no more."""
        with self._lock:
            self._children = {values: child for values, child in self._children.items() if values[:1] != (first,)}

    def render(self) -> Iterable[str]:
        with self._lock:
            children = list(self._children.items())
        # The format names a counter's family without _total only in OpenMetrics; 0.0.4 keeps it.
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} {self._kind}"
        for values, child in children:
            yield from child.render(self.name, list(zip(self._label_names, values, strict=True)))


class Metrics:
    """The registry. `prefix` stands before every name: `aie_` by default, `vllm:` for boards made for vLLM."""

    def __init__(self, prefix: str = "aie_") -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}
        self._collectors: list[Callable[[], None]] = []

    def counter(self, name: str, text: str, label_names: Sequence[str] = ()) -> Family[Counter]:
        family = Family("counter", self._prefix + name, text, label_names, Counter)
        self._register(family)
        return family

    def gauge(self, name: str, text: str, label_names: Sequence[str] = ()) -> Family[Gauge]:
        family = Family("gauge", self._prefix + name, text, label_names, Gauge)
        self._register(family)
        return family

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], label_names: Sequence[str] = ()
    ) -> Family[Histogram]:
        family = Family("histogram", self._prefix + name, text, label_names, lambda: Histogram(bounds))
        self._register(family)
        return family

    def on_scrape(self, collect: Callable[[], None]) -> None:
        """`collect` is called before each rendering, to read figures that live elsewhere."""
        self._collectors.append(collect)

    def render(self) -> str:
        for collect in self._collectors:
            collect()
        with self._lock:
            families = list(self._families.values())
        lines = [line for family in families for line in family.render()]
        return "\n".join(lines) + "\n"

    def _register(self, family: Family[Counter] | Family[Gauge] | Family[Histogram]) -> None:
        with self._lock:
            assert family.name not in self._families, f"the metric {family.name} exists already"
            self._families[family.name] = family


def _label_text(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
