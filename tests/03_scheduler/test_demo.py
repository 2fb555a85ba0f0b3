"""The stage by itself: it says what is simulated and what is measured, and the hot path is cheap."""

from pathlib import Path

import pytest

from aie_scheduler.__main__ import main
from aie_scheduler.measure import measure_batch_cost, measure_step_cost

README = Path(__file__).parents[2] / "stages" / "03_scheduler" / "README.md"


def test_demo_runs_and_labels_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "40"]) == 0
    printed = capsys.readouterr().out
    assert "[SIMULATED]" in printed
    assert "[MEASURED here and now" in printed
    assert "6 ms + 0.7 ms per prompt token" in printed
    for size in (1, 2, 4, 8, 16, 32):
        assert f"{size:>17}  continuous" in printed
    assert "preemptions: 1" in printed
    for batcher in ("pass-through", "static", "dynamic", "… ten buckets", "… packed", "… and adaptive"):
        assert f"600/s   {batcher}" in printed


def test_readme_shows_what_the_demo_really_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The simulated part is the same on every machine; the measured part is not."""
    assert main([]) == 0
    simulated = capsys.readouterr().out.split("8. What the scheduler itself costs")[0]
    assert simulated.strip() in README.read_text(encoding="utf-8")


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "[('a', 0, 20, True)]",
        "[('a', 20, 1, True)]",
        "[('a', 21, 1, True)]",
    ]


@pytest.mark.parametrize("num_running", [1, 64])
def test_the_measured_step_holds_all_that_run(num_running: int) -> None:
    cost = measure_step_cost(num_running, num_steps=20)
    assert cost.num_running == num_running
    assert cost.us_per_request == pytest.approx(cost.us_per_step / num_running)
    assert cost.us_per_step > 0


def test_the_measured_batch_is_as_large_as_said() -> None:
    cost = measure_batch_cost(8, num_batches=5)
    assert (cost.scheduler, cost.num_running) == ("dynamic", 8)
    assert cost.us_per_step > 0
