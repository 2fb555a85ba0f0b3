"""A level whose rate changes, part by part: what came in each, how long it took, and what was still open at its end.

A request belongs to the part in which it was due, however late it was answered: so a queue that a spike leaves behind
is seen in those who came during it and after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from aie.bench.arrivals import Rate, Step
from aie.bench.generator import Outcome
from aie.bench.statistics import percentile, tail

__all__ = ["STEP_HEADER", "StepRow", "by_step", "parts_of", "step_cells", "steps_table"]

_PARTS_OF_RAMP = 5


@dataclass(frozen=True, slots=True)
class StepRow:
    """One part. Times in milliseconds, of answered requests, from when they were due."""

    rate: str
    begin_s: float
    end_s: float
    requests: int  # that were due
    answered: int
    answered_per_s: float  # answers that were complete within it, whenever they were due
    open_at_end: int
    ttft_p50: float | None
    ttft_p99: float | None  # None where there are too few samples to speak of it
    e2e_p50: float | None
    e2e_max: float | None


def parts_of(rate: Rate, duration_s: float) -> tuple[Step, ...]:
    """Its steps, and a ramp in five equal parts. None of a rate that is the same all the time."""
    if rate.is_constant:
        return ()
    if rate.steps:
        return rate.steps
    each, seconds = (rate.last - rate.first) / _PARTS_OF_RAMP, duration_s / _PARTS_OF_RAMP
    return tuple(
        Step(rate.first + index * each, rate.first + (index + 1) * each, seconds) for index in range(_PARTS_OF_RAMP)
    )


def by_step(parts: Sequence[Step], outcomes: Sequence[Outcome], start_s: float) -> tuple[StepRow, ...]:
    """A row for each part that was reached."""
    rows: list[StepRow] = []
    begin_s = start_s
    last_s = max((one.end_s for one in outcomes), default=start_s)
    for part in parts:
        end_s = begin_s + part.seconds
        if begin_s >= last_s:
            break
        rows.append(_row(part, outcomes, begin_s, end_s, start_s))
        begin_s = end_s
    return tuple(rows)


def _row(part: Step, outcomes: Sequence[Outcome], begin_s: float, end_s: float, start_s: float) -> StepRow:
    mine = [one for one in outcomes if one.due_s is not None and begin_s <= one.due_s < end_s]
    answered = [one for one in mine if one.error is None]
    ttft = [1e3 * one.ttft_from_schedule_s for one in answered if one.ttft_from_schedule_s is not None]
    e2e = [1e3 * one.e2e_from_schedule_s for one in answered]
    complete = sum(one.error is None and begin_s <= one.end_s < end_s for one in outcomes)
    still_open = sum(one.due_s is not None and one.due_s < end_s <= one.end_s for one in outcomes)
    return StepRow(
        str(part).partition("x")[0],
        begin_s - start_s,
        end_s - start_s,
        len(mine),
        len(answered),
        complete / part.seconds,
        still_open,
        percentile(ttft, 0.5),
        tail(ttft, 0.99),
        percentile(e2e, 0.5),
        max(e2e, default=None),
    )


STEP_HEADER = ("from s", "to s", "rate", "due", "answered", "answered per s", "open at its end", "TTFT P50", "TTFT P99",
               "E2E P50", "E2E largest")  # fmt: skip


def step_cells(step: Mapping[str, Any]) -> list[str]:
    """One row under `STEP_HEADER`, from a report."""
    times = [step[name] for name in ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_max")]
    return [
        f"{step['begin_s']:.4g}", f"{step['end_s']:.4g}", f"{step['rate']}/s", str(step["requests"]),
        str(step["answered"]), f"{step['answered_per_s']:.2f}", str(step["open_at_end"]),
        *("–" if value is None else f"{value:.0f}" for value in times),
    ]  # fmt: skip


def steps_table(levels: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Table | None:
    """For a terminal. None where the rate of no level changes."""
    if not any(steps for _, steps in levels):
        return None
    view = Table(title="As the rate changed; times in ms, from when requests were due", title_justify="left",
                 box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)  # fmt: skip
    has_names = len(levels) > 1
    for name in (["level"] if has_names else []) + list(STEP_HEADER):
        view.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for label, steps in levels:
        for step in steps:
            view.add_row(*([label] if has_names else []), *step_cells(step))
    return view
