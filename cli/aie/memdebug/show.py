"""What the person reads: the screen of a snapshot, what leaks with its lines of code, and how a run went."""

import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aie.console import format_bytes, note
from aie.memdebug.verdict import live_bytes, slab_blocks
from aie_tensor.memdebug import render, render_diff

if TYPE_CHECKING:
    from aie.memdebug.verdict import Marks, Verdict
    from aie_tensor.memdebug import Growth, MemorySnapshot
    from aie_tensor.memdebug.policies import PolicyResult

__all__ = [
    "Progress",
    "chain",
    "difference",
    "growth_json",
    "policy_table",
    "print_endings",
    "print_growth",
    "print_verdict",
    "screen",
    "wrapped",
]

_MIN_WIDTH, _MAX_WIDTH = 60, 120
_MAX_GROUPS, _MAX_FRAMES = 10, 6
_EVERY_S = 10.0
_ASCII = str.maketrans({"→": "->", "×": "x", "·": "-", "…": "...", "–": "-"})


def screen(snapshot: "MemorySnapshot") -> str:
    """The screen, as wide as the terminal and in letters that it can show."""
    return render(snapshot, *_paper())


def difference(before: "MemorySnapshot", after: "MemorySnapshot") -> str:
    """What changed between two snapshots, as wide as the terminal."""
    return render_diff(before, after, *_paper())


def policy_table(results: "Sequence[PolicyResult]") -> str:
    """What other allocators made of a log, as wide as the terminal."""
    from aie_tensor.memdebug.policies import render_policies

    return render_policies(results, *_paper())


def wrapped(text: str, indent: str = "") -> str:
    """One paragraph, in lines as wide as the terminal; `indent`: before all but the first."""
    return textwrap.fill(text, _paper()[0], subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def chain(text: str) -> str:
    """Who holds what: on one line where it fits, else a line for each step."""
    return (
        f"  {text}"
        if len(text) + 2 <= _paper()[0]
        else "  " + text.replace(" → ", "\n    → ").replace("; holds ", "\n    holds ")
    )


def say(text: str) -> None:
    """A line of the result on standard output, whatever letters that can take."""
    if not _can_unicode():
        text = text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
    print(text, flush=True)


def _paper() -> tuple[int, bool]:
    """Characters in a line, and whether letters beyond ASCII can be shown."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, _MIN_WIDTH), _MAX_WIDTH), _can_unicode()


def _can_unicode() -> bool:
    try:
        "█░▒…→×·–".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_endings(endings: Counter[str]) -> None:
    """On standard error: how the requests ended."""
    note(" · ".join(f"{count} {name}" for name, count in endings.most_common()))


def print_growth(title: str, changes: "Sequence[Growth]") -> None:
    """Groups with what they grew by, their owner and the lines of code that asked; nothing where there are none."""
    if not changes:
        return
    say(f"\n{title}:")
    for change in changes[:_MAX_GROUPS]:
        group = change.group
        where = " · ".join(part for part in (group.model, group.worker, group.stage) if part)
        rate = "" if change.bytes_per_1000 is None else f", {format_bytes(change.bytes_per_1000)} per 1000 requests"
        say(f"  {change.nbytes and format_bytes(change.nbytes):>10} in {change.count} × {group.what or 'unnamed'}"
              + (f" ({where})" if where else "") + rate)  # fmt: skip
        if group.requests:
            say(f"             held by request {', '.join(group.requests)}{' …' if group.count > 3 else ''}, "
                  f"the oldest for {group.oldest_s:.1f} s")  # fmt: skip
        for frame in group.stack[:_MAX_FRAMES]:
            say(f"             {frame}")
    if len(changes) > _MAX_GROUPS:
        say(f"  … and {len(changes) - _MAX_GROUPS} groups more; --json has them all.")


def print_verdict(marks: "Marks", verdict: "Verdict", *, num_warm_up: int) -> None:
    """Leaks, growth and the sentence at the end."""
    before, after = live_bytes(marks.baseline), live_bytes(marks.end)
    moved = f"{format_bytes(abs(after - before))} {'more' if after > before else 'less'}"
    rss = f"{format_bytes(marks.baseline.rss_bytes)} before, {format_bytes(marks.end.rss_bytes)} now"
    share = "" if verdict.rss_share is None else f": {verdict.rss_share:+.2%}"
    print_growth("LEAKED", verdict.leaks)
    print_growth("Grew once, not in each half of the run (no leak by itself)", verdict.grown)
    say(
        "\n"
        + wrapped(f"Since the baseline (after {num_warm_up} requests), {verdict.change.num_requests:,} requests ended:")
    )
    same = "exactly the same" if before == after else moved
    lines = [f"  live in pools   {before:,} B before, {after:,} B now: {same}"]
    if any(pool.slabs for pool in marks.end.pools):
        lines.append(
            f"  slab blocks     {slab_blocks(marks.baseline):,} in use before, {slab_blocks(marks.end):,} in use now"
        )
    lines.append(f"  resident (RSS)  {rss}{share}")
    lines += [f"OVER THE LIMIT: {reason}." for reason in verdict.over_limit]
    lines.append(_conclusion(verdict, sample_every=marks.end.sample_every))
    for text in lines:
        say(wrapped(text, "    "))


def _conclusion(verdict: "Verdict", *, sample_every: int) -> str:
    if verdict.leaks:
        total = sum(leak.nbytes for leak in verdict.leaks)
        return f"{len(verdict.leaks)} leak{'s' if len(verdict.leaks) > 1 else ''}, {format_bytes(total)} in all."
    if verdict.unnamed_bytes:
        return (
            f"LEAKED: {format_bytes(verdict.unnamed_bytes)} by the count of the pools, by lines that a ledger "
            f"which sees 1 in {sample_every} has missed; have it see all (--memdebug-sample 1)."
        )
    if verdict.change.live_bytes > 0 or verdict.grown:
        return "No leak: what is held more than at the baseline did not grow in each half of the run."
    return "No leak: everything that the requests held has been given back."


def growth_json(change: "Growth") -> dict[str, object]:
    """One group's growth for a JSON file."""
    group = change.group
    return {
        "what": group.what,
        "model": group.model,
        "worker": group.worker,
        "stage": group.stage,
        "stack": list(group.stack),
        "requests": list(group.requests),
        "count": change.count,
        "bytes": change.nbytes,
        "block_bytes": change.block_bytes,
        "bytes_per_1000_requests": change.bytes_per_1000,
        "oldest_s": group.oldest_s,
    }


class Progress:
    """Counts requests: a line that rewrites itself on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._num_done = 0
        self._began_s = self._said_s = time.monotonic()
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def step(self) -> None:
        self._num_done += 1
        now = time.monotonic()
        if now - self._said_s < (0.1 if self._live else _EVERY_S):
            return
        self._said_s = now
        if self._live:
            print(f"\r\x1b[K{self._text(now)}", end="", file=sys.stderr, flush=True)
        else:
            note(self._text(now))

    def end(self) -> None:
        text = self._text(time.monotonic())
        note(f"\r\x1b[K{text}" if self._live else text)

    def _text(self, now: float) -> str:
        took_s = now - self._began_s
        rate = f", {self._num_done / took_s:.0f} a second" if took_s > 1 else ""
        return f"{self._num_done} of {self._total} requests in {took_s:.1f} s{rate}"
