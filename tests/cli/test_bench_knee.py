"""The knee of curves as servers have them, and how it is explained."""

import random
from dataclasses import dataclass

import pytest

from aie.bench.knee import knee, knee_line


@dataclass
class Level:
    concurrency: int
    requests_per_s: float
    latency_s: float
    offered_per_s: float | None = None

    @property
    def label(self):
        return str(self.concurrency) if self.offered_per_s is None else f"{self.offered_per_s:g}/s"

    @property
    def name(self):
        return f"{self.label} clients" if self.offered_per_s is None else self.label

    @property
    def power(self):
        return self.requests_per_s / self.latency_s if self.latency_s else 0.0


CLIENTS = (1, 2, 4, 8, 16, 32, 64)


def closed(throughput):
    """Clients that wait: how long is what is under way over what goes through (Little's law)."""
    return [Level(n, throughput(n), n / throughput(n)) for n in CLIENTS]


CURVES = {
    # A batch of eight is as fast as one; more have to wait.
    "concave": (lambda n: 4.0 * min(n, 8), 8),
    # Nothing is gained by company: the first is best.
    "flat": (lambda n: 10.0, 1),
    # Amdahl: half of the work is shared by all.
    "soft": (lambda n: 10.0 * n / (1 + 0.1 * (n - 1)), 8),
    # Beyond sixteen it thrashes.
    "collapsing": (lambda n: 4.0 * n if n <= 16 else 64.0 * 16 / n, 16),
    # As far as was measured nothing bends.
    "straight": (lambda n: 4.0 * n, 64),
}


@pytest.mark.parametrize("shape", CURVES)
def test_shapes(shape):
    throughput, expected = CURVES[shape]
    found = knee(closed(throughput)).concurrency
    assert found in (expected, 2 * expected) if shape == "soft" else found == expected


@pytest.mark.parametrize("shape", ["concave", "flat", "collapsing"])
def test_noise_does_not_move_a_sharp_knee(shape):
    throughput, expected = CURVES[shape]
    draw = random.Random(4)
    for _ in range(200):
        rows = closed(lambda n: throughput(n) * draw.uniform(0.9, 1.1))
        assert knee(rows).concurrency == expected


def test_the_mean_of_several_runs_is_what_counts():
    draw = random.Random(5)
    for _ in range(20):
        runs = [row for _ in range(5) for row in closed(lambda n: CURVES["concave"][0](n) * draw.gauss(1, 0.15))]
        assert knee(runs).concurrency == 8


def test_in_the_open_loop_it_is_the_last_rate_before_waiting_begins():
    rates = [1.0, 2.0, 4.0, 6.0, 8.0, 12.0]
    # One server of ten a second: 100 ms, and the wait of an M/M/1 queue; twelve a second are too many.
    rows = [Level(0, min(rate, 10.0), 0.1 / (1 - rate / 10) if rate < 10 else 20.0, rate) for rate in rates]
    assert knee(rows).offered_per_s == 4.0 or knee(rows).offered_per_s == 6.0  # the maximum of ρ(1 − ρ) is at 5
    assert "12/s" not in knee_line(rows)


def test_it_says_what_its_neighbours_bought_and_cost():
    rows = closed(CURVES["concave"][0])
    line = knee_line(rows)
    assert "8 clients, 32 requests/s at 250 ms; before it, 4 clients: -50% requests/s, +0% latency; " in line
    assert "after it, 16 clients: +0% requests/s, +100% latency" in line and "about as good" not in line
    assert knee_line(list(reversed(rows))) == line  # in whatever order they were measured
    assert "the curve may go on" in knee_line(closed(CURVES["straight"][0]))
    assert knee_line(rows[:1]) is None


def test_it_says_where_others_are_about_as_good():
    rows = [Level(1, 10.0, 0.1), Level(2, 19.9, 0.2), Level(4, 20.0, 0.4)]
    assert "; before it" not in knee_line(rows[:2]) and "about as good: 2 clients" in knee_line(rows)


def test_levels_without_an_answer():
    assert knee([Level(1, 0.0, 0.0), Level(2, 0.0, 0.0)]) is None
    rows = [Level(1, 0.0, 0.0), Level(2, 5.0, 0.4), Level(4, 0.0, 0.0)]
    assert knee(rows).concurrency == 2
    assert "before it, 1 clients: no answer; after it, 4 clients: no answer" in knee_line(rows)
