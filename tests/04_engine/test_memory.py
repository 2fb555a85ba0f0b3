"""What an engine holds: everything has an owner, and after any traffic it is exactly what it was before."""

import errno
import gc
import logging
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aie_engine import (
    EngineClient,
    EngineConfig,
    EngineDeadError,
    EnvironmentLacksError,
    GenerateRequest,
    InvalidInputError,
    LocalEngine,
    SamplingParams,
    WorkerEngine,
)
from aie_engine.generation import Generation
from aie_engine.recorder import FlightRecorder
from aie_tensor import NativeUnavailableError, OutOfMemoryError, native
from aie_tensor.memdebug import read_log

Ask = Callable[..., GenerateRequest]
KERNELS = ["numpy", pytest.param("native", marks=pytest.mark.native)]


def config_for(model: Path, **more: Any) -> EngineConfig:
    return EngineConfig(model, **{"kernels": "numpy", "kv_memory_bytes": 1 << 20, "max_batch_size": 8, **more})


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        try:
            native.load()
        except NativeUnavailableError as error:
            pytest.skip(str(error))
    return str(request.param)


def figures(engine: EngineClient) -> dict[str, int]:
    """What has to be the same before and after: live bytes, blocks, and who holds KV blocks."""
    snapshot: Any = engine.memory()
    (pool,) = snapshot["pools"]
    (slab,) = pool["slabs"]
    held = sum(group["count"] for group in snapshot["groups"])
    names = ("live_bytes", "requested_bytes", "mapped_bytes", "num_live", "pending_bytes", "num_dropped")
    return {name: pool["stats"][name] for name in names} | {"kv": len(slab["used"]), "groups": held}


def nasty_traffic(engine: EngineClient, request_for: Ask, seed: int) -> list[str]:
    """Requests that end, that are cancelled at once or at some token, and that are refused; how each ended."""
    endings = []
    streams = []
    for number in range(24):
        request = request_for(f"{seed}-{number}", [5 + number] * (1 + 7 * (number % 5)), 3 + number, ignore_eos=True)
        if number % 8 == 7:
            with pytest.raises(InvalidInputError):
                engine.submit(request_for(f"{seed}-{number}", [10**6], 3))
            continue
        if number % 8 == 6:
            deadline = request_for(request.request_id, [3], 100, ignore_eos=True, deadline_s=0.0)
            streams.append((number, engine.submit(deadline)))
            continue
        streams.append((number, engine.submit(request)))
        if len(streams) >= 6:
            endings += [_finish(number, stream) for number, stream in streams]
            streams = []
    return endings + [_finish(number, stream) for number, stream in streams]


def _finish(number: int, stream: Any) -> str:
    if number % 3 == 0:
        stream.cancel()
    last = stream.get(10)
    if number % 3 == 1 and not stream.finished:
        stream.cancel()
    while not stream.finished:
        last = stream.get(10)
    return str(last.finish_reason)


@pytest.mark.parametrize("memdebug", [False, True])
@pytest.mark.parametrize("kernels", KERNELS, indirect=True)
def test_live_bytes_return_to_the_baseline_exactly(
    tiny_model: Path, request_for: Ask, kernels: str, memdebug: bool
) -> None:
    engine = LocalEngine(config_for(tiny_model, kernels=kernels, memdebug=memdebug, num_threads=2))
    try:
        before = figures(engine)
        assert before["kv"] == 0 and before["live_bytes"] > 0 and (before["groups"] > 0) == memdebug
        endings = nasty_traffic(engine, request_for, 0)
        assert {"cancelled", "deadline", "length"} <= set(endings)
        assert figures(engine) == before
        nasty_traffic(engine, request_for, 1)
        assert figures(engine) == before
    finally:
        engine.close()
    (pool,) = _pools(engine)
    stats = pool["stats"]
    assert (stats["live_bytes"], stats["mapped_bytes"], stats["num_live"], stats["reserved_bytes"]) == (0, 0, 0, 0)
    assert stats["num_dropped"] == 0 and not pool["slabs"]
    assert engine._parts.memory.ledger.outstanding() == []


def _pools(engine: EngineClient) -> list[Any]:
    snapshot: Any = engine.memory()
    pools: list[Any] = snapshot["pools"]
    return pools


