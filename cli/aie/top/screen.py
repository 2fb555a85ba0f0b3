"""What is drawn: a block of lines for each model, the open requests, those that ended last, and the latest events."""

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aie.console import format_bytes
from aie.top.event_words import event_lines
from aie.top.facts import facts_of
from aie.top.history import History
from aie.top.look import Look
from aie.top.picture import Picture
from aie.top.request_table import request_lines, request_parts
from aie.top.summary import ModelSummary, summaries
from aie.top.words import duration, who_held

__all__ = ["draw", "plain_lines", "told_of"]

_LOOSE_EVENTS = 10

_REASONS = {
    "batch_full": "the batch is full",
    "budget": "the tokens of a step go to others",
    "prefix": "another request is computing the prefix that it shares",
    "blocks": "too few KV blocks are free",
}


def draw(history: History, url: str, *, when: str, trouble: str | None = None, max_rows: int = 12) -> Picture:
    """trouble: why there is no newer look. max_rows: of requests, where the height is not given."""
    look = history.last
    head = Text.assemble(("aie top  ", "bold"), url, f"  {when}", no_wrap=True, overflow="ellipsis")
    notes: list[RenderableType] = [] if trouble is None else [Text(trouble, style="red")]
    if look is None:
        return Picture([head, *notes], [])
    head.append(f"  {look.figures.server}")
    if look.figures.front_memory:
        head.append(f", front {format_bytes(look.figures.front_memory)}")
    if look.why_no_requests is not None:
        notes.append(Text(f"no requests are shown: {look.why_no_requests}", style="yellow"))
    picture = Picture([head], [partial(_model, summary, look) for summary in summaries(history)], notes=notes)
    loose: list[RenderableType] = []
    if look.requests is not None:
        loose += request_parts(look.requests, max_rows)
        if look.requests.open or look.requests.recent:
            picture.requests = partial(request_lines, look.requests)
    if history.hears_events:
        picture.events = lambda num_lines, _: _events(history, num_lines)
        if any(history.events):
            loose += _events(history, _LOOSE_EVENTS + 1)
    picture.loose = loose
    return picture


def plain_lines(history: History) -> Iterator[str]:
    """A line for each model, for logs and pipes."""
    for summary in summaries(history):
        facts = [f"{name} {text}" for name, text in facts_of(summary)]
        yield f"{summary.model.name or 'model'}: " + "; ".join(facts)


def told_of(history: History) -> Iterator[str]:
    """What went wrong since the look before: rejections, preemptions, workers lost. The rest is in the figures."""
    events = history.last.events if history.last is not None else None
    for line, style in event_lines([events or ()], _LOOSE_EVENTS):
        if style:
            yield line


def _model(summary: ModelSummary, look: Look, width: int | None) -> RenderableType:
    """width: that it has to do with, a line for each fact and none between models; None: lines as they are needed."""
    facts: list[tuple[str, str | Text]] = []
    for fact, text in facts_of(summary):
        facts.append((fact, text))
        if fact == "batch" and (queue := _queue_of(look, summary.model.name)):
            facts.append(("", Text(queue, style="yellow")))
    name = summary.model.name or look.figures.server
    table = Table.grid(padding=(0, 2))
    if width is None:
        table.title = Text(f"\n{name}", style="bold")
        table.title_justify = "left"
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
    else:
        names = max((len(fact) for fact, _ in facts), default=0)
        table.add_column(style="cyan", no_wrap=True, width=names)
        table.add_column(no_wrap=True, overflow="ellipsis", width=max(1, width - names - 2))
    for fact, shown in facts:
        table.add_row(fact, shown)
    return table if width is None else Group(Text(name, style="bold", no_wrap=True, overflow="ellipsis"), table)


def _events(history: History, num_lines: int) -> Sequence[RenderableType]:
    found = event_lines(history.events, num_lines - 1)
    title = Text("what happened", style="cyan", no_wrap=True)
    if not found:
        title.append("  nothing yet", style="dim")
    return [title, *(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in found)]


def _queue_of(look: Look, model: str) -> str:
    queue = None if look.requests is None else look.requests.queues.get(model)
    if queue is None:
        return ""
    reason = _REASONS.get(queue.get("reason", ""), str(queue.get("reason")))
    text = f"{queue.get('request_id')} waits for {duration(queue.get('for_us', 0))}: {reason}"
    if queue.get("reason") == "blocks":
        # What the running ones may soon grow by is kept free, too.
        text += f" ({queue.get('blocks_needed')} needed with some to grow, {queue.get('blocks_free')} free)"
    holders = queue.get("holders") or []
    return text + (f"; held by {who_held(holders)}" if holders else "")
