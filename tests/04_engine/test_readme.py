"""The stage's README: its example runs, and the files and tests that it names are there. And the demonstration runs."""

import re
import sys
from pathlib import Path

import pytest

from aie_engine.__main__ import main

STAGE = Path(__file__).parents[2] / "stages" / "04_engine"
README = (STAGE / "README.md").read_text(encoding="utf-8")


def test_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})


def test_named_files_exist() -> None:
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", README):
        assert (STAGE / "aie_engine" / name).exists() or (Path(__file__).parents[2] / name).exists(), name


def test_named_tests_exist() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", README):
        assert f"def {name}(" in tests, name


def test_the_demonstration_shows_all_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The package's attribute of this name is the function; the module is only here.
    monkeypatch.setattr(sys.modules["aie_engine.demo_model"], "resolve", _nothing_cached)
    assert main(["--tokens", "4"]) == 0
    shown = capsys.readouterr().out
    assert "a tiny random Llama" in shown
    assert "the same text, token by token: 8 of 8" in shown
    assert re.search(r"before +6 ", shown) and re.search(r"after +2 ", shown)
    # How many depends on when the two threads run; that blocks are free at once is tested in test_core.
    assert re.search(r"Steps between the two looks, .*: \d+\.", shown)
    assert re.search(r"Both were at work for \d+% of the time", shown)
    assert "'stage batch 1' on stream 'copy' would write the buffer 'staging'" in shown
    assert "the same bits alone and in a batch: 250 of 250; in this process and in a worker: 1000 of 1000" in shown


def _nothing_cached(name: str) -> Path:
    from aie_engine import InvalidInputError

    raise InvalidInputError(f"{name} is not here")
