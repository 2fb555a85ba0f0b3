"""What `aie simulate` shows: a table, the curve, the batch sizes; and the same as a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aie_scheduler import BatchCost, SchedulerConfig, SimulationReport

__all__ = ["Row", "print_report", "to_document"]

_BINS = 8  # of the plot of batch sizes


@dataclass(frozen=True, slots=True)
class Row:
    """One simulation."""

    rate_per_s: float  # offered
    max_wait_ms: float
    lengths: str  # "as given" or "all equal"
    report: "SimulationReport"


def print_report(rows: Sequence[Row], config: "SchedulerConfig", cost: "BatchCost", source: str) -> None:
    """Everything to standard output."""
    edges = ", ".join(map(str, config.bucket_edges)) if config.buckets == "fixed" else config.buckets
    print(
        f"[SIMULATED] policy {config.policy}, max_batch_size {config.max_batch_size}, buckets {edges}, "
        f"padding {config.padding}{', adaptive wait' if config.adaptive_wait else ''}"
    )
    print(f"cost of a batch, {source}: {cost.per_batch_s * 1e3:.4g} ms + {cost.per_token_s * 1e3:.4g} ms per token\n")
    for lengths in ("as given", "all equal"):
        mine = [row for row in rows if row.lengths == lengths]
        print("Lengths as given" if lengths == "as given" else "All lengths equal to their mean: how that flatters")
        last = "prompts cached, preempted" if config.policy == "continuous" else "cut because"
        print(f"  offered  max_wait     done   latency p50        p99   busy   fill  padding   lost  {last}")
        for row in mine:
            print(_line(row, config))
        print()
    print("busy: of the time; fill: of max_batch_size; padding: of the computed tokens; lost: refused and expired\n")
    given = [row for row in rows if row.lengths == "as given"]
    _print_plots(given, config)


def _line(row: Row, config: "SchedulerConfig") -> str:
    report = row.report
    reasons = sorted(report.reasons.items(), key=lambda item: -item[1])
    generated = f"{100 * report.hit_share:.0f} %, {report.num_preemptions}" if config.policy == "continuous" else "-"
    return (
        f"{row.rate_per_s:>7.4g}/s {row.max_wait_ms:>6g} ms {report.requests_per_s:>6.1f}/s "
        f"{report.e2e.p50 * 1e3:>10.1f} ms {report.e2e.p99 * 1e3:>7.1f} ms "
        f"{100 * report.busy_share:>4.0f} % {100 * report.mean_batch / config.max_batch_size:>4.0f} % "
        f"{100 * report.padding_share:>6.1f} % {report.num_refused + report.num_expired:>6}  "
        f"{', '.join(f'{reason.value} {count}' for reason, count in reasons) or generated}"
    )


def _print_plots(rows: Sequence[Row], config: "SchedulerConfig") -> None:
    from aie_scheduler.plot import bars, scatter

    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        name = f"max_wait {row.max_wait_ms:g} ms"
        series.setdefault(name, []).append((row.report.requests_per_s, row.report.e2e.p99 * 1e3))
    print("\n".join(scatter(series, x_label="requests/s done", y_label="latency p99 in ms, logarithmic")))
    last = rows[-1]
    print(f"\nBatch sizes at {last.rate_per_s:.4g}/s, max_wait {last.max_wait_ms:g} ms (steps of so many requests)")
    width = -(-config.max_batch_size // _BINS)
    bins = {(low, low + width - 1): 0 for low in range(1, config.max_batch_size + 1, width)}
    for size, count in last.report.sizes.items():
        low = (size - 1) // width * width + 1
        bins[(low, low + width - 1)] += count
    print("\n".join(bars({f"{low}" if low == high else f"{low}–{high}": n for (low, high), n in bins.items()})))


def to_document(
    rows: Sequence[Row], config: "SchedulerConfig", cost: "BatchCost", source: str, seed: int
) -> dict[str, object]:
    """All figures; times in seconds."""
    return {
        "simulated": True,
        "cost": {**asdict(cost), "source": source},
        "config": asdict(config),
        "seed": seed,
        "rows": [
            {
                "offered_per_s": row.rate_per_s,
                "max_wait_ms": row.max_wait_ms,
                "lengths": row.lengths,
                "done_per_s": row.report.requests_per_s,
                "busy_share": row.report.busy_share,
                "batch_fill": row.report.mean_batch / config.max_batch_size,
                "padding_share": row.report.padding_share,
                **asdict(row.report)
                | {
                    "reasons": {reason.value: count for reason, count in row.report.reasons.items()},
                    "sizes": {str(size): count for size, count in row.report.sizes.items()},
                },
            }
            for row in rows
        ],
    }
