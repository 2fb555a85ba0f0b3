"""A level while it runs, as a person on a terminal sees it: drawn four times a second, and gone when the level ends."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aie.bench.running import Snapshot
from aie.console import format_bytes

__all__ = ["draw", "spark"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHORT = {"answered": "ok", "rejected": "refused", "timed out": "late", "cut": "cut", "cancelled": "hung up",
          "failed": "failed"}  # fmt: skip
_ALWAYS = ("answered", "rejected", "timed out", "cut", "failed")


def draw(
    label: str, total: int | None, seen: Snapshot, *, memory_bytes: int | None, gauges: Mapping[str, float]
) -> RenderableType:
    """total: requests to be sent; None: the clock decides. gauges: of the server's metrics."""
    of = "" if total is None else f" of {total}"
    head = Text.assemble((f"{label}  ", "bold"), f"{seen.num_ended}{of} done, {seen.in_flight} in flight, "
                         f"{seen.elapsed_s:.0f} s")  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column()
    if total:
        grid.add_row("progress", ProgressBar(total=total, completed=min(total, seen.num_ended), width=40))
    grid.add_row("ended", _ends(seen.ends))
    answers_at_once = seen.ttft_ms[0] is None and seen.e2e_ms[0] is not None
    if answers_at_once:
        grid.add_row("E2E", _latency(seen.e2e_ms))
        grid.add_row("answers/s", f"{seen.ends.get('answered', 0) / seen.elapsed_s:.0f}" if seen.elapsed_s else "–")
    else:
        grid.add_row("TTFT", _latency(seen.ttft_ms))
        grid.add_row("ITL", _latency(seen.itl_ms))
        grid.add_row("tokens/s", f"{spark(seen.history)} {seen.tokens_per_s:.0f}")
    if server := _server(memory_bytes, gauges):
        grid.add_row("server", server)
    return Group(head, grid)


def spark(values: Sequence[float]) -> str:
    """A character for each value, from nothing to the largest."""
    most = max(values, default=0.0)
    if most <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / most * len(_BLOCKS)))] for value in values)


def _ends(ends: Mapping[str, int]) -> Text:
    text = Text()
    for kind, name in _SHORT.items():
        count = ends.get(kind, 0)
        if count or kind in _ALWAYS:
            bad = count and kind not in ("answered", "cancelled")
            text.append(f"{'  ' if text else ''}{count} {name}", style="red" if bad else "")
    return text


def _latency(pair: tuple[float | None, float | None]) -> str:
    p50, p99 = ("–" if value is None else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms" for value in pair)
    return f"P50 {p50}, P99 {p99} of the last ones"


def _server(memory_bytes: int | None, gauges: Mapping[str, float]) -> str:
    parts = [f"{gauges[key]:.0f} {key}" for key in ("running", "waiting") if key in gauges]
    if "kv_usage" in gauges:
        parts.append(f"KV cache {gauges['kv_usage']:.0%}")
    memory = memory_bytes or gauges.get("memory")
    if memory:
        parts.append(format_bytes(memory))
    return ", ".join(parts)
