"""The open requests and those that ended last, as tables: a line each where there is little room."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from aie.top.look import Requests
from aie.top.words import duration, largest_phases, who_held, who_stalled

__all__ = ["request_lines", "request_parts"]

_WORTH_A_NAME = 0.02  # of a request's time
_LEAST_ENDED = 3  # requests that ended are shown, however many are open
_NARROW = 90  # columns; below, what can be spared is


def request_parts(requests: Requests, max_rows: int) -> list[RenderableType]:
    """max_rows: of open and ended ones together, at most; of those that ended a few at least."""
    parts: list[RenderableType] = []
    num_ended = min(len(requests.recent), max(_LEAST_ENDED, max_rows - len(requests.open)))
    if requests.open:
        parts.append(_table("open", _oldest_first(requests.open)[: max(1, max_rows - num_ended)], len(requests.open)))
    if requests.num_open_of_others:
        parts.append(Text(f"{requests.num_open_of_others} more are open, of other clients", style="yellow"))
    if num_ended:
        parts.append(_table("ended", requests.recent[:num_ended], num_ended))
    for model, why in requests.unanswered.items():
        parts.append(Text(f"{model}: {why}", style="yellow"))
    return parts


def request_lines(requests: Requests, num_lines: int, width: int) -> list[RenderableType]:
    """The same in so many lines: a line for each request, what does not fit is cut."""
    parts: list[RenderableType] = [
        Text(f"{model}: {why}", style="yellow", no_wrap=True)
        for model, why in list(requests.unanswered.items())[: max(0, num_lines - 2)]
    ]
    if requests.num_open_of_others and num_lines - len(parts) > 3:
        text = f"{requests.num_open_of_others} more are open, of other clients"
        parts.append(Text(text, style="yellow", no_wrap=True))
    room = num_lines - len(parts)
    num_open = min(len(requests.open), room - 1)
    num_ended = min(len(requests.recent), max(_LEAST_ENDED if room > 8 else 0, room - 2 - num_open))
    if requests.open and num_ended > 0:
        num_open = min(num_open, room - 2 - num_ended)
    tables: list[RenderableType] = []
    if num_open > 0:
        tables.append(_table("open", _oldest_first(requests.open)[:num_open], len(requests.open), width))
    if num_ended > 0:
        tables.append(_table("ended", requests.recent[:num_ended], num_ended, width))
    return [*tables, *parts]


def _oldest_first(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(entries, key=lambda entry: entry.get("total_us", 0), reverse=True)


def _table(name: str, entries: Sequence[Mapping[str, Any]], num_all: int, width: int | None = None) -> Table:
    """width: that it has to do with, a line for each entry; None: lines as they are needed."""
    is_narrow = width is not None and width < _NARROW
    names = ["ended last" if name == "ended" else f"{name} ({num_all})", "state" if name == "open" else "status"]
    names += ["time", "where the time went"] if is_narrow else ["time", "tokens", "where the time went"]
    rows = []
    for entry in entries:
        state = entry.get("state") if name == "open" else entry.get("status")
        cells = [str(entry.get("request_id")), str(state), duration(entry.get("total_us", 0))]
        rows.append([*cells, *([] if is_narrow else [_token_counts(entry)]), _where(entry)])
    table = Table(box=None if width else box.SIMPLE_HEAD, pad_edge=False, header_style="cyan", padding=(0, 1))
    fixed = [max(cell_len(row[place]) for row in (names, *rows)) for place in range(len(names) - 1)]
    fixed[0] = min(fixed[0], 14 if is_narrow else 24)
    for place, (title, columns) in enumerate(zip(names, fixed, strict=False)):
        justify: JustifyMethod = "right" if place >= 2 else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", width=columns)
    if width is None:
        table.add_column(names[-1], overflow="fold")
    else:
        rest = max(1, width - sum(fixed) - 2 * len(fixed))
        table.add_column(names[-1], no_wrap=True, overflow="ellipsis", width=rest)
    for row in rows:
        table.add_row(*row)
    return table


def _token_counts(entry: Mapping[str, Any]) -> str:
    if "prompt_tokens" not in entry:
        return f"{entry['num_inputs']} in" if "num_inputs" in entry else ""
    return f"{entry['prompt_tokens']}+{entry.get('generated_tokens', 0)}"


def _where(entry: Mapping[str, Any]) -> str:
    """The phases, and who is to blame for those that weigh something."""
    phases: Mapping[str, int] = entry.get("phases_us", {})
    least_us = entry.get("total_us", 0) * _WORTH_A_NAME
    parts = [largest_phases(phases)]
    if entry.get("held_by") and sum(phases.get(phase, 0) for phase in ("blocks", "prefix", "preempted")) > least_us:
        parts.append(f"held by {who_held(entry['held_by'], 2)}")
    if entry.get("stalled_by") and phases.get("stalled", 0) > least_us:
        parts.append(f"stalled by {who_stalled(entry['stalled_by'], 2)}")
    if entry.get("preemptions"):
        parts.append(f"preempted {entry['preemptions']} times" if entry["preemptions"] > 1 else "preempted once")
    if "batch" in entry:
        parts.append(f"batch of {entry['batch']['size']}, cut: {entry['batch']['cut']}")
    return "; ".join(part for part in parts if part)
