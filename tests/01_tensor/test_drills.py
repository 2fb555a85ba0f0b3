"""The four drills: each leak is named by file, line and holder; each fix, and the engine itself, are clean."""

import functools
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_tensor import InvalidInputError, Ledger, MemoryPool
from aie_tensor.memdebug.drills import DRILLS, MIN_REQUESTS, DrillReport, run_clean, run_drill
from aie_tensor.memdebug.drills import engine as scratch

NAMES = ("exception", "cycle", "cache", "logger")
# Of the 120 requests between the first and the last of three snapshots, so many leave their activations behind.
LEAKED = {"exception": 6, "cycle": 120, "cache": 120, "logger": 120}
HOLDERS = {  # what must be in the chain of references: the thing that one has to fix
    "exception": "failures",
    "cycle": "on_done",
    "cache": "seen['r-",
    "logger": "records",
}


@functools.cache  # looking for holders reads the whole heap
def report_of(name: str) -> DrillReport:
    return run_drill(name, num_requests=180)


def test_the_four_are_there() -> None:
    assert tuple(DRILLS)[:4] == NAMES  # exercise 3 adds a fifth


@pytest.mark.parametrize("name", NAMES)
def test_the_planted_line_is_named(name: str) -> None:
    report = report_of(name)
    assert report.found
    assert report.named == DRILLS[name].planted == report.planted
    file, line = DRILLS[name].planted
    assert Path(file).name == f"{name}.py"
    assert "# the leak" in Path(file).read_text(encoding="utf-8").splitlines()[line - 1]


@pytest.mark.parametrize("name", NAMES)
def test_it_grows_by_what_the_traffic_leaves_behind(name: str) -> None:
    (worst,) = report_of(name).growing
    assert worst.count == LEAKED[name]
    assert worst.nbytes == LEAKED[name] * scratch.NUM_HIDDEN * 4
    assert worst.bytes_per_1000 == pytest.approx(worst.nbytes * 1000 / 120)
    assert worst.group.what == "activations"
    assert worst.group.model == "scratch"
    assert all(request.startswith("r-") for request in worst.group.requests)


@pytest.mark.parametrize("name", NAMES)
def test_whoever_holds_it_is_named(name: str) -> None:
    report = report_of(name)
    assert any(HOLDERS[name] in text for text in (*report.held_by, *report.in_cycles)), report.held_by


def test_the_circle_of_the_cycle_is_named() -> None:
    circles = {name: report_of(name).in_cycles for name in NAMES}
    assert circles["cycle"]
    assert "Call" in circles["cycle"][0]
    assert not circles["cache"] and not circles["logger"]


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", NAMES)
def test_it_is_found_whatever_the_traffic(name: str, seed: int) -> None:
    assert run_drill(name, num_requests=MIN_REQUESTS, seed=seed).found


@pytest.mark.parametrize("name", NAMES)
def test_the_fix_is_clean(name: str) -> None:
    report = run_drill(name, fixed=True)
    assert (report.growing, report.named, report.held_by) == ((), None, ())
    assert report.found  # nothing was planted, nothing was named


def test_the_engine_without_a_leak_is_clean() -> None:
    report = run_clean()
    assert (report.growing, report.named, report.planted, report.in_cycles) == ((), None, None, ())
    last = report.snapshots[-1]
    assert [(group.what, group.count) for group in last.groups] == [("weights", 2)]
    assert report.lines() == ("nothing keeps growing over 200 requests",)


@pytest.mark.parametrize("name", NAMES)
def test_broken_and_fixed_engines_answer_alike(name: str) -> None:
    right = scratch.ScratchEngine(MemoryPool())
    for fixed in (False, True):
        other = DRILLS[name].engine(MemoryPool(), fixed=fixed)
        for request in scratch.traffic(MIN_REQUESTS, seed=3):
            expected, answer = right.answer(request), other.answer(request)
            assert (answer is None) == (expected is None)
            if answer is not None and expected is not None:
                assert np.array_equal(answer, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_engine_gives_everything_back(name: str) -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    engine = DRILLS[name].engine(pool, fixed=True)
    for request in scratch.traffic(MIN_REQUESTS, seed=1):
        engine.answer(request)
    engine.close()
    assert pool.stats().live_bytes == 0
    assert pool.ledger.outstanding() == []


def test_the_traffic_is_the_same_for_the_same_seed_and_has_its_shares() -> None:
    first, second = (list(scratch.traffic(200, seed=7)) for _ in range(2))
    assert [(r.request_id, r.fate) for r in first] == [(r.request_id, r.fate) for r in second]
    fates = [request.fate for request in first]
    assert [fates.count(fate) for fate in ("answered", "cancelled", "refused")] == [150, 40, 10]
    assert len({request.request_id for request in first}) == 200


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    run_clean(num_requests=MIN_REQUESTS)
    assert gc.isenabled()
    gc.disable()
    try:
        run_clean(num_requests=MIN_REQUESTS)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", NAMES)
def test_the_report_has_two_lines_and_a_text_to_learn_from(name: str) -> None:
    report = report_of(name)
    grown, held = report.lines()
    assert "activations" in grown and f"{name}.py:" in grown
    assert "bytes per 1,000 requests, held by " in held
    for title in ("What happened: ", "Why Python did not free it: ", "The fix: "):
        assert title in DRILLS[name].explain


def test_bad_input_is_told_with_a_remedy() -> None:
    with pytest.raises(InvalidInputError, match="choose one of exception, cycle, cache, logger"):
        run_drill("nonsense")
    with pytest.raises(InvalidInputError, match=f"at least {MIN_REQUESTS} requests, not 3"):
        run_drill("cache", num_requests=3)


@pytest.mark.parametrize("settings", [{"seed": -1}, {"seed": "1"}, {"num_requests": 60.0}, {"num_requests": True}])
def test_settings_that_are_no_counts(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        run_drill("cycle", **settings)
    assert caught.value.param == next(iter(settings))
