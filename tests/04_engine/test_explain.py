"""`EngineClient.explain`, in a thread and in a process: the core feeds the book, and the answer crosses the pipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aie_engine import EngineConfig, EngineDeadError, GenerateRequest, LocalEngine, TimelineReport, WorkerEngine, frames

Ask = Callable[..., GenerateRequest]


def adds_up(report: TimelineReport) -> bool:
    return report.total_us == sum(report.phases_us.values()) and min(report.phases_us.values()) >= 0


def test_through_the_core(rig: Any) -> None:
    """Two in one batch, and every run of the model takes ten milliseconds."""
    rig.executor.on_run = lambda: setattr(rig.clock, "now", rig.clock.now + 0.01)
    rig.add("a", [1, 2, 3], 6)
    rig.clock.now += 0.002
    rig.add("b", [4, 5], 3)
    rig.run()
    answer = rig.core.timelines.explain(["a", "b", "c"], rig.clock.now)
    a, b = answer.requests
    assert adds_up(a) and adds_up(b) and (answer.num_open, answer.num_kept) == (0, 2)
    assert (a.state, a.prompt_tokens, a.prefill_tokens, a.generated_tokens, a.decode_steps) == ("length", 3, 3, 6, 5)
    assert a.phases_us["prefill"] == 10_000 and a.phases_us["turn"] == 2000
    assert a.phases_us["decode"] + a.phases_us["stalled"] == 50_000
    assert (b.generated_tokens, b.phases_us["turn"]) == (3, 0)


@pytest.mark.parametrize("make", [LocalEngine, WorkerEngine])
def test_of_an_engine_that_runs(tiny_model: Path, request_for: Ask, make: Any) -> None:
    engine = make(EngineConfig(tiny_model, kernels="numpy", kv_memory_bytes=4 << 20))
    try:
        for name in ("first", "second"):
            for _ in engine.submit(request_for(name, [5, 6, 7], 4, ignore_eos=True)):
                pass
        (report,) = engine.explain(["first", "unknown"]).requests
        assert adds_up(report) and report.generated_tokens == 4 and not report.is_open
        assert [one.request_id for one in engine.explain(num_ended=1).requests] == ["second"]
        assert engine.explain().requests == []
    finally:
        engine.close()
    if make is WorkerEngine:
        with pytest.raises(EngineDeadError, match="has died"):
            engine.explain()
    else:
        assert engine.explain().num_kept == 2


def test_figures_of_guesses_cross_the_pipe(new_rig: Any) -> None:
    rig = new_rig(speculate=4, num_words=3)
    rig.add("a", [1, 2, 1, 2, 1, 2], 60)
    rig.run()
    stats = rig.core.stats()
    (report,) = rig.core.timelines.explain(["a"], rig.clock.now).requests
    assert stats.accepted_tokens == report.accepted_tokens > 0
    assert stats.drafted_tokens <= report.drafted_tokens, "those behind a wrong guess are not looked at"
    assert report.generated_tokens == 60 == report.decode_steps + report.accepted_tokens + 1
    assert frames.decode_from_worker(frames.encode(frames.Answer(7, stats=stats))) == frames.Answer(7, stats=stats)


def test_the_question_and_the_answer_cross_the_pipe(rig: Any) -> None:
    question = frames.Ask(7, "requests", ("a",), 3)
    assert frames.decode_to_worker(frames.encode(question)) == question
    rig.add("a", [1, 2, 3], 2)
    rig.run()
    answer = frames.Answer(7, requests=rig.core.timelines.explain_all(1, rig.clock.now))
    assert frames.decode_from_worker(frames.encode(answer)) == answer
