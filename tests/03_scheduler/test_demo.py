"""The stage by itself: it says what is simulated and what is measured, and the hot path is cheap."""

import pytest

from aie_scheduler.__main__ import main
from aie_scheduler.measure import measure_step_cost


def test_demo_runs_and_labels_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "40"]) == 0
    printed = capsys.readouterr().out
    assert "[SIMULATED]" in printed
    assert "[MEASURED here and now" in printed
    assert "6 ms + 0.7 ms per prompt token" in printed
    for size in (1, 2, 4, 8, 16, 32):
        assert f"{size:>17}  continuous" in printed
    assert "preemptions: 1" in printed


@pytest.mark.parametrize("num_running", [1, 64, 256])
def test_a_step_costs_less_than_ten_microseconds_per_request(num_running: int) -> None:
    """Typically one half of a microsecond in a large batch; the bound is wide, because machines are busy."""
    assert measure_step_cost(num_running, num_steps=100).us_per_request < 10.0
