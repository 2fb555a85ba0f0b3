"""What a race has measured: medians over the rounds, ratios to the others, as Markdown, JSON and a plot."""

import json
import platform
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from race_peers import Contender

from aie.version import versions

COLORS = ("#0b6e4f", "#c44536", "#3d5a80", "#8d6a9f", "#b08900")


@dataclass(frozen=True)
class Result:
    """One level in one round. Times in milliseconds; None where there is no such thing. max: a round has too few
    requests for a 99th percentile, so the slowest is what is compared."""

    tokens_per_s: float
    ttft_p50_ms: float | None = None
    tpot_p50_ms: float | None = None
    e2e_max_ms: float | None = None
    ttft_max_ms: float | None = None
    rss_bytes: int | None = None
    failed: int = 0

    def __str__(self) -> str:
        parts = [f"{self.tokens_per_s:7.1f} tokens/s"]
        if self.ttft_p50_ms is not None:
            parts.append(f"TTFT {self.ttft_p50_ms:6.0f} ms")
        if self.tpot_p50_ms is not None:
            parts.append(f"TPOT {self.tpot_p50_ms:6.1f} ms")
        if self.rss_bytes is not None:
            parts.append(f"{self.rss_bytes / 1e6:5.0f} MB")
        return ", ".join([*parts, f"{self.failed} failed"])


@dataclass
class Race:
    """All rounds of all contenders; the first is ours."""

    model: str
    generator: str
    levels: Sequence[int]
    threads: int
    command: str
    contenders: dict[str, Contender] = field(default_factory=dict)
    results: dict[tuple[str, int], list[Result]] = field(default_factory=lambda: defaultdict(list))

    def add(self, contender: Contender, level: int, result: Result) -> None:
        """One level of one round."""
        self.contenders[contender.name] = contender
        self.results[contender.name, level].append(result)

    @property
    def failed(self) -> int:
        """Requests that were not answered in full."""
        return sum(result.failed for results in self.results.values() for result in results)

    def median(self, name: str, level: int, figure: str) -> float | None:
        """Over the rounds; None where the contender has no such figure."""
        values = [getattr(result, figure) for result in self.results[name, level]]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def ratio(self, name: str, level: int, figure: str) -> float | None:
        """Ours to theirs."""
        ours, theirs = (self.median(who, level, figure) for who in (next(iter(self.contenders)), name))
        return None if ours is None or not theirs else ours / theirs

    def markdown(self) -> str:
        """Two tables, and what they were measured with."""
        first = next(iter(self.contenders))
        rounds = max(len(results) for results in self.results.values())
        lines = [
            f"Medians of {rounds} alternating rounds; {self.model}, {self.threads} threads; load by "
            + ("`vllm bench serve`" if self.generator == "vllm" else "`aie bench`'s generator")
            + f"; {self.failed} requests failed.",
            "",
            "| contender | clients | tokens/s | TTFT p50 ms | TPOT p50 ms | TTFT max ms | E2E max ms | memory MB |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name in self.contenders:
            for level in self.levels:
                cells = [
                    _cell(self.median(name, level, "tokens_per_s"), 1),
                    *(_cell(self.median(name, level, key), digits) for key, digits in
                      (("ttft_p50_ms", 0), ("tpot_p50_ms", 1), ("ttft_max_ms", 0), ("e2e_max_ms", 0))),
                    _cell(self.median(name, level, "rss_bytes"), 0, 1e-6),
                ]  # fmt: skip
                lines.append(f"| {name} | {level} | " + " | ".join(cells) + " |")
        lines += ["", f"| {first} against | clients | tokens/s | TTFT p50 | TPOT p50 | TTFT max | E2E max |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for name in list(self.contenders)[1:]:
            for level in self.levels:
                keys = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "ttft_max_ms", "e2e_max_ms")
                ratios = [_cell(self.ratio(name, level, key), 2) for key in keys]
                lines.append(f"| {name} | {level} | " + " | ".join(f"{r}×" if r != "–" else r for r in ratios) + " |")
        lines += ["", *(f"- {name}: {contender.version}" for name, contender in self.contenders.items())]
        lines += [
            f"- machine: {_cpu()}; {platform.system()} {platform.release()}; "
            + ", ".join(f"{key} {value}" for key, value in versions().items()),
            f"- command: `python benchmarks/{self.command}`",
        ]
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, object]:
        """Every single result."""
        return {
            "model": self.model, "generator": self.generator, "threads": self.threads, "versions": versions(),
            "contenders": {name: contender.version for name, contender in self.contenders.items()},
            "results": [
                {"contender": name, "clients": level, "round": number + 1, **asdict(result)}
                for (name, level), results in self.results.items()
                for number, result in enumerate(results)
            ],
        }  # fmt: skip

    def svg(self) -> str:
        """Bars: output tokens per second, one group for each number of clients."""
        bar, gap, height, left = 34, 30, 220, 50
        names = list(self.contenders)
        most = max(self.median(name, level, "tokens_per_s") or 0.0 for name in names for level in self.levels)
        width = left + len(self.levels) * (len(names) * bar + gap) + 190
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 60}" '
            'font-family="sans-serif" font-size="11">',
            f'<text x="{left}" y="14">output tokens per second, {self.model}, {self.threads} threads</text>',
        ]
        x = left
        for level in self.levels:
            for number, name in enumerate(names):
                value = self.median(name, level, "tokens_per_s") or 0.0
                tall = value / most * (height - 40)
                parts.append(
                    f'<rect x="{x}" y="{height - tall:.1f}" width="{bar - 4}" height="{tall:.1f}" '
                    f'fill="{COLORS[number % len(COLORS)]}"/>'
                    f'<text x="{x}" y="{height - tall - 4:.1f}">{value:.0f}</text>'
                )
                x += bar
            middle = x - len(names) * bar / 2
            parts.append(f'<text x="{middle:.0f}" y="{height + 16}" text-anchor="middle">{level} clients</text>')
            x += gap
        for number, name in enumerate(names):
            y = 34 + 18 * number
            parts.append(
                f'<rect x="{width - 170}" y="{y - 9}" width="10" height="10" fill="{COLORS[number % len(COLORS)]}"/>'
                f'<text x="{width - 154}" y="{y}">{name}</text>'
            )
        return "\n".join([*parts, "</svg>\n"])


def write_report(race: Race, path: Path) -> None:
    """PATH.md, PATH.svg and PATH.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(race.as_json(), indent=1) + "\n")
    path.with_suffix(".svg").write_text(race.svg())
    path.with_suffix(".md").write_text(f"# Race\n\n![tokens per second]({path.stem}.svg)\n\n{race.markdown()}")
    print(f"wrote {path.with_suffix('.md')}, .svg and .json")


def _cell(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "–" if value is None else f"{value * scale:.{digits}f}"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
