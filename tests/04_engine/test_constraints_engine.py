"""Constrained answers in a running engine: compiling, failing and ending concern nobody else."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aie_engine import (
    ConstraintSpec,
    EngineConfig,
    GenerateRequest,
    LocalEngine,
    SamplingParams,
    TokenEvent,
    build,
    load_text_model,
)
from aie_engine.constraints import ConstraintMaker

pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")

WAIT_S = 10.0
PROMPT = tuple(range(5, 20))
YES_OR_NO = ConstraintSpec("choice", '["yes", "no"]')
# Compiles, and is too large a state once the "a" has come.
TOO_LARGE = ConstraintSpec("grammar", "start: " + " | ".join(f'"a{n}"' for n in range(8000)), "guided_grammar")


@pytest.fixture
def may_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Whoever compiles waits for this event."""
    event = threading.Event()
    make = ConstraintMaker.make

    def wait_and_make(self: ConstraintMaker, spec: ConstraintSpec) -> Any:
        assert event.wait(WAIT_S)
        return make(self, spec)

    monkeypatch.setattr(ConstraintMaker, "make", wait_and_make)
    yield event
    event.set()


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4, kv_memory_bytes=1 << 20))
    yield made
    made.close()


def request(name: str, spec: ConstraintSpec | None = None, **wishes: Any) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, SamplingParams(**{"max_tokens": 20, "seed": 1, **wishes}), constraint=spec)


def drained(engine: LocalEngine) -> bool:
    until, pause = time.monotonic() + WAIT_S, threading.Event()
    while (now := engine.stats()).num_running or now.num_waiting or now.kv_usage:
        assert time.monotonic() < until, now
        pause.wait(0.005)
    return True


def text_of(events: list[TokenEvent], path: Path) -> str:
    tokens = [token for event in events for token in event.token_ids if token != event.stop_token_id]
    return load_text_model(path).tokenizer.decode(tokens)


def test_others_go_on_while_a_form_is_compiled(
    engine: LocalEngine, may_compile: threading.Event, tiny_gguf: Path
) -> None:
    formed = engine.submit(request("formed", YES_OR_NO))
    assert [*engine.submit(request("free"))][-1].finish_reason in ("stop", "length")
    with pytest.raises(TimeoutError):
        formed.get(0.0)
    may_compile.set()
    events = list(formed)
    assert events[-1].finish_reason == "stop" and text_of(events, tiny_gguf) in ("yes", "no")
    assert drained(engine)


def test_a_request_can_be_cancelled_while_its_form_is_compiled(
    engine: LocalEngine, may_compile: threading.Event
) -> None:
    first, second = engine.submit(request("a", YES_OR_NO)), engine.submit(request("b", YES_OR_NO))
    first.cancel()
    second.cancel()
    assert [event.finish_reason for event in first] == [event.finish_reason for event in second] == ["cancelled"]
    may_compile.set()
    assert [*engine.submit(request("c", YES_OR_NO))][-1].finish_reason == "stop"
    assert drained(engine)


def test_an_engine_can_be_closed_while_a_form_is_compiled(tiny_gguf: Path, may_compile: threading.Event) -> None:
    before = set(threading.enumerate())
    engine = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4))
    stream = engine.submit(request("a", YES_OR_NO))
    engine.stats()  # it has been taken in
    threading.Timer(0.05, may_compile.set).start()
    engine.close()
    assert [event.finish_reason for event in stream][-1] in ("cancelled", "error")
    left = [thread for thread in set(threading.enumerate()) - before if not isinstance(thread, threading.Timer)]
    assert not left


def test_a_form_that_fails_on_the_way_ends_its_own_request(engine: LocalEngine, tiny_gguf: Path) -> None:
    streams = [engine.submit(request(f"good {n}", YES_OR_NO, seed=n)) for n in range(2)]
    bad = list(engine.submit(request("bad", TOO_LARGE)))
    assert bad[-1].finish_reason == "error" and bad[-1].error is not None
    assert (bad[-1].error.code, bad[-1].error.status, bad[-1].error.param) == (
        "invalid_constraint", 400, "guided_grammar",
    )  # fmt: skip
    for stream in streams:
        assert text_of(list(stream), tiny_gguf) in ("yes", "no")
    assert engine.is_alive and drained(engine)


def test_a_vocabulary_that_cannot_be_read_is_that_requests_error(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(build, "_make_constraints", fail)
    events = list(engine.submit(request("formed", YES_OR_NO)))
    assert events[-1].error is not None and events[-1].error.status == 500
    assert "no such thing" not in events[-1].error.message
    assert [*engine.submit(request("free"))][-1].finish_reason in ("stop", "length")


def test_complete_json_ends_also_for_who_ignores_the_end_of_sequence(engine: LocalEngine, tiny_gguf: Path) -> None:
    spec = ConstraintSpec("json_schema", json.dumps({"enum": [True, False]}))
    events = list(engine.submit(request("formed", spec, ignore_eos=True, min_tokens=10)))
    assert (events[-1].finish_reason, events[-1].stop_token_id) == ("stop", None)
    assert text_of(events, tiny_gguf) in ("true", "false")
