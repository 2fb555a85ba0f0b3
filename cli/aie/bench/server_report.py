"""What the server counted, as a table beside the client's figures and as lines below it."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from aie.bench.server_side import ServerWindow
from aie.console import format_bytes

__all__ = ["server_lines", "server_table"]


def server_table(levels: Sequence[tuple[str, ServerWindow | None, float | None]]) -> Table | None:
    """levels: label, window, and the client's own median TTFT [ms] to be set beside the server's. None where no server
    said anything."""
    known = [window for _, window, _ in levels if window is not None]
    if not known:
        return None
    view = Table(title=f"What {known[0].server} counted meanwhile", title_justify="left", box=box.SIMPLE_HEAD,
                 padding=0, pad_edge=False)  # fmt: skip
    for name in ("level", "queue\nmean", "most", "running\nmean", "most", "KV\nmost", "prefix\nhits", "pre-\nempted",
                 "TTFT P50\nserver", "client"):  # fmt: skip
        view.add_column(name, justify="right", no_wrap=True)
    for label, window, client_ms in levels:
        if window is None:
            view.add_row(label, *["–"] * 9)
            continue
        view.add_row(
            label, _one(window.waiting_mean), _whole(window.waiting_max), _one(window.running_mean),
            _whole(window.running_max), _percent(window.kv_usage_max), _percent(window.prefix_hit_share),
            _whole(window.preemptions), _whole(window.ttft_p50_ms), _whole(client_ms),
        )  # fmt: skip
    return view


def server_lines(name: str, window: ServerWindow, *, is_in_table: bool = True) -> list[str]:
    """Of one level, what has no column: how full batches were and why they were cut, where the time went, the GPU.
    is_in_table: whether `server_table` has the rest."""
    lines = []
    batches = [] if is_in_table else _queue(window)
    if window.utilisation is not None:
        batches.append(f"batches {window.utilisation:.0%} full")
    if window.tokens_per_step is not None:
        batches.append(f"{window.tokens_per_step:.1f} tokens per step")
    if total := sum(window.reasons.values()):
        cuts = sorted(window.reasons.items(), key=lambda item: -item[1])
        batches.append(f"{total} batches, cut as " + ", ".join(f"{why} {count / total:.0%}" for why, count in cuts))
    if window.phase_shares:
        spent = " · ".join(f"{phase} {share:.0%}" for phase, share in window.phase_shares.items())
        batches.append(f"time in the server: {spent}")
    if batches:
        lines.append(f"{name}: " + " · ".join(batches))
    if gpu := _gpu(window):
        lines.append(f"{name}: GPU " + ", ".join(gpu))
    if window.failed:
        lines.append(f"{name}: the server counted {window.failed:.0f} failed requests, whoever sent them.")
    return lines


def _queue(window: ServerWindow) -> list[str]:
    found = []
    if window.waiting_mean is not None:
        found.append(f"queue {window.waiting_mean:.1f}, at most {window.waiting_max or 0:.0f}")
    if window.running_mean is not None:
        found.append(f"running {window.running_mean:.1f}, at most {window.running_max or 0:.0f}")
    if window.kv_usage_max is not None:
        found.append(f"KV cache at most {window.kv_usage_max:.0%}")
    return found


def _gpu(window: ServerWindow) -> list[str]:
    found = []
    if window.gpu_utilisation_mean is not None:
        found.append(f"{window.gpu_utilisation_mean:.0%} busy")
    if window.gpu_memory_bytes_max is not None:
        found.append(f"{format_bytes(window.gpu_memory_bytes_max)} used")
    if window.gpu_power_w_mean is not None:
        found.append(f"{window.gpu_power_w_mean:.0f} W")
    return found


def _one(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
