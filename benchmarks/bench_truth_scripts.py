"""What the scripted server does to the load generator in `bench_truth.py`: answers of many shapes, and every kind of
failure."""

import random

from scripted_server import Script

__all__ = ["HANG_UP_AFTER", "even_script", "mixed_scripts", "plain_scripts"]

HANG_UP_AFTER = 4  # events with text
_BLOCKS, _PLAIN = 10, 120  # of 200 in each
_FIRST_MS, _GAP_MS = (20.0, 120.0), (5.0, 30.0)
# Events with text. Who hangs up after the fourth does so long before the end, so that the server can tell it from an
# answer that was read to its end.
_TEXTS = (2, 3, 8, 8, 9, 9, 10, 10, 11, 11)
_STALL_MS = 400.0


def mixed_scripts(seed: int = 0) -> list[Script]:
    """Two thousand, in blocks of two hundred: nine tenths are answers, a tenth fails in all ways that there are. So
    many different ones that times lie close together: what a percentile falls on is then no matter of luck."""
    draw = random.Random(seed)
    return [script for _ in range(_BLOCKS) for script in _block(draw)]


def _block(draw: random.Random) -> list[Script]:
    made = [_answer(draw) for _ in range(_PLAIN)]
    for _ in range(10):
        made.append(_answer(draw, early_head=True))
        made.append(_answer(draw, at_once=2))
        made.append(_answer(draw, halves=True))
        made.append(_answer(draw, tokens=3))
        made.append(_answer(draw, stall_ms=_STALL_MS))
    made += [_answer(draw, late_end_ms=40.0) for _ in range(6)]
    made += [_answer(draw, texts=1) for _ in range(4)]
    made += _failures(draw)
    draw.shuffle(made)
    return made


def _answer(
    draw: random.Random, *, texts: int | None = None, early_head: bool = False, at_once: int = 1, halves: bool = False,
    tokens: int = 1, stall_ms: float = 0.0, late_end_ms: float = 0.0,
) -> Script:  # fmt: skip
    """early_head: the headers come long before the body. at_once: so many events in one piece. halves: each event in
    two pieces, 3 ms apart. tokens: in each event. stall_ms: in mid-stream. late_end_ms: after the last text."""
    first_ms, count = draw.uniform(*_FIRST_MS), texts or draw.choice(_TEXTS)
    if count * at_once == HANG_UP_AFTER:  # the last piece and a hang-up after it would cross
        count += 1
    steps = [(2.0, "head"), (first_ms / 2, "role")] if early_head else [(first_ms / 4, "head"), (0.0, "role")]
    for number in range(count):
        gap_ms = first_ms / 2 if number == 0 else draw.uniform(*_GAP_MS)
        if number == count // 2:
            gap_ms += stall_ms
        steps += [(gap_ms, "half"), (3.0, "rest")] if halves else [(gap_ms, f"text{tokens}")]
        steps += [(0.0, f"text{tokens}")] * (at_once - 1)
    return Script((*steps, (late_end_ms, "usage"), (0.0, "done")))


def _failures(draw: random.Random) -> list[Script]:
    """Twenty."""
    begun = [_answer(draw, texts=5).steps[:5] for _ in range(7)]  # three events with text, and not the fourth
    refused = [Script(((draw.uniform(1.0, 30.0), f"status{status}"),)) for status in (429,) * 4 + (503,) * 3]
    broken = [Script(((draw.uniform(1.0, 30.0), "status500"),)) for _ in range(3)]
    cut = [Script((*steps, (10.0, "close"))) for steps in begun[:3]]
    reset = [Script((*steps, (10.0, "reset"))) for steps in begun[3:5]]
    error = Script((*begun[5], (10.0, "error"), (0.0, "close")))
    stuck = Script((*begun[6], (1.0, "hold")))
    silent = Script(((0.0, "hold"),))
    gone = [Script(((5.0, "close"),)), Script(((0.0, "reset"),))]
    return [*refused, *broken, *cut, *reset, error, stuck, silent, *gone]


def even_script(first_ms: float, gap_ms: float, texts: int, *, role_ms: float | None = None) -> Script:
    """An answer whose tokens come at an even beat. role_ms: when an event without text comes before."""
    opening = [(0.0, "head")] if role_ms is None else [(role_ms, "head"), (0.0, "role")]
    steps = [*opening, (first_ms - (role_ms or 0.0), "text"), *[(gap_ms, "text")] * (texts - 1)]
    return Script((*steps, (0.0, "usage"), (0.0, "done")))


def plain_scripts(count: int, seed: int = 0) -> list[Script]:
    """Answers of which every load generator should say the same: each begins with a text, and ends with one. First
    tokens after 100 to 400 ms and gaps of 10 to 40 ms, both evenly spread."""
    draw = random.Random(seed)
    first, gap = ([(number + 0.5) / count for number in range(count)] for _ in range(2))
    draw.shuffle(first)
    draw.shuffle(gap)
    return [even_script(100 + 300 * a, 10 + 30 * b, draw.randint(4, 12)) for a, b in zip(first, gap, strict=True)]
