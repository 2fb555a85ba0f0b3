"""The exercises of the stage's README. Each test is skipped until its exercise is done, and then decides."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine import EngineConfig, GenerateRequest, LocalEngine, SamplingParams
from aie_engine.sampling import SampleRow, sample


def test_exercise_1_no_sequence_of_tokens_twice() -> None:
    if "no_repeat_ngram" not in SamplingParams.__struct_fields__:
        pytest.skip("exercise 1 is not done: SamplingParams has no no_repeat_ngram")
    logits = np.zeros((1, 8), np.float32)
    logits[0, [3, 5]] = 2.0, 1.0

    def say(known: Sequence[int], length: int) -> int:
        wish: Any = {"temperature": 0.0, "no_repeat_ngram": length}
        row = SampleRow(SamplingParams(**wish), len(known), np.array([*known, 0], np.int32), 1)
        return sample(logits, [row]).token_ids[0]

    assert say([1, 2, 3, 1, 2], 0) == 3
    assert say([1, 2, 3, 1, 2], 3) == 5, "1 2 3 has been said"
    assert say([1, 2, 3, 1, 2], 4) == 3
    assert say([1, 2, 3, 7, 2], 2) == 5 and say([1, 2, 3, 7, 2], 3) == 3
    assert say([2, 3], 3) == 3, "the prompt is shorter than the sequences"


def test_exercise_2_a_filter_by_standard_deviations() -> None:
    if "top_n_sigma" not in SamplingParams.__struct_fields__:
        pytest.skip("exercise 2 is not done: SamplingParams has no top_n_sigma")
    logits = (np.random.default_rng(1).standard_normal(300) * 2).astype(np.float32)
    expected = set(np.flatnonzero(logits >= logits.max() - np.float32(1.5) * logits.std()).tolist())
    none = np.empty(0, np.int32)
    for temperature in (1.0, 5.0):  # the filter looks at the logits as they are: heat lets no more tokens through
        wish: Any = {"temperature": temperature, "seed": 0, "top_n_sigma": 1.5}
        rows = [SampleRow(SamplingParams(**wish).with_seed(seed), 0, none, 0) for seed in range(3000)]
        assert set(sample(np.tile(logits, (3000, 1)), rows).token_ids) == expected


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
