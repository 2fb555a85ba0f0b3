"""From outcomes to the table. Failed requests stay in the count of requests; percentiles are over the answered ones."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table

from aie.bench.load import LevelResult

__all__ = ["Row", "percentile", "summarize", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One concurrency level. Times in milliseconds, from the moment of sending."""

    concurrency: int
    requests: int
    answered: int
    failed: int
    wall_s: float
    requests_per_s: float
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    peak_rss_bytes: int | None
    mean_batch: float | None
    errors: dict[str, int]

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank: the smallest value that at least `share` of all values do not exceed. None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summarize(result: LevelResult) -> Row:
    """Sums up one level."""
    answered = [outcome for outcome in result.outcomes if outcome.error is None]
    errors = Counter(outcome.error for outcome in result.outcomes if outcome.error is not None)
    e2e = [outcome.e2e_s for outcome in answered]
    ttft = [outcome.ttft_s for outcome in answered if outcome.ttft_s is not None]
    tpot = [outcome.tpot_s for outcome in answered if outcome.tpot_s is not None]
    output_tokens = sum(outcome.num_output_tokens for outcome in answered)
    return Row(
        concurrency=result.concurrency,
        requests=len(result.outcomes),
        answered=len(answered),
        failed=len(result.outcomes) - len(answered),
        wall_s=result.wall_s,
        requests_per_s=len(answered) / result.wall_s,
        e2e_p50_ms=_ms(e2e, 0.5),
        e2e_p99_ms=_ms(e2e, 0.99),
        ttft_p50_ms=_ms(ttft, 0.5),
        ttft_p99_ms=_ms(ttft, 0.99),
        tpot_p50_ms=_ms(tpot, 0.5),
        tpot_p99_ms=_ms(tpot, 0.99),
        output_tokens_per_s=output_tokens / result.wall_s,
        prompt_tokens=sum(outcome.num_prompt_tokens for outcome in answered),
        output_tokens=output_tokens,
        peak_rss_bytes=result.peak_rss_bytes,
        mean_batch=result.mean_batch,
        errors=dict(errors),
    )


def table(rows: Sequence[Row]) -> Table:
    """The concurrency table: 80 columns hold it, and no figure is ever cut short. Times are in milliseconds."""
    view = Table(
        title="Closed loop, streaming completions, greedy; times in ms", title_justify="left", box=box.SIMPLE_HEAD,
        padding=0, pad_edge=False,
    )  # fmt: skip
    for name in ("clients", "QPS", "all\nP50", "all\nP99", "TTFT\nP50", "TTFT\nP99", "TPOT\nP50", "TPOT\nP99",
                 "tokens\nper s", "errors", "memory\nMB", "mean\nbatch"):  # fmt: skip
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        view.add_row(
            str(row.concurrency), f"{row.requests_per_s:.2f}", _cell(row.e2e_p50_ms), _cell(row.e2e_p99_ms),
            _cell(row.ttft_p50_ms), _cell(row.ttft_p99_ms), _cell(row.tpot_p50_ms, 1), _cell(row.tpot_p99_ms, 1),
            f"{row.output_tokens_per_s:.1f}", f"{row.failed}/{row.requests}",
            "–" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 1e6:.0f}", _cell(row.mean_batch, 1),
        )  # fmt: skip
    return view


def _ms(values: Sequence[float], share: float) -> float | None:
    value = percentile(values, share)
    return None if value is None else 1e3 * value


def _cell(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
