"""An avalanche on purpose: more arrivals than an engine can serve, and what becomes of them.

Open loop: arrivals come at their own times whether or not earlier ones were answered, as real crowds do. A request that
is answered after its client's patience is worth nothing, but has cost as much as any other; that is the whole problem.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from aie_engine import AieError, EngineClient, GenerateRequest, SamplingParams

__all__ = ["Avalanche", "Tally", "measure_capacity"]

Admit = Callable[[], AbstractContextManager[object]]
_PROMPT_TOKENS = 16


@dataclass(slots=True)
class Tally:
    """What became of all arrivals of one run. Times in seconds."""

    in_time_s: list[float] = field(default_factory=list)  # how long each took that was answered within the patience
    num_late: int = 0  # answered too late, or given up by its client: work for nothing
    refused_s: list[float] = field(default_factory=list)  # how long it took to say no
    wall_s: float = 0.0

    @property
    def goodput(self) -> float:
        """Requests per second that were answered while somebody was still waiting."""
        return len(self.in_time_s) / self.wall_s if self.wall_s else 0.0


class Avalanche:
    """Sends requests of one shape to an engine, each in a thread of its own."""

    def __init__(self, engine: EngineClient, *, max_tokens: int, patience_s: float) -> None:
        self._engine = engine
        self._max_tokens = max_tokens
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._serial = 0

    def run(self, arrivals_per_s: float, duration_s: float, admit: Admit) -> Tally:
        """`arrivals_per_s` for `duration_s`, then waits for the last client to be answered or to give up."""
        tally = Tally()
        clients = []
        start_s = time.monotonic()
        for number in range(max(1, round(arrivals_per_s * duration_s))):
            time.sleep(max(0.0, start_s + number / arrivals_per_s - time.monotonic()))
            client = threading.Thread(target=self._client, args=(admit, tally), daemon=True)
            client.start()
            clients.append(client)
        for client in clients:
            client.join()
        tally.wall_s = time.monotonic() - start_s
        return tally

    def _client(self, admit: Admit, tally: Tally) -> None:
        start_s = time.monotonic()
        try:
            with admit():
                answered = self._ask(start_s + self._patience_s)
        except AieError:
            with self._lock:
                tally.refused_s.append(time.monotonic() - start_s)
            return
        with self._lock:
            if answered:
                tally.in_time_s.append(time.monotonic() - start_s)
            else:
                tally.num_late += 1

    def _ask(self, patience_end_s: float) -> bool:
        """One request to its end; False when the client lost patience first and hung up."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        prompt = tuple((serial * 31 + 7 * k) % 200 + 5 for k in range(_PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.0, max_tokens=self._max_tokens, ignore_eos=True)
        with self._engine.submit(GenerateRequest(f"overload-{serial}", prompt, sampling)) as stream:
            while not stream.finished:
                try:
                    event = stream.get(max(0.0, patience_end_s - time.monotonic()))
                except TimeoutError:
                    return False
                if event.error is not None:
                    return False
        return True


def measure_capacity(engine: EngineClient, *, clients: int, max_tokens: int, duration_s: float) -> tuple[float, float]:
    """(requests per second, mean seconds per request) of `clients` that each send one request after another."""
    avalanche = Avalanche(engine, max_tokens=max_tokens, patience_s=60.0)
    took: list[float] = []
    end_s = time.monotonic() + duration_s
    start_s = time.monotonic()

    def client() -> None:
        while time.monotonic() < end_s:
            begin_s = time.monotonic()
            avalanche._ask(begin_s + 60.0)
            took.append(time.monotonic() - begin_s)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(took) / (time.monotonic() - start_s), sum(took) / len(took)
