"""Frames: everything survives the trip, and nothing else comes out of bytes than a frame."""

import pickle
from pathlib import Path

import msgspec
import pytest

from aie_engine import (
    EngineConfig,
    EngineInfo,
    EngineStats,
    ErrorInfo,
    GenerateRequest,
    InvalidInputError,
    SamplingParams,
    TokenEvent,
    TokenLogprobs,
    frames,
)
from aie_engine.errors import rebuild

SAMPLING = SamplingParams(0.7, 40, 0.9, 0.05, 2**63, 64, (2, 3), True, 5)
TO_WORKER = [
    frames.Submit(GenerateRequest("r", (1, 2, 3), SAMPLING, 12.5, -1)),
    frames.Cancel("r"),
    frames.Ask(3, "stats"),
    frames.Ask(4, "memory"),
    frames.Stop(),
]
EVENTS = [
    TokenEvent("r", (5,), (TokenLogprobs(5, -0.5, ((5, -0.5), (6, -1.5))),), None, None, None, 3, 1),
    TokenEvent("s", (2,), (), "stop", 2),
    TokenEvent("t", finish_reason="error", error=ErrorInfo("engine_fault", "a fault", 500, None)),
]
FROM_WORKER = [
    frames.Progress("compiling kernels …"),
    frames.Ready(EngineInfo("m", 8192, 49152, 64, 1092, 16, "native", 2, (2,))),
    frames.StartFailed("no such architecture", "unknown_architecture", 400, 2),
    frames.StepFrame(EVENTS),
    frames.StepFrame([], EngineStats(num_running=3, kv_usage=0.5)),
    frames.Answer(1, memory={"version": 1, "pools": [{"stats": {"live_bytes": 737280}}], "ages": []}),
    frames.Died("gave up"),
]


@pytest.mark.parametrize("frame", TO_WORKER)
def test_to_the_worker(frame: frames.ToWorker) -> None:
    assert frames.decode_to_worker(frames.encode(frame)) == frame


@pytest.mark.parametrize("frame", FROM_WORKER)
def test_from_the_worker(frame: frames.FromWorker) -> None:
    assert frames.decode_from_worker(frames.encode(frame)) == frame


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pickle.dumps("anything"),
        msgspec.msgpack.encode(["Exec", "rm"]),
        msgspec.msgpack.encode(["Cancel", 5]),
        msgspec.msgpack.encode(["Submit", ["r", ["x"], []]]),
        msgspec.msgpack.encode({"type": "Stop"}),
        frames.encode(frames.Progress("a frame of the other direction")),
    ],
)
def test_bytes_that_are_no_frame(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode_to_worker(data)


def test_a_step_of_32_requests_is_a_small_frame() -> None:
    events = [TokenEvent(f"request-{index:04d}", (49151,), num_prompt_tokens=300) for index in range(32)]
    assert len(frames.encode(frames.StepFrame(events))) < 32 * 40


def test_the_configuration_travels() -> None:
    config = EngineConfig(Path("/some/model.gguf"), "name", "numpy", 3, max_seq_len=77, memdebug=True, seed=9)
    assert frames.decode_config(frames.encode_config(config)) == config


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"kernels": "fast"}, "kernels"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"num_threads": 0}, "num_threads"),
        ({"max_seq_len": 1}, "max_seq_len"),
        ({"max_queue": -1}, "max_queue"),
        ({"max_batch_size": 100, "max_batch_tokens": 99}, "max_batch_tokens"),
    ],
)
def test_a_configuration_that_makes_no_sense(wish: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        EngineConfig(Path("m"), **wish)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_an_error_is_rebuilt_on_its_branch_of_the_tree() -> None:
    error = rebuild("No such architecture.", code="unknown_architecture", status=400, exit_code=2)
    assert isinstance(error, InvalidInputError)
    assert (str(error), error.code, error.status, error.exit_code) == (
        "No such architecture.", "unknown_architecture", 400, 2,
    )  # fmt: skip
    assert InvalidInputError.code == "invalid_input"
