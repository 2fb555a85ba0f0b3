"""Who may enter, and what becomes of those inside."""

from collections.abc import Callable
from typing import Any

import pytest

from aie_engine import (
    EngineDeadError,
    EngineInfo,
    EngineStats,
    ErrorInfo,
    GenerateRequest,
    InvalidInputError,
    QueueFullError,
    RequestTooLongError,
    TokenEvent,
)
from aie_engine.registry import StreamRegistry

Ask = Callable[..., GenerateRequest]


@pytest.fixture
def registry(rig: Any) -> StreamRegistry:
    info = EngineInfo("fake", 32, 97, 2, 64, 4, "numpy", 1, (), max_queue=1)
    return StreamRegistry(info, lambda _: None, clock=rig.clock)


@pytest.mark.parametrize(
    ("prompt", "wishes", "error", "param"),
    [
        ([], {}, InvalidInputError, "prompt"),
        ([97], {}, InvalidInputError, "prompt"),
        ([-1], {}, InvalidInputError, "prompt"),
        ([1] * 32, {}, RequestTooLongError, "prompt"),
        ([1] * 30, {"num_tokens": 3}, RequestTooLongError, "max_tokens"),
        ([1], {"num_tokens": 0}, InvalidInputError, "max_tokens"),
        ([1], {"temperature": -1.0}, InvalidInputError, "temperature"),
    ],
)
def test_what_can_never_run_is_refused(
    registry: StreamRegistry, request_for: Ask, prompt: list[int], wishes: dict[str, Any], error: type, param: str
) -> None:
    with pytest.raises(error) as caught:
        registry.open(request_for("r", prompt, **{"num_tokens": 1, **wishes}))
    assert caught.value.param == param
    assert len(registry) == 0


def test_the_longest_request_that_fits(registry: StreamRegistry, request_for: Ask) -> None:
    assert registry.open(request_for("r", [96] * 30, 2)).request_id == "r"


def test_a_full_house_names_a_time_to_come_back(rig: Any, registry: StreamRegistry, request_for: Ask) -> None:
    for index in range(3):
        registry.open(request_for(str(index), [1]))
    with pytest.raises(QueueFullError) as caught:
        registry.open(request_for("more", [1]))
    assert caught.value.retry_after_s == 1.0
    rig.clock.now += 160
    registry.deliver([TokenEvent("0", finish_reason="length")])
    registry.open(request_for("more", [1]))
    with pytest.raises(QueueFullError) as caught:
        registry.open(request_for("still more", [1]))
    assert caught.value.retry_after_s == 10.0  # half of the mean stay, of which 160 s weigh an eighth


def test_an_id_is_free_again_after_its_end(registry: StreamRegistry, request_for: Ask) -> None:
    registry.open(request_for("r", [1]))
    with pytest.raises(InvalidInputError, match="in use"):
        registry.open(request_for("r", [1]))
    registry.deliver([TokenEvent("r", finish_reason="length")])
    registry.open(request_for("r", [1]))
    registry.forget("r")
    assert len(registry) == 0


def test_events_reach_their_stream_and_strangers_nobody(registry: StreamRegistry, request_for: Ask) -> None:
    one, two = registry.open(request_for("1", [1])), registry.open(request_for("2", [1]))
    registry.deliver([TokenEvent("1", (5,)), TokenEvent("3", (6,)), TokenEvent("2", (7,), (), "length")])
    assert one.get(0).token_ids == (5,)
    assert two.get(0).token_ids == (7,)
    assert len(registry) == 1


def test_an_engine_that_does_not_answer(rig: Any, registry: StreamRegistry, request_for: Ask) -> None:
    last = EngineStats(num_running=0, steps=7, last_step_age_s=0.5)
    rig.clock.now += 1000
    assert registry.without_answer(last).num_running == 0
    registry.open(request_for("r", [1]))
    rig.clock.now += 3
    stats = registry.without_answer(last)
    assert (stats.num_running, stats.steps, stats.last_step_age_s) == (1, 7, 3)
    registry.deliver([TokenEvent("r", (5,))])
    rig.clock.now += 2
    assert registry.without_answer(last).last_step_age_s == 2
    registry.fail_all(ErrorInfo("engine_died", "gone", 503))
    assert registry.without_answer(last).num_running == 0


def test_death_ends_every_stream_and_shuts_the_door(registry: StreamRegistry, request_for: Ask) -> None:
    streams = [registry.open(request_for(str(index), [1])) for index in range(2)]
    error = ErrorInfo("engine_died", "The worker was killed.", 503, 2.5)
    registry.fail_all(error)
    assert [stream.get(0).error for stream in streams] == [error, error]
    with pytest.raises(EngineDeadError, match=r"worker was killed") as caught:
        registry.open(request_for("late", [1]))
    assert (caught.value.status, caught.value.retry_after_s) == (503, 2.5)
