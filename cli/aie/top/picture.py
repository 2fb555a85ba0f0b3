"""One picture of a server, for any terminal: all of it where there is room, else what matters most.

Where it has to fit into the terminal, the models' figures come first, from the top, and leave a few lines to requests
and events; what they do not need is for those. On a wide terminal requests and events stand side by side. Each line
then stays one line: what does not fit is cut, and a terminal that grows shows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

__all__ = ["Picture"]

_WIDE = 150  # columns, from which on requests and events stand side by side
_LEFT = 0.6  # of the width, for the requests
_LEAST = 3  # lines of requests, and of events, however little room there is

Lines = list[list[Segment]]
Fit = Callable[[int, int], Sequence[RenderableType]]  # lines and columns that there are → what is drawn in them


@dataclass(slots=True)
class Picture:
    """Drawn by rich: fitted, with a line for each fact, request and event, or as long as it needs to be."""

    head: Sequence[RenderableType]
    models: Sequence[Callable[[int | None], RenderableType]]  # columns that there are; None: loose
    loose: Sequence[RenderableType] = ()  # requests and events, one below the other
    requests: Fit | None = None
    events: Fit | None = None
    notes: Sequence[RenderableType] = field(default=())  # what is said whatever the room
    is_fitted: bool = False  # into the terminal's height, as it is when drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.is_fitted:
            yield from self.head
            yield from (model(None) for model in self.models)
            yield from self.notes
            yield from self.loose
            return
        height = options.max_height
        for number, line in enumerate(self._fitted(console, options, height, options.max_width)[:height]):
            if number:
                yield Segment.line()
            yield from line

    def _fitted(self, console: Console, options: ConsoleOptions, height: int, width: int) -> Lines:
        def drawn(parts: Sequence[RenderableType], columns: int = width) -> Lines:
            within = options.update(width=columns, height=None)
            return [line for part in parts for line in console.render_lines(part, within, pad=False)]

        lines = drawn(self.head) + drawn(self.notes)
        is_wide = width >= _WIDE and self.requests is not None and self.events is not None
        below = [fit for fit in (self.requests, self.events) if fit is not None]
        kept = _LEAST * (min(1, len(below)) if is_wide else len(below))
        models = [drawn([model(width)]) for model in self.models]
        lines += _shared(models, max(_LEAST, height - len(lines) - kept))
        room = height - len(lines)
        if room > _LEAST + kept:  # an empty line, where it costs nothing
            lines.append([])
            room -= 1
        if is_wide and self.requests is not None and self.events is not None:
            left = int(width * _LEFT)
            return lines + _beside(
                drawn(self.requests(room, left - 2), left - 2)[:room],
                drawn(self.events(room, width - left), width - left)[:room],
                left,
            )
        for number, fit in enumerate(below):
            share = room if number == len(below) - 1 else max(_LEAST, room * 3 // 5)
            part = drawn(fit(share, width))[:share]
            lines += part
            room -= len(part)
        return lines


def _shared(blocks: Sequence[Lines], room: int) -> Lines:
    """As many lines of each as there is room for; what a short one leaves is for the others."""
    cut = [0] * len(blocks)
    for _ in range(room):
        open_ones = [index for index, block in enumerate(blocks) if cut[index] < len(block)]
        if not open_ones:
            break
        cut[min(open_ones, key=lambda index: cut[index])] += 1
    return [line for block, number in zip(blocks, cut, strict=True) for line in block[:number]]


def _beside(left: Lines, right: Lines, at: int) -> Lines:
    rows = []
    for index in range(max(len(left), len(right))):
        first = left[index] if index < len(left) else []
        rows.append([*Segment.adjust_line_length(first, at), *(right[index] if index < len(right) else [])])
    return rows