def test_in_a_worker_process_too(tiny_model: Path, request_for: Ask) -> None:
    engine = WorkerEngine(config_for(tiny_model, memdebug=True, memdebug_sample=2))
    try:
        before = figures(engine)
        first: Any = engine.memory()
        endings = nasty_traffic(engine, request_for, 0)
        after: Any = engine.memory()
        assert {name: value for name, value in figures(engine).items() if name != "groups"} == {
            name: value for name, value in before.items() if name != "groups"
        }
        assert after["num_requests"] - first["num_requests"] == len(endings)
        assert (after["process"], after["pid"], after["sample_every"]) == ("engine-0", engine.pid, 2)
        assert after["rss_bytes"] > 1 << 20
        stats = engine.stats()
        (pool,) = after["pools"]
        for name in ("reserved", "live", "requested", "cached", "pending", "mapped"):
            assert getattr(stats, f"memory_{name}_bytes") == pool["stats"][f"{name}_bytes"], name
        assert stats.num_kv_blocks == stats.num_free_blocks == engine.info.num_kv_blocks
        assert stats.memory_mapped_bytes >= engine.info.weight_bytes
    finally:
        engine.close()


def test_failing_steps_leave_nothing(new_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A captured record holds the traceback of a failed step, that its frames, and those the step's arrays. So does the
    # cycle of an exception and the fake executor's frame that has it in a variable.
    monkeypatch.setattr(logging.getLogger("aie.engine"), "disabled", True)
    rig = new_rig(memdebug=True)
    before = rig.parts.memory.pool.stats().live_bytes
    rig.executor.failures = [RuntimeError(), None, RuntimeError()]
    rig.executor.not_numbers = {9}
    for number in range(6):
        rig.add(str(number), [number + 5, 1, 2], 6)
    rig.add("4", [1])  # an id in use: refused, and the first keeps what it holds
    rig.add("late", [1, 2], 50, deadline_s=rig.clock.now)
    rig.step()
    rig.core.cancel("late")
    for number in range(6, 12):
        rig.add(str(number), [number + 5, 1, 2], 6)
    rig.run()
    pool = rig.parts.memory.pool
    assert pool.stats().live_bytes == before and pool.stats().num_dropped == 0
    assert pool.state().slabs[0].used == ()
    assert rig.parts.memory.ledger.num_requests == 14
    gc.collect()
    rig.parts.close()
    assert pool.stats().live_bytes == 0


def test_an_engine_that_dies_gives_up_what_its_requests_held(new_rig: Any) -> None:
    rig = new_rig()
    before = rig.parts.memory.pool.stats().live_bytes
    rig.add("a", [1, 2, 3])
    assert rig.parts.memory.pool.stats().live_bytes > before
    rig.core.die("broken")
    rig.run()
    assert rig.parts.memory.pool.stats().live_bytes == before


def test_a_shared_block_is_booked_once_and_handed_on(new_rig: Any) -> None:
    """Two requests with one beginning: what they share is the first one's, and the other's when that one leaves."""
    rig = new_rig(memdebug=True)

    def held() -> Counter[str]:
        (pool,) = rig.parts.memory.snapshot()["pools"]
        (slab,) = pool["slabs"]
        return Counter(holder for _, holder in slab["used"])

    prompt = list(range(17))  # four full blocks and one token
    rig.add("a", prompt, 40)
    rig.step()
    rig.add("b", [*prompt, 5], 40)
    rig.step()
    assert rig.events["b"][0].num_cached_tokens == 16
    shares = held()
    assert sum(shares.values()) == 64 - rig.allocator.num_free, "each block is booked once"
    (first, second) = sorted(shares, key=lambda holder: -shares[holder])
    assert "a" in first and "b" in second and shares[first] == 5 > shares[second]
    rig.core.cancel("a")
    after = held()
    assert after == {second: shares[second] + 4}
    rig.core.cancel("b")
    assert held() == Counter()
    rig.parts.close()


def test_a_request_for_which_there_is_no_memory_is_refused(new_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = new_rig()

    def refuse(*_: object, **__: object) -> None:
        raise OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Generation, "__init__", refuse)
        rig.add("a", [1, 2])
    rig.add("b", [1, 2], 3)
    rig.run()
    assert rig.last("a").error.code == OutOfMemoryError.code
    assert rig.last("b").finish_reason == "length" and rig.all_blocks_free


def test_a_start_that_fails_leaves_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aie_engine import build

    made = []

    class Spy(build.EngineMemory):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    def fail(*_: object) -> None:
        raise InvalidInputError("no scheduler")

    monkeypatch.setattr(build, "EngineMemory", Spy)
    monkeypatch.setattr(build, "_make_scheduler", fail)
    with pytest.raises(InvalidInputError, match="no scheduler"):
        build.build_engine(config_for(tiny_model), lambda line: None)
    (memory,) = made
    assert (memory.pool.stats().live_bytes, memory.pool.stats().mapped_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"memdebug": True, "memdebug_sample": 0}, "memdebug_sample"),
        ({"memory_log": Path("log")}, "memory_log"),
        ({"memory_ring": Path("ring")}, "memory_ring"),
    ],
)
def test_settings_that_make_no_sense(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        EngineConfig(Path("unused"), **fields)
    assert caught.value.param == param


def test_files_that_cannot_be_used(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="memory log"):
        LocalEngine(config_for(tiny_model, memdebug=True, memory_log=tmp_path / "no" / "log"))
    with pytest.raises(InvalidInputError, match="ring"):
        WorkerEngine(config_for(tiny_model, memdebug=True, memory_ring=tmp_path / "no ring"))


def test_the_log_tells_of_every_allocation_of_a_request(tiny_model: Path, tmp_path: Path, request_for: Ask) -> None:
    path = tmp_path / "log.jsonl"
    engine = WorkerEngine(config_for(tiny_model, memdebug=True, memory_log=path))
    for _ in engine.submit(request_for("r-17", [1, 2, 3], 4, ignore_eos=True)):
        pass
    engine.close()
    events = [event for event in read_log(path) if event.owner.request_id == "r-17"]
    assert {(event.kind.name, event.owner.what) for event in events} >= {
        ("ALLOCATE", "kv"), ("FREE", "kv"), ("ALLOCATE", "token ids"), ("FREE", "token ids"),
    }  # fmt: skip


@pytest.fixture
def private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go meanwhile."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder


def recorders(folder: Path) -> list[Path]:
    return list(folder.glob("aie-memory-*"))


def test_a_killed_worker_leaves_its_last_memory_events(
    tiny_model: Path, request_for: Ask, private_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = WorkerEngine(config_for(tiny_model, memdebug=True))
    try:
        assert len(recorders(private_folder)) == 1
        stream = engine.submit(request_for("r-17", [4] * 20, 100, ignore_eos=True))
        stream.get(10)
        with caplog.at_level(logging.ERROR, "aie.engine"):
            os.kill(engine.pid, signal.SIGKILL)
            while not stream.finished:
                last = stream.get(10)
        assert last.error is not None and "SIGKILL" in last.error.message
        events = engine.last_memory_events
        assert 0 < len(events) <= 20
        assert any("r-17" in line and "aie_scheduler" in line for line in events), events
        assert events[-1] in caplog.text
        with pytest.raises(EngineDeadError):
            engine.memory()
    finally:
        engine.close()
    assert engine.last_memory_events == events
    assert recorders(private_folder) == []


def test_the_recorder_is_removed_in_every_case(tiny_model: Path, tmp_path: Path, private_folder: Path) -> None:
    WorkerEngine(config_for(tiny_model, memdebug=True)).close()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(InvalidInputError):
        WorkerEngine(config_for(broken, memdebug=True))
    assert recorders(private_folder) == []


def test_what_a_killed_front_left_is_removed_by_the_next(private_folder: Path) -> None:
    def leave(name: str, age_s: float) -> Path:
        folder = private_folder / name
        folder.mkdir()
        (folder / "ring").write_bytes(b"")
        os.utime(folder, (time.time() - age_s,) * 2)
        return folder

    old = leave("aie-memory-old", 3600)
    young = leave("aie-memory-young", 0)  # its front may be about to lock it
    strange = leave("aie-memory-strange", 3600)
    (strange / "thesis").write_text("nobody wrote this to be deleted")
    os.utime(strange, (time.time() - 3600,) * 2)
    living = FlightRecorder()
    os.utime(living.path.parent, (time.time() - 3600,) * 2)
    assert not old.exists() and young.exists() and (strange / "thesis").exists()
    other = FlightRecorder()
    assert living.path.exists(), "locked by a front that lives"
    other.remove()
    living.remove()
    living.remove()
    assert sorted(recorders(private_folder)) == [strange, young]


def test_a_log_that_ends_early_is_told_at_the_end(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_file: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine = LocalEngine(config_for(tiny_model, memdebug=True, memory_log=tmp_path / "log"))
    try:
        with monkeypatch.context() as full:
            full.setattr(os, "write", refuse)
            engine.submit(GenerateRequest("r-1", (1, 2), SamplingParams(max_tokens=1))).get(10)
    finally:
        engine.close()
    assert "log ends early: No space left on device" in caplog.text


def test_the_warm_up_is_no_request(tiny_model: Path) -> None:
    engine = LocalEngine(config_for(tiny_model, memdebug=True, warm_up=True))
    try:
        assert engine.memory()["num_requests"] == 0
    finally:
        engine.close()


def test_a_snapshot_that_fails_does_not_end_the_engine(
    rig: Any, request_for: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(EngineConfig(Path("unused")), build=lambda config, report: rig.parts)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(rig.parts.memory), "snapshot", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.memory()
        assert engine.is_alive and engine.memory()["process"] == "engine"
    finally:
        engine.close()
