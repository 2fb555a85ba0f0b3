"""Numbers and phases in words, short enough for a line of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["PHASES", "bar", "count", "duration", "largest_phases", "percent", "printable", "who_held", "who_stalled"]

# Phase → what it is called here; the server's README says what each means.
PHASES: Final = {
    "read": "reading", "validate": "checking", "gate": "gate", "tokenize": "tokenizing", "hand_over": "hand-over",
    "compiling": "compiling its form", "turn": "queue", "batch_full": "batch full", "budget": "token budget",
    "prefix": "shared prefix", "blocks": "KV blocks", "prefill": "prefill", "paused": "paused", "decode": "decode",
    "stalled": "stalled", "preempted": "preempted", "recompute": "recomputing", "between": "between steps",
    "engine": "engine", "detokenize": "detokenizing", "others": "other choices", "write": "client", "pre": "pre",
    "queue": "queue", "compute": "compute", "gather": "gathering", "post": "post",
}  # fmt: skip


def printable(value: Any) -> Any:
    """What came over the wire, without characters that a terminal would obey."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    return [printable(one) for one in value] if isinstance(value, list) else value


def duration(us: float) -> str:
    """`850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`."""
    if us < 1000:
        return f"{us:.0f} µs"
    if us < 1e6:
        return f"{us / 1e3:.3g} ms" if us < 999_500 else "1 s"
    if us < 60e6:
        return f"{us / 1e6:.3g} s"
    return f"{us // 60e6:.0f} min {us % 60e6 / 1e6:.0f} s"


def count(number: float) -> str:
    """Whole where it is large: `0.25`, `18.2`, `1234`."""
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def bar(share: float, width: int = 16) -> str:
    filled = round(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def largest_phases(phases_us: Mapping[str, int], at_most: int = 3) -> str:
    """`decode 61 % · stalled 22 % · queue 10 %`."""
    total = sum(phases_us.values())
    if not total:
        return ""
    largest = sorted(phases_us.items(), key=lambda item: item[1], reverse=True)[:at_most]
    return " · ".join(
        f"{PHASES.get(phase, phase)} {percent(us / total)}" for phase, us in largest if us / total >= 0.005
    )


def who_held(shares: Sequence[Mapping[str, Any]], at_most: int = 3) -> str:
    """`r1 (120 blocks), r2 (40 blocks)`."""
    return ", ".join(
        f"{share['who']} ({share['blocks']} block{'' if share['blocks'] == 1 else 's'})"
        if share.get("blocks")
        else str(share["who"])
        for share in shares[:at_most]
    )


def who_stalled(shares: Sequence[Mapping[str, Any]], at_most: int = 3) -> str:
    """`long-prompt 1.2 s, others 0.3 s`."""
    return ", ".join(f"{share['who']} {duration(share.get('us', 0))}" for share in shares[:at_most])
