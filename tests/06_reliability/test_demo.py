"""The stage by itself, its README, and the avalanche that it is made of."""

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from aie_engine import InvalidInputError, TokenEvent
from aie_reliability import OverloadedError
from aie_reliability.__main__ import main
from aie_reliability.overload import Avalanche

STAGE = Path(__file__).parents[2] / "stages" / "06_reliability"
README = (STAGE / "README.md").read_text(encoding="utf-8")


def test_the_demonstration_shows_all_three_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_cached(name: str) -> Path:
        raise InvalidInputError(f"{name} is not here")

    # The package's attribute of this name is the function; the module is only here.
    monkeypatch.setattr(sys.modules["aie_engine.demo_model"], "resolve", nothing_cached)
    assert main(["--seconds", "0.3"]) == 0
    shown = capsys.readouterr().out
    assert "a tiny random Llama" in shown
    rows = re.findall(r"(?:everybody is let in|at most 4 in flight) +(\d+) +(\d+) +(\d+)", shown)
    unguarded, guarded = ([int(number) for number in row] for row in rows)
    assert sum(unguarded) == sum(guarded) > 0
    assert unguarded[2] == 0  # nobody is refused where there is no door
    breaker = shown[shown.index("2. Circuit breaker") : shown.index("3. Token bucket")]
    assert breaker.strip() in README  # on a clock moved by hand: the same on every machine
    assert "yes yes yes yes 429 429 429 429" in shown


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\btest_\w+\b(?!\.py)", README))))
def test_the_tests_that_the_readme_names_exist(name: str) -> None:
    assert any(f"def {name}(" in file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py"))


@pytest.mark.parametrize("name", re.findall(r"`(\w+\.py)`", README))
def test_the_files_that_the_readme_names_exist(name: str) -> None:
    assert (STAGE / "aie_reliability" / name).is_file()


def refuse() -> AbstractContextManager[object]:
    raise OverloadedError("full", retry_after_s=1.0)


def test_an_avalanche_counts_every_arrival_once(engine: Any) -> None:
    engine.events = [TokenEvent("r", (1,)), TokenEvent("r", (2,), finish_reason="length")]
    patient = Avalanche(engine, max_tokens=2, patience_s=10.0)
    answered = patient.run(1000.0, 0.005, nullcontext)
    assert (len(answered.in_time_s), answered.num_late, len(answered.refused_s)) == (5, 0, 0)
    assert answered.goodput == pytest.approx(5 / answered.wall_s)
    refused = patient.run(1000.0, 0.005, refuse)
    assert (len(refused.in_time_s), refused.num_late, len(refused.refused_s)) == (0, 0, 5)


def test_clients_that_lose_patience_hang_up(engine: Any) -> None:
    tally = Avalanche(engine, max_tokens=2, patience_s=0.01).run(1000.0, 0.003, nullcontext)
    assert (len(tally.in_time_s), tally.num_late) == (0, 3)
    assert len(engine.cancelled) == 3
