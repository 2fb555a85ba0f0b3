"""Clients that send again as soon as they are answered, on a virtual clock: why batches stay half empty, and what fills
them.

The front handles one request at a time (parsing, answering), the model computes one batch at a time, both at once.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import pytest

from aie_scheduler import DynamicBatcher, Request, SchedulerConfig

HANDLING_S = 0.00025  # of the front, for each request
COMPUTE_S = 0.0005  # of the model, whatever the size
MOST = 32
NEVER = float("inf")


class Run(NamedTuple):
    """What came out."""

    per_s: float
    utilisation: float  # mean batch of MOST
    mean_s: float  # from a request's arrival at the batcher to its result
    sizes: list[int]


def closed_loop(num_clients: int, *, max_wait_ms: float, adaptive: bool = False, num_batches: int = 400) -> Run:
    config = SchedulerConfig(
        max_batch_size=MOST,
        max_batch_tokens=4096,
        num_blocks=0,
        max_seq_len=1,
        max_wait_ms=max_wait_ms,
        adaptive_wait=adaptive,
    )
    batcher = DynamicBatcher(config)
    arrivals: list[tuple[float, int]] = []  # when whose request is handled
    now = front_free_s = lane_free_s = 0.0
    running: list[int] = []
    since: dict[int, float] = {}
    sizes: list[int] = []
    waits: list[float] = []
    began_s = 0.0

    def send(client: int) -> None:
        nonlocal front_free_s
        front_free_s = max(front_free_s, now) + HANDLING_S
        heappush(arrivals, (front_free_s, client))

    for client in range(num_clients):
        send(client)
    while len(sizes) < num_batches:
        ripe_s = NEVER if running else batcher.next_deadline(now) or NEVER
        now = max(now, min(arrivals[0][0] if arrivals else NEVER, lane_free_s if running else NEVER, ripe_s))
        if running and now >= lane_free_s:
            waits += [now - since[client] for client in running]
            for client in running:
                send(client)
            running = []
        while arrivals and arrivals[0][0] <= now:
            arrived_s, client = heappop(arrivals)
            since[client] = arrived_s
            batcher.add(Request(request_id=str(client), prompt_len=1, max_tokens=1, arrival_s=arrived_s))
        if not running and (plan := batcher.schedule(now)) is not None:
            running = [int(chunk.request_id) for chunk in plan.chunks]
            batcher.update(plan, [])
            lane_free_s = now + COMPUTE_S
            sizes.append(len(running))
            if len(sizes) == num_batches // 4:  # the start is over
                began_s = now
    steady = sizes[num_batches // 4 :]
    return Run(sum(steady) / (now - began_s), sum(steady) / len(steady) / MOST, sum(waits) / len(waits), steady)


def test_a_wait_shorter_than_a_round_splits_the_clients_into_groups() -> None:
    """32 × 0.25 ms are 8 ms. After 5 ms the first group goes; the others meet the next time it comes."""
    run = closed_loop(32, max_wait_ms=5.0)
    assert run.utilisation < 0.75
    assert all(size < MOST for size in run.sizes)


def test_a_wait_longer_than_a_round_fills_them_at_about_the_same_rate() -> None:
    short, long = closed_loop(32, max_wait_ms=5.0), closed_loop(32, max_wait_ms=20.0)
    assert long.utilisation == 1.0
    assert long.per_s > 0.9 * short.per_s  # the front is what limits both
    assert long.mean_s < 1.5 * short.mean_s


@pytest.mark.parametrize("max_wait_ms", [5.0, 20.0])
def test_waiting_while_somebody_is_expected_fills_them_as_far_as_the_limit_lets(max_wait_ms: float) -> None:
    patient, adaptive = (closed_loop(32, max_wait_ms=max_wait_ms, adaptive=one) for one in (False, True))
    assert adaptive.utilisation == pytest.approx(patient.utilisation, abs=0.02)


@pytest.mark.parametrize("num_clients", [1, 2, 4, 8])
def test_a_few_clients_are_not_kept_for_those_who_do_not_come(num_clients: int) -> None:
    patient, adaptive = (closed_loop(num_clients, max_wait_ms=20.0, adaptive=one) for one in (False, True))
    assert adaptive.sizes == patient.sizes == [num_clients] * len(patient.sizes)  # all of them, sooner
    assert adaptive.per_s > 5 * patient.per_s
    assert adaptive.per_s > closed_loop(num_clients, max_wait_ms=5.0).per_s


def test_the_wait_does_not_feed_on_itself() -> None:
    """One client's next request comes 0.75 ms after its batch is cut, however long that took."""
    assert closed_loop(1, max_wait_ms=1000.0, adaptive=True).per_s > 1 / (5 * (COMPUTE_S + HANDLING_S))
