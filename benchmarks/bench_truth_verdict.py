"""One figure beside its truth, and tables of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aie.version import versions

__all__ = ["Compared", "Finding", "compare", "lookup", "markdown", "shown"]

WITHIN_MS, WITHIN_SHARE = 1.0, 0.01
_TIMES = ("ttfr.", "ttft.", "itl.", "tpot.", "e2e.", "due_ttft.", "due_e2e.", "lag.", "furthest")
_RATES = ("wall_s", "requests_per_s", "output_tokens_per_s", "steady_tokens_per_s", "tokens_per_event")
_COUNTS_OF_MOMENTS = ("good", "concurrency")  # a request near the limit may fall on either side of it


class Finding(Enum):
    """right: within 1 ms or 1 %; counts exactly."""

    RIGHT = "right"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Compared:
    """truth, said: None where there is no such figure."""

    name: str
    truth: float | None
    said: float | None
    finding: Finding

    @property
    def difference(self) -> str:
        """With its share of the truth."""
        if self.truth is None or self.said is None:
            return "missing" if self.said is None else "too few samples to say it"
        gap = self.said - self.truth
        return f"{gap:+.3f}" + (f" ({gap / self.truth:+.2%})" if self.truth else "")


def compare(name: str, truth: float | None, said: float | None) -> Compared:
    """Times in milliseconds within 1 ms or 1 %, rates within 1 %, counts exactly; those of moments within 1 or 1 %."""
    if truth is None or said is None:
        return Compared(name, truth, said, Finding.RIGHT if truth is said else Finding.WRONG)
    room = 1e-6
    if name.startswith(_TIMES) and not name.endswith(".count"):
        room = max(WITHIN_MS, WITHIN_SHARE * abs(truth))
    elif name in _COUNTS_OF_MOMENTS:
        room = max(1.0, WITHIN_SHARE * truth)
    elif name in _RATES:
        room = WITHIN_SHARE * truth
    return Compared(name, truth, said, Finding.RIGHT if abs(said - truth) <= room else Finding.WRONG)


def lookup(level: Mapping[str, object], name: str) -> float | None:
    """`ttft.p99` in a level of --json."""
    found: object = level
    for part in name.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list):
            found = found[int(part)]
    return float(found) if isinstance(found, int | float) else None


def shown(title: str, compared: Sequence[Compared], remarks: Sequence[str], *, full: bool) -> str:
    """For a terminal; full: also what is right."""
    wrong = [one for one in compared if one.finding is Finding.WRONG]
    lines = [f"{title}: {len(compared)} figures, {len(wrong)} wrong"]
    chosen = compared if full else wrong
    if chosen:
        lines.append(f"  {'figure':26} {'truth':>12} {'aie bench':>12} difference")
    for one in chosen:
        mark = "" if one.finding is Finding.RIGHT else "   WRONG"
        lines.append(f"  {one.name:26} {_number(one.truth):>12} {_number(one.said):>12} {one.difference}{mark}")
    return "\n".join([*lines, *(f"  {remark}" for remark in remarks)])


def markdown(sections: Sequence[tuple[str, Sequence[Compared], Sequence[str]]], rate: int) -> str:
    """All of it."""
    lines = ["# Is what `aie bench` says true?", "",
             f"Figures of `aie bench --json` against those of the scripted server, open loop at {rate} requests/s; "
             "right is within 1 ms or 1 %, counts exactly.", ""]  # fmt: skip
    for title, compared, remarks in sections:
        wrong = sum(one.finding is Finding.WRONG for one in compared)
        lines += [f"## {title}: {len(compared)} figures, {wrong} wrong", "",
                  "| figure | truth | aie bench | difference | |", "| --- | ---: | ---: | ---: | --- |"]  # fmt: skip
        lines += [
            f"| {one.name} | {_number(one.truth)} | {_number(one.said)} | {one.difference} | {one.finding.value} |"
            for one in compared
        ]
        lines += ["", *(f"- {remark}" for remark in remarks), ""]
    lines.append(", ".join(f"{name} {version}" for name, version in versions().items()))
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"
