"""`benchmarks/pool.py`: what it makes of its figures. No test looks at the figures themselves."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aie_tensor import EnvironmentLacksError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pool.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pool_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_each_verdict_is_of_the_right_rows(benchmark: ModuleType) -> None:
    def row(name: str, median_us: float, best_us: float) -> object:
        return benchmark.Cycle(name, benchmark.LARGE, median_us, best_us)

    judged = benchmark.verdicts(
        [
            row("MemoryPool, ledger off", 4.0, 2.0),
            row("MemoryPool, ledger full", 20.0, 16.0),
            row("MemoryPool, each page written", 100.0, 50.0),
            row("fresh mapping, each page written", 400.0, 200.0),
        ]
    )
    assert [(each["best"], each["median"], each["met"]) for each in judged.values()] == [
        (2.0, 4.0, True),  # at most 3 µs
        (16.0, 20.0, False),  # at most 15 µs
        (100.0, 100.0, True),  # at least 20 times
        (4.0, 4.0, False),
    ]


def test_a_cycle_is_timed_without_its_warm_up(benchmark: ModuleType) -> None:
    calls: list[int] = []
    timed = benchmark.cycle("x", 1, lambda: calls.append(1), per_batch=3, batches=4)
    assert len(calls) == 3 * (4 + 1)
    assert timed.best_us <= timed.median_us


def test_the_traces_follow_from_the_seed(benchmark: ModuleType) -> None:
    assert benchmark.traces(1) == benchmark.traces(1) != benchmark.traces(2)
    assert {len(sizes) for sizes in benchmark.traces(0).values()} == {benchmark.COUNT}


def test_the_rounding_table_names_each_policy(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    table = benchmark.print_rounding()
    assert list(table["Qwen2.5-0.5B"]) == ["1/doubling", "2/doubling", "4/doubling", "8/doubling", "exact"]
    assert table["Qwen2.5-0.5B"]["1/doubling"] == pytest.approx(0.468, abs=0.001)
    assert "46.8%" in capsys.readouterr().out


def test_without_a_gpu_it_says_why(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise EnvironmentLacksError("CUDA memory needs CuPy")

    monkeypatch.setattr(benchmark, "CudaUpstream", refuse)
    assert benchmark.device_cycles() == "CUDA memory needs CuPy"
