"""The lines below the tables: what the figures do not say by themselves."""

from collections.abc import Iterator, Sequence

from aie.bench.knee import knee_line
from aie.bench.report import Row
from aie.bench.server_report import server_lines
from aie.bench.statistics import min_samples

__all__ = ["notes"]

_MOST_ERRORS = 5  # kinds of them, per row


def notes(rows: Sequence[Row]) -> list[str]:
    """Of all rows together, then row by row."""
    lines = []
    fewest = min((row.answered for row in rows), default=0)
    if fewest < min_samples(0.99):
        lines.append(
            f"– under P90 or P99: too few samples to speak of them (P90 needs {min_samples(0.9)}, P99 "
            f"{min_samples(0.99)}; a level here has {fewest}). More with --requests or --duration."
        )
    if (rule := knee_line(rows)) is not None:
        lines.append(rule)
    for row in rows:
        lines += [f"{row.name}: {said}" for said in (*_of_sending(row), *_of_answers(row))]
        if row.server is not None:
            lines += server_lines(row.name, row.server, is_in_table=row.ttft.count > 0)
        for label, part in row.parts.items():
            name = f"{row.name}, {label}"
            lines += [] if part.server is None else server_lines(name, part.server, is_in_table=False)
        if row.energy is not None:
            lines.append(f"{row.name}: energy {row.energy}")
        for label, one in (row.parts or {"": row}).items():
            errors = sorted(one.errors.items(), key=lambda item: -item[1])[:_MOST_ERRORS]
            lines += [f"{row.name}: {f'{label}, ' if label else ''}{count} × {message}" for message, count in errors]
    return [*lines, *_of_generator(rows)]


def _of_generator(rows: Sequence[Row]) -> Iterator[str]:
    """What measuring itself took, at the level where it took most. Nothing is subtracted for it."""
    busiest = max(rows, key=lambda row: sum(row.generator_cpu), default=None)
    if busiest is None or not busiest.generator_cpu:
        return
    shares = " and ".join(f"{share:.1%}" for share in busiest.generator_cpu)
    many = f" in each of its {len(busiest.generator_cpu)} processes" if len(busiest.generator_cpu) > 1 else ""
    latest = max(rows, key=lambda row: row.lag.p99 or row.lag.max or 0.0)
    late = ""
    if latest.lag.p50 is not None and latest.lag.max is not None:
        name, most = ("P99", latest.lag.p99) if latest.lag.p99 is not None else ("at most", latest.lag.max)
        late = f", and requests went out late by {latest.lag.p50:.2f} ms (P50), {most:.2f} ms ({name})"
    yield f"The load generator took {shares} of a core{many}{late}; nothing is subtracted for it."


def _of_sending(row: Row) -> Iterator[str]:
    late = row.lag.p99 or row.lag.max or 0.0
    if row.is_client_bound:
        yield (
            f"client-bound. The load generator used {row.client_cpu or 0:.0%} of a core and sent up to "
            f"{late:.0f} ms late, so these figures are partly its own."
        )
    if not row.requests:
        yield "no request was due in that time."
    if row.max_in_flight is not None and late >= 1.0:
        yield (f"requests were sent up to {late:.0f} ms late, since no more than {row.max_in_flight} may be under way.")


def _of_answers(row: Row) -> Iterator[str]:
    if row.uncounted:
        yield (
            f"of {row.uncounted} of {row.answered} answers the server did not say how many tokens they have; each "
            "event with text is taken for one."
        )
    if row.stopped is not None:
        unsent = f", and {row.unsent} were due and not sent" if row.unsent else ""
        yield (
            f"stopped after {row.wall_s:.0f} s: {row.stopped}. {row.ends['stopped']} requests were still open{unsent}; "
            "TTFT and E2E count what they had waited, and are at least so long. --no-stop goes on to the end."
        )
    elif row.saturated is not None:
        yield f"the server {row.saturated}; a longer run would have had longer latencies."
    if row.turn_ttft_p50:
        turns = " · ".join(f"{turn} {ms:.0f}" for turn, ms in enumerate(row.turn_ttft_p50, 1))
        yield f"TTFT P50 in ms by turn of the conversation: {turns}"
    if row.tokens_per_event is not None and row.tokens_per_event > 1.05:
        yield f"an event carried {row.tokens_per_event:.2f} tokens on average, so ITL is the time between events."
