"""A line for every so many batches: what it says, when it comes, and that nobody is asked while nothing happens."""

import logging
from typing import Any

import msgspec
import pytest

from aie_engine import EngineStats, InvalidInputError, PredictorStats
from aie_server import ServedModel, ServedPredictor, ServerConfig
from aie_server.batch_growth import largest_new
from aie_server.batch_log import BatchLog
from aie_server.metrics import Metrics
from aie_server.metrics_catalog import ServerMetrics
from aie_server.predictors import PredictorTable
from aie_server.request_book import RequestBook
from aie_server.served import ModelTable


class Rig:
    """A log of one engine and one predictor, on a clock of the test's."""

    def __init__(self, engine: Any, predictor: Any = None, num_batches: int = 100) -> None:
        self.now_s = 50.0
        self.engine = engine
        self.metrics = ServerMetrics(Metrics())
        self.models = ModelTable([ServedModel("tiny", engine, None, created=1)])  # type: ignore[arg-type]
        served = [ServedPredictor("mini", predictor, None)] if predictor is not None else []  # type: ignore[arg-type]
        self.log = BatchLog(
            num_batches, self.models, PredictorTable(served, self.models), self.metrics, RequestBook(),
            clock=lambda: self.now_s,
        )  # fmt: skip

    def look(self, seconds: float = 1.0, **figures: Any) -> None:
        """After `seconds` in which the engine came so far, and the front saw something of it."""
        self.now_s += seconds
        if figures:
            self.engine.figures = msgspec.structs.replace(self.engine.figures, **figures)
            self.metrics.of_model("tiny").generation_tokens.inc()
        self.log.look()


class Counted:
    """A predictor as far as it is counted."""

    def __init__(self) -> None:
        self.figures = PredictorStats()

    def stats(self) -> PredictorStats:
        return self.figures


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "aie.batches"]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aie.batches")


def test_a_line_for_every_hundred_steps(make_engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(make_engine())
    rig.look(steps=60, batch_size_sum=60, batch_sizes={1: 60}, step_time_s=0.5, tokens_decode=60)
    assert not lines(caplog)
    rig.look(
        seconds=1.5, steps=110, batch_size_sum=310, batch_sizes={1: 60, 5: 50}, step_time_s=2.0, tokens_decode=310,
        tokens_prefill=40, num_running=5, num_waiting=2, kv_usage=0.25, rss_bytes=64 << 20,
    )  # fmt: skip
    (line,) = lines(caplog)
    assert line.getMessage() == (
        "tiny: 110 steps in 2.5 s, computing 80 % of it, batch mean 2.8, max 5, 5 running, 2 waiting, KV cache 25 %, "
        "64 MiB, 124 generated tokens/s, 16 prompt tokens/s"
    )
    assert line.fields == {
        "model": "tiny", "batches": 110, "seconds": 2.5, "busy": 0.8, "mean_batch": 2.818, "max_batch": 5,
        "running": 5, "waiting": 2, "kv_usage": 0.25, "memory_bytes": 64 << 20, "generated_tokens_per_s": 124.0,
        "prompt_tokens_per_s": 16.0,
    }  # fmt: skip
    rig.look(steps=220, batch_size_sum=530, batch_sizes={1: 60, 2: 110, 5: 50}, step_time_s=2.5, tokens_decode=530)
    assert lines(caplog)[1].fields["max_batch"] == 2, "of the batches since the last line"


def test_idle_time_is_in_no_rate_and_nobody_is_asked_in_it(make_engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    asked: list[int] = []
    engine.stats = lambda: asked.append(1) or engine.figures
    rig = Rig(engine)
    rig.look(steps=50, batch_size_sum=50, batch_sizes={1: 50}, tokens_decode=50)
    for _ in range(600):
        rig.look()
    assert len(asked) == 1 and not lines(caplog)
    rig.look(steps=100, batch_size_sum=100, batch_sizes={1: 100}, tokens_decode=100)
    (line,) = lines(caplog)
    assert (line.fields["seconds"], line.fields["generated_tokens_per_s"]) == (2.0, 50.0)


def test_an_engine_that_began_anew_counts_from_nothing(make_engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(make_engine())
    rig.look(steps=90, batch_size_sum=90, batch_sizes={4: 90})
    rig.look(steps=20, batch_size_sum=20, batch_sizes={1: 20})
    assert not lines(caplog)
    rig.look(steps=100, batch_size_sum=100, batch_sizes={1: 100})
    (line,) = lines(caplog)
    assert (line.fields["batches"], line.fields["max_batch"]) == (100, 1)


def test_a_predictor_says_why_its_batches_were_cut(make_engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    predictor = Counted()
    rig = Rig(make_engine(), predictor)
    predictor.figures = PredictorStats(
        batches=120, rows=480, batch_sizes={2: 100, 8: 20}, reasons={"full": 20, "waited": 100}, compute_s=0.5,
        num_waiting=3,
    )  # fmt: skip
    rig.look()
    (line,) = lines(caplog)
    assert "mini: 120 batches in 1.0 s, computing 50 % of it, batch mean 4.0, max 8, 0 running, 3 waiting" in (
        line.getMessage()
    )
    assert line.getMessage().endswith("480 inputs/s, cut: waited 100 · full 20")
    assert line.fields["cuts"] == {"waited": 100, "full": 20} and line.fields["memory_bytes"] > 0


def test_a_server_with_it_and_one_without(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert harness.serve()._batch_log is None
    server = harness.serve(config=ServerConfig(log_every=1))
    harness.engine.figures = EngineStats(steps=3, batch_size_sum=3, batch_sizes={1: 3})
    server._batch_log.look()
    server.close()
    assert len(lines(caplog)) == 1
    with pytest.raises(InvalidInputError, match="log_every"):
        ServerConfig(log_every=-1)


def test_the_largest_size_that_is_new() -> None:
    assert largest_new({1: 5, 8: 2}, {1: 6, 8: 2}) == 1
    assert largest_new({}, {3: 1, 9: 1}) == 9 and largest_new({2: 1}, {2: 1}) == 0
