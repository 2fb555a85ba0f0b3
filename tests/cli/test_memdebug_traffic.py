"""The unkind traffic, on an engine that does at once whatever it is asked."""

import itertools
from collections import Counter

import pytest

from aie.memdebug.load import Load, check_load
from aie.memdebug.traffic import FAULTS, Mix, kinds, plan, run
from aie_engine import (
    EngineDeadError,
    EngineInfo,
    InvalidInputError,
    TokenEvent,
    TokenStream,
)

INFO = EngineInfo("m", 128, 1000, 8, 64, 16, "numpy", 1, (0,))


class FakeEngine:
    """Answers in full on `submit`; a request that wants 64 tokens gets five and waits to be cancelled, or runs out of
    time."""

    info = INFO

    def __init__(self):
        self.streams, self.requests, self.cancelled, self.most_open = [], [], [], 0

    def submit(self, request):
        if max(request.prompt_ids) >= INFO.vocab_size or len(request.prompt_ids) > INFO.max_seq_len:
            raise InvalidInputError("no")
        self.requests.append(request)
        stream = TokenStream(request.request_id, self._cancel)
        self.streams.append(stream)
        self.most_open = max(self.most_open, sum(not stream.finished for stream in self.streams))
        if request.deadline_s is not None:
            stream.put(TokenEvent(request.request_id, finish_reason="deadline"))
        elif request.sampling.max_tokens == 64:
            for token in range(5):
                stream.put(TokenEvent(request.request_id, (token,)))
        else:
            stream.put(TokenEvent(request.request_id, (1,) * request.sampling.max_tokens, finish_reason="length"))
        return stream

    def _cancel(self, request_id):
        assert request_id not in self.cancelled
        self.cancelled.append(request_id)
        stream = next(stream for stream in self.streams if stream.request_id == request_id)
        stream.put(TokenEvent(request_id, finish_reason="cancelled"))


@pytest.mark.parametrize(("cancel", "fail"), [(0.2, 0.05), (0, 0), (1, 0), (0, 1), (0.5, 0.5), (0.7, 0.3)])
def test_shares_are_kept_exactly_and_evenly(cancel, fail):
    drawn = list(itertools.islice(kinds(Mix(cancel, fail)), 1000))
    assert abs(drawn.count("cancel") - 1000 * cancel) <= 1
    assert abs(drawn.count("fail") - 1000 * fail) <= 1
    for first in range(0, 1000, 100):
        assert abs(drawn[first : first + 100].count("cancel") - 100 * cancel) <= 2


def test_same_seed_same_traffic_and_every_fault_is_in_it():
    first, again, other = (list(itertools.islice(plan(Mix(seed=seed), INFO), 200)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({request.request_id for request in first}) == 200
    failing = [request for request in first if request.kind == "fail"]
    assert len(failing) >= len(FAULTS)
    assert any(len(request.prompt_ids) > INFO.max_seq_len for request in failing)
    assert any(max(request.prompt_ids) >= INFO.vocab_size for request in failing)
    assert any(request.deadline_s is not None for request in failing)
    good = [request for request in first if request.kind != "fail"]
    assert all(1 <= len(request.prompt_ids) + request.max_tokens <= INFO.max_seq_len for request in good)


def test_lengths_fit_into_the_smallest_context():
    tiny = EngineInfo("m", 2, 1000, 8, 64, 16, "numpy", 1, (0,))
    for request in itertools.islice(plan(Mix(fail=0), tiny), 50):
        assert (len(request.prompt_ids), request.max_tokens) == (1, 1)


def test_every_request_ends_as_planned_in_a_window_that_is_always_full():
    engine, done = FakeEngine(), []
    endings = run(engine, itertools.islice(plan(Mix(), INFO), 100), 8, on_done=lambda: done.append(1))
    refused = endings["refused (invalid_input)"]
    assert endings == Counter(
        {"length": 75, "cancelled": 20, "deadline": 5 - refused, "refused (invalid_input)": refused}
    )
    assert 0 < refused < 5
    assert (engine.most_open, len(done)) == (8, 100)
    assert all(stream.finished for stream in engine.streams)


def test_cancelled_once_whether_waiting_or_at_work():
    engine = FakeEngine()
    run(engine, itertools.islice(plan(Mix(cancel=1, fail=0), INFO), 50), 3)
    assert len(engine.cancelled) == len(set(engine.cancelled)) == 50


def test_window_larger_than_the_traffic():
    assert run(FakeEngine(), itertools.islice(plan(Mix(0, 0), INFO), 3), 64) == {"length": 3}
    assert run(FakeEngine(), iter(()), 4) == {}


def test_a_good_request_that_is_refused_and_a_dead_engine_are_not_passed_over():
    class Refusing(FakeEngine):
        def submit(self, request):
            raise InvalidInputError("refused for no reason")

    class Dead(FakeEngine):
        def submit(self, request):
            raise EngineDeadError("gone")

    with pytest.raises(InvalidInputError, match="no reason"):
        run(Refusing(), itertools.islice(plan(Mix(0, 0), INFO), 3), 2)
    with pytest.raises(EngineDeadError):
        run(Dead(), itertools.islice(plan(Mix(0, 1), INFO), 3), 2)


@pytest.mark.parametrize(("cancel", "fail"), [(-0.1, 0), (0, 1.1), (0.6, 0.5), (float("nan"), 0)])
def test_shares_that_make_no_sense(cancel, fail):
    with pytest.raises(InvalidInputError, match=r"--cancel|--fail"):
        Mix(cancel, fail)


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (Load(0, 8, Mix()), "--requests must be at least 1"),
        (Load(10, 0, Mix()), "--concurrency"),
        (Load(10, 9999, Mix()), "--concurrency"),
        (Load(10, 8, Mix(), after=10), "--after"),
        (Load(10, 8, Mix(), after=-1), "--after"),
    ],
)
def test_counts_that_make_no_sense(load, says):
    with pytest.raises(InvalidInputError, match=says):
        check_load(load)


@pytest.mark.parametrize(("requests", "warm_up"), [(1, 0), (2, 1), (12, 6), (24, 8), (100, 10), (10_000, 1000)])
def test_warm_up_is_a_tenth_and_never_all(requests, warm_up):
    load = Load(requests, 8, Mix())
    check_load(load)
    assert load.num_warm_up == warm_up
    assert Load(requests, 8, Mix(), after=0).num_warm_up == 0
