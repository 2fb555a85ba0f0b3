"""Traffic on an engine in this process, with the ledger on, and snapshots of its memory while no request is open."""

import gc
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aie.assemble import engine_config, find_model
from aie.console import note
from aie.memdebug.load import Load, report
from aie.memdebug.outputs import Outputs
from aie.memdebug.show import Progress, print_endings, print_verdict, say, screen
from aie.memdebug.traffic import plan, run
from aie.memdebug.verdict import Marks, judge
from aie.settings import load_settings
from aie_engine import AieError, EngineConfig, InvalidInputError, LocalEngine
from aie_loader import served_name
from aie_tensor.memdebug import snapshot_from_json

if TYPE_CHECKING:
    from aie_engine import EngineClient
    from aie_tensor.memdebug import MemorySnapshot

__all__ = ["mark_run", "run_locally"]

_MAX_SEQ_LEN = 128  # longer than any request of the traffic


def run_locally(model: str | None, kernels: str | None, load: Load, outputs: Outputs) -> bool:
    """Runs, prints and writes. True when nothing leaks and nothing grew beyond the limit."""
    with outputs.recording() as wanted:
        with _own_engine(model, kernels, load.concurrency, wanted.record) as engine:
            marks, endings = mark_run(engine, load)
            stats = engine.stats()
        print_endings(endings)
        verdict = judge(marks, limit_bytes=load.limit_bytes)
        say(screen(marks.end))
        print_verdict(marks, verdict, num_warm_up=load.num_warm_up)
        if stats.num_running or stats.num_waiting:
            raise AieError(f"The engine still counts {stats.num_running + stats.num_waiting} requests; none is open.")
        wanted.write_snapshots([marks.end])
    outputs.write_report(report(marks, verdict, endings, load))
    return not verdict.failed


def mark_run(engine: "EngineClient", load: Load) -> tuple[Marks, Counter[str]]:
    """The traffic in three pieces with a mark before and after each, taken while no request is open."""
    planned = plan(load.mix, engine.info)
    progress = Progress(load.requests)
    endings: Counter[str] = Counter()
    measured = load.requests - load.num_warm_up
    snapshots = [_mark(engine)]
    try:
        for count in (load.num_warm_up, measured // 2, measured - measured // 2):
            piece = itertools.islice(planned, count)
            endings += run(engine, piece, load.concurrency, on_done=progress.step)
            snapshots.append(_mark(engine))
    finally:
        progress.end()
    return Marks(*snapshots), endings


def _mark(engine: "EngineClient") -> "MemorySnapshot":
    gc.collect()  # what waits for Python's collector is neither held nor lost
    return snapshot_from_json(engine.memory(), name="the engine's answer")


@contextmanager
def _own_engine(
    model: str | None, kernels: str | None, concurrency: int, record: Path | None
) -> "Iterator[EngineClient]":
    settings = load_settings({"kernels": kernels, "max_batch_size": concurrency, "memdebug": True})
    path = find_model(model)
    config = engine_config(settings, path, served_name(model) if model else served_name(path))
    if record is not None:
        config = replace(config, memory_log=record)
    engine = _start(config)
    try:
        yield engine
    finally:
        engine.close()


def _start(config: EngineConfig) -> LocalEngine:
    """With a KV cache that the warm-up walks through once. In one sized for the model's longest context, traffic would
    meet untouched pages for thousands of requests, and resident memory would seem to grow."""
    if config.max_seq_len is None:
        try:
            return LocalEngine(replace(config, max_seq_len=_MAX_SEQ_LEN), report=note)
        except InvalidInputError as error:
            if error.param != "max_seq_len":
                raise  # else the model's context is shorter still
    return LocalEngine(config, report=note)
