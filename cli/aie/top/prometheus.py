"""Prometheus' text format, as far as servers of models use it: names, labels, numbers.

A line is `name{label="value",…} number [time]`; what begins with `#` says what a name means. Timestamps and the extras
of OpenMetrics (`# EOF`, exemplars) are passed over.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Buckets", "Scrape", "parse"]

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s.*)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_MEANING = {"n": "\n"}


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: for each upper bound, ascending, how many observations were not above it."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]  # cumulative; the last is all of them

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: "Buckets | None") -> "Buckets":
        """What was added. A server that began anew has fewer than before: then all that it has is new."""
        if before is None or before.bounds != self.bounds or before.count > self.count:
            return self
        return Buckets(self.bounds, tuple(now - then for now, then in zip(self.counts, before.counts, strict=True)))

    def quantile(self, q: float) -> float | None:
        """By a straight line within the bucket, as Prometheus' `histogram_quantile` does; above the last finite bound,
        that bound. None where nothing was observed."""
        if not self.count:
            return None
        rank, below, lower = q * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > below:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (rank - below) / (count - below)
            below, lower = count, bound if not math.isinf(bound) else lower
        return lower


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of `/metrics`."""

    samples: Mapping[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    def of(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Samples of `name` that have these labels; one that has no such label at all counts, too."""
        for found, value in self.samples.get(name, ()):
            if all(found.get(label, wanted) == wanted for label, wanted in labels.items()):
                yield found, value

    def total(self, name: str, **labels: str) -> float | None:
        """The sum; None where there is no such sample."""
        values = [value for _, value in self.of(name, **labels)]
        return sum(values) if values else None

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The sums for each value of `label`."""
        sums: dict[str, float] = {}
        for found, value in self.of(name, **labels):
            key = found.get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def buckets(self, name: str, **labels: str) -> Buckets | None:
        """The histogram `name`, summed over all other labels."""
        sums: dict[float, float] = {}
        for le, value in self.by(f"{name}_bucket", "le", **labels).items():
            try:
                sums[float(le)] = value
            except ValueError:
                return None
        if not sums:
            return None
        bounds = tuple(sorted(sums))
        return Buckets(bounds, tuple(sums[bound] for bound in bounds))


def parse(text: str) -> Scrape:
    """Raises `ValueError` for what is no such text, or has not a single sample in it. Values that are no finite number
    are not there."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"line {number} is no sample: {line[:60]!r}")
        name, labels, value = found.groups()
        known = samples.setdefault(name, [])
        if math.isfinite(figure := _number(value, number)):  # NaN: nothing was observed
            known.append((_labels(labels), figure))
    if not samples:
        raise ValueError("there is no sample in it")
    return Scrape(samples)


def _labels(text: str | None) -> Mapping[str, str]:
    if not text:
        return {}
    return {
        name: _ESCAPE.sub(lambda escape: _MEANING.get(escape[1], escape[1]), value) if "\\" in value else value
        for name, value in _LABEL.findall(text)
    }


def _number(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line} has no number: {text[:30]!r}") from None
