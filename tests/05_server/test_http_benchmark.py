"""`benchmarks/predictors_http.py` counts while the server goes on. No test looks at the figures themselves."""

import importlib
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_thread_that_ends_while_it_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("predictors_http")
    there = tmp_path / "status"
    there.write_text("voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n")
    monkeypatch.setattr(script.Path, "glob", lambda *_: iter([tmp_path / "gone", there]))
    assert script._switches(os.getpid()) == 7.0
