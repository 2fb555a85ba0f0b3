"""The exercises of the stage's README. Each test is skipped until its exercise is done, and then decides."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aie_engine import EngineConfig, GenerateRequest, LocalEngine, SamplingParams

Answer = Callable[[Sequence[int], int], tuple[int, ...]]


def test_exercise_1_no_end_before_min_tokens(new_rig: Any, answer: Answer) -> None:
    if "min_tokens" not in SamplingParams.__struct_fields__:
        pytest.skip("exercise 1 is not done: SamplingParams has no min_tokens")
    first, second, *_ = answer([1, 2], 2)
    rig = new_rig(eos=(second,))
    rig.add("patient", [1, 2], 20, min_tokens=6)
    rig.add("stops", [1, 2], 20)
    rig.run()
    assert rig.tokens("stops") == (first, second)
    tokens = rig.tokens("patient")
    assert tokens[0] == first
    assert len(tokens) >= 6
    assert second not in tokens[:5], "the end-of-sequence token is not only ignored: it must not be sampled"


def test_exercise_2_presence_penalty(new_rig: Any, answer: Answer) -> None:
    if "presence_penalty" not in SamplingParams.__struct_fields__:
        pytest.skip("exercise 2 is not done: SamplingParams has no presence_penalty")
    rig = new_rig()
    rig.add("varied", [5, 6], 40, presence_penalty=20.0)
    rig.add("plain", [5, 6], 40)
    rig.run()
    assert rig.tokens("plain") == answer([5, 6], 40)
    assert len(set(rig.tokens("varied"))) == 40, "what has been said once is 20 logits less likely"


def test_exercise_3_several_engines_behind_one_face(new_rig: Any, request_for: Callable[..., GenerateRequest]) -> None:
    if find_spec("aie_engine.group") is None:
        pytest.skip("exercise 3 is not done: there is no aie_engine/group.py with an EngineGroup")
    from aie_engine.group import EngineGroup

    rigs = [new_rig(), new_rig()]
    engines = [LocalEngine(EngineConfig(Path("unused")), build=lambda config, report, r=rig: r.parts) for rig in rigs]
    group = EngineGroup(engines)
    streams = [group.submit(request_for(str(index), [index + 1], 100)) for index in range(6)]
    for stream in streams:
        stream.get(10)
    assert [engine.stats().num_running for engine in engines] == [3, 3], "the least loaded engine gets the request"
    assert group.stats().num_running == 6
    group.cancel("0")
    *_, last = streams[0]
    assert last.finish_reason == "cancelled", "an engine other than the one that has the request was told"
    group.close()
    assert not any(engine.is_alive for engine in engines)
