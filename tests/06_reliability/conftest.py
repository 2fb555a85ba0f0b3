"""A clock that only moves when told to, so that no test of the guards sleeps."""

import pytest


class FakeClock:
    """Seconds, starting at 100 so that a forgotten zero shows."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class ScriptedEngine:
    """An engine whose every answer is set by the test."""

    def __init__(self) -> None:
        self.info = None
        self.is_alive = True
        self.closed = 0
        self.cancelled: list[str] = []
        self.submit_error: BaseException | None = None
        self.events: list = []

    def submit(self, request):
        from aie_engine import TokenStream

        if self.submit_error is not None:
            raise self.submit_error
        stream = TokenStream(request.request_id, self.cancel)
        for event in self.events:
            stream.put(event)
        return stream

    def cancel(self, request_id):
        self.cancelled.append(request_id)

    def stats(self):
        from aie_engine import EngineStats

        return EngineStats(worker_pid=4711)

    def memory(self):
        return {"version": 1, "process": "scripted"}

    def explain(self, request_ids=None, *, num_ended=0):
        from aie_engine import Explanation

        return Explanation([], None, 0, num_ended, 512)

    def close(self, timeout_s=10.0):
        self.closed += 1
        self.is_alive = False


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def make_engine():
    return ScriptedEngine


@pytest.fixture
def request_of():
    from aie_engine import GenerateRequest, SamplingParams

    return lambda request_id="r": GenerateRequest(request_id, (1, 2), SamplingParams(max_tokens=4))
