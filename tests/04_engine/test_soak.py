"""A small run of `benchmarks/soak.py`, and that it finds what it is there to find."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher
from aie_tensor import NativeUnavailableError, native

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.NUM_SUBJECTS = 30
    return module


def need_native() -> None:
    try:
        native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.native
def test_every_request_ends_once_and_says_what_it_says_alone(script: ModuleType, tiny_model: Path) -> None:
    need_native()
    result = script.soak(tiny_model, 150, seed=3)
    assert result.faults == []
    assert sum(result.endings.values()) == 150
    stats = result.stats
    assert min(stats.num_preemptions, stats.prefix_hit_tokens, stats.accepted_tokens) > 0
    assert stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.native
def test_a_block_that_is_never_given_back_is_found(
    script: ModuleType, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_native()
    release, num_freed = ContinuousBatcher._release_blocks, 0

    def forgetful(self: ContinuousBatcher, state: Any) -> None:
        nonlocal num_freed
        num_freed += 1
        if num_freed == 60:
            state.block_table = state.block_table[1:]
        release(self, state)

    monkeypatch.setattr(ContinuousBatcher, "_release_blocks", forgetful)
    faults = script.soak(tiny_model, 40, seed=3).faults
    assert any("KV blocks are held" in fault for fault in faults)
