"""The engine without a server: no HTTP, no process boundary, no thread of its own, nothing but its steps.

So many requests are kept open; a step is computed, its events are taken, and who has ended is replaced. What a server
adds is the difference to the same traffic over HTTP. The share of Python is the part of the steps that lies outside the
executor: scheduling, assembling, sampling and book-keeping.
"""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table

from aie.assemble import engine_config, find_model
from aie.bench.options import BenchOptions
from aie.bench.show import context, print_view
from aie.bench.statistics import percentile
from aie.bench.streaming_plan import Traffic
from aie.bench.workload import PlannedRequest
from aie.console import note
from aie.settings import load_settings
from aie_engine import GenerateRequest, InvalidInputError, SamplingParams, load_text_model
from aie_engine.build import build_engine
from aie_engine.core import EngineCore
from aie_loader import is_predictor, served_name

__all__ = ["EngineRow", "engine_table", "measure_engine", "run_engine"]


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One level. Seconds, but where the name says milliseconds."""

    open_requests: int
    requests: int
    wall_s: float
    output_tokens: int
    prompt_tokens: int  # computed: what the prefix cache spared is not among them
    steps: int
    step_ms: float  # mean
    mean_batch: float
    python_share: float  # of the steps, outside the executor
    ttft_p50_ms: float | None

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {**asdict(self), "output_tokens_per_s": self.output_tokens_per_s}


def run_engine(options: BenchOptions) -> dict[str, object]:
    """Measures, prints, and gives what `--json` holds."""
    traffic = Traffic(options.bounds, options.output_bounds, options.shape, options.shared_prefix, None, options.seed)
    rows = measure_engine(
        options.model, options.levels, traffic, requests=options.requests, serve_args=shlex.split(options.serve_args)
    )
    print_view(engine_table(rows))
    print(" · ".join(f"{key} {value}" for key, value in context().items()))
    return {
        "format": 2,
        "complete": True,
        "engine": True,
        "context": context(),
        "levels": [row.as_json() for row in rows],
    }


def measure_engine(
    model: str | None, levels: Sequence[int], traffic: Traffic, *, requests: int | None, serve_args: Sequence[str]
) -> list[EngineRow]:
    """All levels on one engine. serve_args: as `aie serve` takes them, as far as they concern the engine."""
    path = find_model(model)
    if is_predictor(path):
        raise InvalidInputError(f"{model} generates no text; --engine is for models that do.", param="engine")
    settings = load_settings(_flags(serve_args))
    parts = build_engine(engine_config(settings, path, served_name(path)), note)
    try:
        tokenizer = load_text_model(path).tokenizer
        rows = []
        for level in levels:
            planned = traffic.requests(requests or max(8, 4 * level), level)
            prompts = [tuple(tokenizer.encode(one.prompt)) for one in planned]
            note(f"{level} open requests, {len(planned)} in all …")
            rows.append(_level(parts.core, planned, prompts, level))
        return rows
    finally:
        parts.close()


def _level(
    core: EngineCore, planned: Sequence[PlannedRequest], prompts: Sequence[tuple[int, ...]], level: int
) -> EngineRow:
    waiting = iter(range(len(planned)))
    sent_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    num_tokens = 0
    core.reset_counters()
    began = time.perf_counter()

    def fill() -> None:
        while len(sent_s) - len(done) < level and (number := next(waiting, None)) is not None:
            name = f"bench {level} {number}"
            sampling = SamplingParams(temperature=0.0, max_tokens=planned[number].max_tokens, ignore_eos=True)
            sent_s[name] = time.perf_counter()
            core.add(GenerateRequest(name, prompts[number], sampling))

    done: set[str] = set()
    fill()
    while core.has_work:
        events = core.step()
        now_s = time.perf_counter()
        for event in events:
            if event.error is not None:
                raise InvalidInputError(f"a request failed: {event.error.message}")
            if event.token_ids:
                num_tokens += len(event.token_ids)
                first_s.setdefault(event.request_id, now_s)
            if event.finish_reason is not None:
                done.add(event.request_id)
        fill()
    wall_s = time.perf_counter() - began
    stats = core.stats()
    waits = [1e3 * (first_s[name] - sent_s[name]) for name in first_s]
    steps = stats.steps
    return EngineRow(
        level, len(planned), wall_s, num_tokens, stats.tokens_prefill, steps, 1e3 * stats.step_time_s / steps,
        stats.batch_size_sum / steps, 1.0 - stats.execute_time_s / stats.step_time_s, percentile(waits, 0.5),
    )  # fmt: skip


def _flags(arguments: Sequence[str]) -> dict[str, object]:
    """`--threads 2 --no-prefix-cache` as settings, read by the very command that knows them."""
    import typer.main

    from aie.app import app

    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]  # a group has them
    given = serve.make_context("serve", list(arguments)).params
    named = {name: value for name, value in given.items() if value is not None}
    named.pop("config", None)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items() if value != []}


def engine_table(rows: Sequence[EngineRow]) -> Table:
    """80 columns hold it."""
    view = Table(title="The engine alone, greedy; times in ms", title_justify="left", box=box.SIMPLE_HEAD,
                 padding=(0, 1), pad_edge=False)  # fmt: skip
    for name in (
        "open",
        "tokens\nper s",
        "requests\nper s",
        "TTFT\nP50",
        "step",
        "mean\nbatch",
        "steps",
        "Python's\nshare",
    ):
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        view.add_row(
            str(row.open_requests), f"{row.output_tokens_per_s:.1f}", f"{row.requests / row.wall_s:.2f}",
            "–" if row.ttft_p50_ms is None else f"{row.ttft_p50_ms:.0f}", f"{row.step_ms:.1f}",
            f"{row.mean_batch:.1f}", str(row.steps), f"{row.python_share:.1%}",
        )  # fmt: skip
    return view
