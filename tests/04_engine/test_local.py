"""The engine in a thread: the loop, the promises of `EngineClient`, and what is left behind (nothing)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aie_engine import (
    EngineConfig,
    EngineDeadError,
    GenerateRequest,
    InvalidInputError,
    LocalEngine,
    QueueFullError,
    TokenStream,
    start_engine,
)

Ask = Callable[..., GenerateRequest]
Answer = Callable[[Sequence[int], int], tuple[int, ...]]

CONFIG = EngineConfig(Path("unused"))


@pytest.fixture
def engine(rig: Any) -> Iterator[LocalEngine]:
    made = LocalEngine(CONFIG, build=lambda config, report: rig.parts)
    yield made
    made.close()


def hold(rig: Any) -> tuple[threading.Event, threading.Event]:
    """Make every step wait: (set when one has begun, set it to let all go on)."""
    began, go_on = threading.Event(), threading.Event()

    def on_run() -> None:
        began.set()
        assert go_on.wait(10)

    rig.executor.on_run = on_run
    return began, go_on


def tokens_of(stream: TokenStream) -> tuple[int, ...]:
    return tuple(token for event in stream for token in event.token_ids)


def test_many_at_once(engine: LocalEngine, request_for: Ask, answer: Answer) -> None:
    streams = [engine.submit(request_for(str(index), [index, 3], 20)) for index in range(8)]
    for index, stream in enumerate(streams):
        assert tokens_of(stream) == answer([index, 3], 20)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage, stats.tokens_decode) == (0, 0, 0.0, 160)
    assert stats.rss_bytes > 1 << 20 and stats.worker_pid > 0


def test_submitting_from_many_threads(new_rig: Any, request_for: Ask, answer: Answer) -> None:
    rig = new_rig(max_queue=100)
    engine = LocalEngine(CONFIG, build=lambda config, report: rig.parts)
    answers: dict[str, tuple[int, ...]] = {}

    def client(name: int) -> None:
        for turn in range(5):
            request_id = f"{name}-{turn}"
            answers[request_id] = tokens_of(engine.submit(request_for(request_id, [name, turn], 6)))

    threads = [threading.Thread(target=client, args=(name,)) for name in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert answers == {f"{n}-{t}": answer([n, t], 6) for n in range(12) for t in range(5)}
    assert rig.all_blocks_free


def test_cancelling_frees_the_blocks_within_one_step(rig: Any, engine: LocalEngine, request_for: Ask) -> None:
    began, go_on = hold(rig)
    stream = engine.submit(request_for("r", [1, 2, 3], 100))
    assert began.wait(10)
    stream.cancel()  # while a step is running
    go_on.set()
    *_, last = stream
    assert last.finish_reason == "cancelled"
    stats = engine.stats()
    assert (stats.num_running, stats.kv_usage, stats.steps) == (0, 0.0, 1)


def test_an_idle_engine_does_nothing(rig: Any, engine: LocalEngine, request_for: Ask) -> None:
    calls: list[float] = []
    step = rig.core.step
    rig.core.step = lambda: (calls.append(0), step())[1]
    tokens_of(engine.submit(request_for("r", [1], 3)))
    engine.stats()  # has been answered: whatever the request caused is over
    before = len(calls)
    assert before <= 6
    engine.stats()
    assert len(calls) <= before + 2  # one round per question, none in between


def test_the_door_is_shut_when_the_house_is_full(rig: Any, engine: LocalEngine, request_for: Ask) -> None:
    _, go_on = hold(rig)
    streams = [engine.submit(request_for(str(index), [1], 1)) for index in range(24)]
    with pytest.raises(QueueFullError):
        engine.submit(request_for("more", [1], 1))
    go_on.set()
    assert [event.finish_reason for stream in streams for event in stream] == ["length"] * 24


def test_closing_ends_what_is_open_and_leaves_nothing(rig: Any, request_for: Ask) -> None:
    threads_before = set(threading.enumerate())
    engine = LocalEngine(CONFIG, build=lambda config, report: rig.parts)
    began, go_on = hold(rig)
    streams = [engine.submit(request_for(str(index), [1], 100)) for index in range(9)]
    assert began.wait(10)
    threading.Timer(0, go_on.set).start()
    engine.close()
    engine.close()
    assert [[event.finish_reason for event in stream][-1] for stream in streams] == ["cancelled"] * 9
    assert not engine.is_alive
    with pytest.raises(EngineDeadError, match="closed"):
        engine.submit(request_for("late", [1]))
    engine.cancel("late")
    engine.stats()
    assert rig.executor.is_closed and rig.all_blocks_free
    assert {thread for thread in threading.enumerate() if thread.name == "aie-engine"} <= threads_before


def test_an_engine_that_gives_up_says_so_to_everybody(rig: Any, engine: LocalEngine, request_for: Ask) -> None:
    began, go_on = hold(rig)
    rig.executor.failures = [RuntimeError(), RuntimeError(), RuntimeError()]
    streams = [engine.submit(request_for("0", [1], 3))]
    assert began.wait(10)
    streams += [engine.submit(request_for(str(index), [1], 3)) for index in range(1, 20)]
    go_on.set()
    errors = [event.error.code for stream in streams for event in stream if event.error]
    assert errors == ["engine_fault"] * 17 + ["engine_died"] * 3  # steps of one, eight and eight
    engine._thread.join(10)
    assert not engine.is_alive
    with pytest.raises(EngineDeadError, match="gave up"):
        engine.submit(request_for("late", [1]))


def test_a_fault_in_our_own_books_kills_the_engine_and_not_the_thread(
    rig: Any, engine: LocalEngine, request_for: Ask
) -> None:
    rig.scheduler.schedule = lambda now: 1 / 0
    rig.scheduler.cancel = lambda request_id: 1 / 0
    (event,) = engine.submit(request_for("r", [1]))
    assert event.error is not None
    assert (event.error.code, event.error.status) == ("engine_died", 503)
    engine._thread.join(10)
    assert not engine.is_alive


def test_the_ledger_names_who_holds_blocks(tiny_model: Path, request_for: Ask) -> None:
    engine = LocalEngine(EngineConfig(tiny_model, kernels="numpy", memdebug=True, kv_memory_bytes=1 << 20))
    try:
        before: Any = engine.memory()
        assert all(group["what"] and group["stage"] == "aie_engine" for group in before["groups"])
        stream = engine.submit(request_for("r-17", [1] * 20, 200, ignore_eos=True))
        stream.get()
        during: Any = engine.memory()
        held = [group for group in during["groups"] if group["what"] == "kv"]
        assert sum(group["count"] for group in held) >= 2
        for kv in held:  # a group for each place that asks for blocks
            assert list(kv["requests"]) == ["r-17"] and kv["worker"] == "engine"
            assert "aie_scheduler" in kv["stack"][0], "the line of the scheduler that asked"
        assert any(group["what"] == "token ids" for group in during["groups"])
        stream.cancel()
        for _ in stream:
            pass
        after: Any = engine.memory()
        assert [group["what"] for group in after["groups"]] == [group["what"] for group in before["groups"]]
        assert after["num_requests"] == before["num_requests"] + 1
    finally:
        engine.close()


def test_start_engine_in_this_process(tiny_model: Path, request_for: Ask) -> None:
    lines: list[str] = []
    engine = start_engine(EngineConfig(tiny_model, kernels="numpy", model_name="named"), 0, lines.append)
    assert (engine.info.model_name, engine.info.kernels) == ("named", "numpy")
    assert len(tokens_of(engine.submit(request_for("r", [5, 6], 4, ignore_eos=True)))) == 4
    assert engine.stats().tokens_decode == 4, "the warm-up must not be counted"
    engine.close()
    with pytest.raises(InvalidInputError, match="not 2"):
        start_engine(EngineConfig(tiny_model), 2)


def test_auto_falls_back_to_numpy_and_says_how_to_do_better(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aie_engine import build
    from aie_tensor import NativeUnavailableError

    def no_compiler(**_: object) -> None:
        raise NativeUnavailableError("No C compiler was found; pip install ziglang brings one.")

    monkeypatch.setattr(build.native, "load", no_compiler)
    lines: list[str] = []
    engine = LocalEngine(EngineConfig(tiny_model), lines.append)
    assert engine.info.kernels == "numpy"
    assert any("pip install ziglang" in line for line in lines)
    engine.close()
    with pytest.raises(NativeUnavailableError):
        LocalEngine(EngineConfig(tiny_model, kernels="native"))
