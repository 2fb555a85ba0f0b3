"""From outcomes to the tables. What was not answered stays in the count of requests; latencies are of the answered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import get_args

from rich import box
from rich.table import Table

from aie.bench.by_step import StepRow, by_step
from aie.bench.energy import Energy, Spent
from aie.bench.generator import Outcome, OutcomeKind
from aie.bench.keeping_up import falls_behind
from aie.bench.knee import knee
from aie.bench.load import LevelResult
from aie.bench.server_side import ServerWindow
from aie.bench.slo import Slo
from aie.bench.statistics import Interval, median_interval, percentile, tail, upper_bound
from aie.bench.steady import Steady, steady_window
from aie.bench.timeline import Timeline, timeline

__all__ = ["Latency", "Row", "latency_table", "load_table", "summarize"]


@dataclass(frozen=True, slots=True)
class Latency:
    """One metric over the answered requests (ITL: over all gaps of them), in milliseconds.

    p90 and p99 are None where there are too few samples to speak of them; p99_bound is what the true P99 stays below
    with 99 % confidence; max is of what was seen.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p99_bound: float | None = None
    max: float | None = None
    p50_interval: Interval | None = None  # of the median, with 99 % confidence

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """From seconds."""
        if not seconds:
            return cls(0)
        values = [1e3 * value for value in seconds]
        return cls(
            len(values),
            sum(values) / len(values),
            percentile(values, 0.5),
            tail(values, 0.9),
            tail(values, 0.99),
            upper_bound(values, 0.99),
            max(values),
            median_interval(values),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One level. Times in milliseconds, from sending; `due_*` from when a request was due by the schedule."""

    concurrency: int  # clients; in the open loop, the most requests that were in flight at once
    offered_per_s: float | None  # of the open loop
    requests: int
    answered: int
    failed: int  # not answered in full, and not hung up on as asked, nor open when the level was stopped early
    ends: dict[str, int]  # answered, rejected, timed out, cut, cancelled, stopped, failed
    wall_s: float
    requests_per_s: float
    good: int | None  # requests that kept the SLO; None without one
    output_tokens_per_s: float
    steady_tokens_per_s: float | None  # without the ramp and the drain
    prompt_tokens: int
    output_tokens: int
    tokens_per_event: float | None
    ttfr: Latency
    ttft: Latency
    itl: Latency
    tpot: Latency
    e2e: Latency
    due_ttft: Latency
    due_e2e: Latency
    lag: Latency  # how late requests were sent
    client_cpu: float | None  # of one core, used by the busiest process of the load generator
    peak_rss_bytes: int | None
    mean_batch: float | None
    errors: dict[str, int]
    saturated: str | None = None  # in the open loop, that requests took longer and longer
    timeline: Timeline | None = None
    server: ServerWindow | None = None
    max_in_flight: int | None = None
    uncounted: int = 0  # answers whose tokens the server did not count: each event is taken for one
    turn_ttft_p50: tuple[float, ...] = ()  # of conversations, turn by turn; shorter where a turn was never answered
    energy: Spent | None = None
    bytes_per_s: float | None = None  # of the bodies of answers
    parts: Mapping[str, "Row"] = field(default_factory=dict)  # of a mix
    generator_cpu: tuple[float, ...] = ()  # of one core, used by each process of the load generator
    steady: Steady | None = None  # the window of `steady_tokens_per_s`
    stopped: str | None = None  # why it was ended before its time
    unsent: int = 0  # of one that was: requests that were due and had not been sent, for the cap
    rate: str | None = None  # of the open loop, where it is not the same all the time
    steps: tuple[StepRow, ...] = ()  # and what came in each part of it

    @property
    def name(self) -> str:
        """In front of a line."""
        if self.offered_per_s is not None:
            return self.label
        return f"{self.label} client{'' if self.concurrency == 1 else 's'}"

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self) | {"client_bound": self.is_client_bound}

    @property
    def label(self) -> str:
        """What was asked of the server."""
        if self.offered_per_s is None:
            return str(self.concurrency)
        return self.rate or f"{self.offered_per_s:g}/s"

    @property
    def power(self) -> float:
        """Requests/s per second of median latency; 0 where nothing was answered, or the median would be of a mix."""
        if self.parts:
            return 0.0
        p50 = self.e2e.p50 if self.offered_per_s is None else self.due_e2e.p50
        return self.requests_per_s / (p50 / 1e3) if p50 else 0.0

    @property
    def is_client_bound(self) -> bool:
        """Whether the load generator may have been what was measured: it had no core left, or sent much too late."""
        if not self.requests:
            return False
        if self.client_cpu is not None and self.client_cpu > 0.9:
            return True
        if self.max_in_flight is not None:  # then to be late is what was asked for
            return False
        # Of few requests the largest is one, and says little of the others; the field's rule is about the P99.
        late, first = self.lag.p99 or self.lag.p90 or self.lag.max, self.ttft.p50 or self.e2e.p50
        return late is not None and first is not None and late > max(0.05 * first, 1.0)


def summarize(result: LevelResult, slo: Slo | None = None) -> Row:
    """Sums up one level."""
    answered = [one for one in result.outcomes if one.error is None]
    ends = Counter(one.kind for one in result.outcomes)
    output_tokens = sum(one.num_output_tokens for one in answered)
    num_events = sum(1 + len(one.gaps_s) for one in answered)
    steady = steady_window(result.outcomes)
    # Of a level that was stopped early only the fast ones have been answered. The others count by what they had waited,
    # so that no percentile is lower than it would have been.
    waited = [one for one in result.outcomes if one.error is None or one.kind == "stopped"]
    scheduled = [one for one in waited if one.due_s is not None]
    return Row(
        concurrency=result.concurrency,
        offered_per_s=result.offered_per_s,
        requests=len(result.outcomes),
        answered=len(answered),
        failed=len(result.outcomes) - len(answered) - ends["cancelled"] - ends["stopped"],
        ends={kind: ends[kind] for kind in get_args(OutcomeKind)},
        wall_s=result.wall_s,
        requests_per_s=len(answered) / result.wall_s,
        good=None if slo is None else sum(1 for one in result.outcomes if slo.is_met_by(one)),
        output_tokens_per_s=output_tokens / result.wall_s,
        steady_tokens_per_s=None if steady is None else steady.tokens_per_s,
        prompt_tokens=sum(one.num_prompt_tokens for one in answered),
        output_tokens=output_tokens,
        tokens_per_event=output_tokens / num_events if num_events else None,
        ttfr=Latency.of([one.ttfr_s for one in answered if one.ttfr_s is not None]),
        ttft=Latency.of([value for one in waited if (value := _ttft_s(one)) is not None]),
        itl=Latency.of([gap for one in answered for gap in one.gaps_s]),
        tpot=Latency.of([one.tpot_s for one in answered if one.tpot_s is not None]),
        e2e=Latency.of([one.e2e_s for one in waited]),
        due_ttft=Latency.of([value + one.lag_s for one in scheduled if (value := _ttft_s(one)) is not None]),
        due_e2e=Latency.of([one.e2e_from_schedule_s for one in scheduled]),
        lag=Latency.of([one.lag_s for one in result.outcomes if one.due_s is not None]),
        client_cpu=result.client_cpu,
        peak_rss_bytes=result.peak_rss_bytes,
        mean_batch=result.mean_batch,
        errors=dict(Counter(one.error for one in result.outcomes if one.error is not None and one.kind != "stopped")),
        # Where the rate changes, so does what is waited for, and that says nothing of how it would go on.
        saturated=None if result.offered_per_s is None or result.steps else falls_behind(result.outcomes),
        timeline=timeline(result.outcomes, result.start_s, result.wall_s),
        server=result.server,
        max_in_flight=result.max_in_flight,
        uncounted=sum(not one.is_counted for one in answered),
        turn_ttft_p50=_by_turn(answered),
        energy=_spent(result, len(answered), output_tokens or sum(one.num_prompt_tokens for one in answered)),
        bytes_per_s=sum(one.num_bytes for one in result.outcomes) / result.wall_s,
        parts=_parts(result, slo),
        generator_cpu=tuple(round(share, 4) for share in result.generator_cpu),
        steady=None if steady is None else steady.since(result.start_s),
        stopped=result.stopped,
        unsent=result.unsent,
        rate=result.rate,
        steps=by_step(result.steps, result.outcomes, result.start_s),
    )


def _spent(result: LevelResult, requests: int, tokens: int) -> Spent | None:
    """What this machine tells, and of GPUs what the server tells where the machine does not."""
    energy = result.energy
    windows = [*([] if result.server is None else [result.server]), *result.servers.values()]
    of_server = next((window.gpu_energy_j for window in windows if window.gpu_energy_j is not None), None)
    if of_server is not None and (energy is None or "GPU" not in energy.joules):
        known = {} if energy is None else energy.joules
        seconds = result.wall_s if energy is None else energy.seconds
        energy = Energy({**known, "GPU (as the server tells)": of_server}, seconds)
    # A counter that stands still, as in many virtual machines, tells nothing.
    return None if energy is None or energy.total_j <= 0.0 else Spent.of(energy, requests, tokens)


def _parts(result: LevelResult, slo: Slo | None) -> dict[str, Row]:
    """Of a mix: a row for each part, in the order of their labels. What is of the machine or the load generator stays
    in the row of all."""
    labels = sorted({one.part for one in result.outcomes} - {""})
    found = {}
    for label in labels if len(labels) > 1 else ():
        outcomes = [one for one in result.outcomes if one.part == label]
        share = len(outcomes) / len(result.outcomes)
        own = replace(
            result, outcomes=outcomes, server=result.servers.get(label), servers={}, energy=None, peak_rss_bytes=None,
            client_cpu=None, mean_batch=None,
            offered_per_s=None if result.offered_per_s is None else result.offered_per_s * share,
        )  # fmt: skip
        own.mean_batch = None if own.server is None else own.server.mean_batch
        found[label] = summarize(own, slo)
    return found


def _ttft_s(outcome: Outcome) -> float | None:
    """From sending; of one that was still open, at least what it had waited."""
    waits = outcome.ttft_s is None and outcome.kind == "stopped" and outcome.is_stream
    return outcome.e2e_s if waits else outcome.ttft_s


def _by_turn(answered: Sequence[Outcome]) -> tuple[float, ...]:
    turns: dict[int, list[float]] = {}
    for one in answered:
        if one.session is not None and one.ttft_s is not None:
            turns.setdefault(one.turn, []).append(one.ttft_s * 1e3)
    return tuple(median for turn in sorted(turns) if (median := percentile(turns[turn], 0.5)) is not None)


def load_table(rows: Sequence[Row], title: str, *, slo: Slo | None = None) -> Table:
    """What went through: 80 columns hold it, and no figure is ever cut short."""
    view = _empty(title)
    names = ["rate" if any(row.offered_per_s is not None for row in rows) else "clients", "answered\nper s"]
    names += ["good\nper s"] if slo is not None else []
    names += ["tokens\nper s", "…steady", "answered", "refused", "late", "cut", "error", "memory\nMB", "mean\nbatch"]
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    bend = knee(rows)
    has_marks = bend is not None or any(row.stopped for row in rows)
    if has_marks:
        view.add_column("", no_wrap=True)
    for row in rows:
        good = [] if slo is None else [f"{(row.good or 0) / row.wall_s:.2f}"]
        ends = row.ends
        view.add_row(
            row.label, f"{row.requests_per_s:.2f}", *good, f"{row.output_tokens_per_s:.1f}",
            _cell(row.steady_tokens_per_s, 1), f"{row.answered}/{row.requests}", str(ends["rejected"]),
            str(ends["timed out"]), str(ends["cut"]), str(ends["failed"]),
            "–" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 1e6:.0f}", _cell(row.mean_batch, 1),
            *([_mark(row, bend)] if has_marks else []),
        )  # fmt: skip
    return view


def latency_table(rows: Sequence[Row]) -> Table:
    """How long it took, in milliseconds; in the open loop TTFT and E2E count from when a request was due."""
    is_open = any(row.offered_per_s is not None for row in rows)
    start = "from when requests were due" if is_open else "from sending"
    view = _empty(f"Latency of answered requests in ms, {start}")
    view.add_column("rate" if is_open else "clients", justify="right", no_wrap=True)
    for metric in ("TTFT", "TPOT", "ITL", "E2E"):
        for share in ("P50", "P99") if metric == "ITL" else ("P50", "P90", "P99"):
            view.add_column(f"{metric}\n{share}", justify="right", no_wrap=True)
    for row in rows:
        ttft, e2e = (row.due_ttft, row.due_e2e) if is_open else (row.ttft, row.e2e)
        cells = []
        for latency, digits in ((ttft, 0), (row.tpot, 1)):
            cells += [_cell(value, digits) for value in (latency.p50, latency.p90, latency.p99)]
        cells += [_cell(value, 1) for value in (row.itl.p50, row.itl.p99)]
        cells += [_cell(value) for value in (e2e.p50, e2e.p90, e2e.p99)]
        view.add_row(row.label, *cells)
    return view


def _mark(row: Row, bend: Row | None) -> str:
    marks = ["◀"] if bend is not None and row.label == bend.label else []
    return " ".join([*marks, *(["stopped"] if row.stopped else [])])


def _empty(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)


def _cell(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
