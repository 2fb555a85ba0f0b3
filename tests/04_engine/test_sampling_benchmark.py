"""`benchmarks/sampling.py` runs, and its plain way keeps to the wishes. No test looks at the figures themselves."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sampling.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sampling_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_wish_has_a_figure(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    arguments = ["sampling.py", "--rows", "1", "2", "--vocab", "600", "--rounds", "1", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    costs = json.loads(report.read_text())
    assert [(cost["wish"], cost["num_rows"]) for cost in costs] == [(name, r) for r in (1, 2) for name in script.WISHES]
    assert all(0 <= cost["us_per_row"] < float("inf") for cost in costs)
    assert {cost["wish"] for cost in costs if cost["plain_us_per_row"] is not None} == set(script.PLAIN)
    assert "repetition penalty" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "top_k and top_p"])
def test_the_plain_way_draws_from_the_same_tokens(script: ModuleType, name: str) -> None:
    from aie_engine.sampling import sample

    rng = np.random.default_rng(0)
    rows = [row.at(position) for position, row in enumerate(script.rows_that_wish(name, 400, 600, rng))]
    logits = np.repeat(script.model_like(1, 600, rng), 400, axis=0)
    ours, plain = set(sample(logits, rows).token_ids), set(script.sample_plainly(logits, rows))
    ranked = np.argsort(-logits[0]).tolist()
    assert set(ranked[:2]) <= ours & plain, "the likeliest are drawn by both"
    assert not set(ranked[550:]) & (ours | plain), "and what no filter lets through by neither"
