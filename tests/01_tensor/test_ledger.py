"""The ledger: what is held, by which line, since when."""

import threading
from collections import Counter

import numpy as np
import pytest

from aie_tensor import EventKind, InvalidInputError, Ledger, MemoryEvent, MemoryPool, Owner, RefHistory


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_outstanding_names_owner_age_and_line() -> None:
    clock = Clock()
    ledger = Ledger(enabled=True, clock=clock)

    def hold_cache() -> None:
        ledger.record("block 1", 64, "kv of request r-1")

    hold_cache()
    ledger.record("block 2", 10, "other")
    clock.now_s += 2.5
    ledger.forget("block 2")
    (entry,) = ledger.outstanding()
    assert (str(entry.owner), entry.nbytes, entry.age_s) == ("kv of request r-1", 64, 2.5)
    assert entry.stack[0].file == __file__
    assert entry.stack[0].function.endswith("hold_cache")
    assert entry.stack[0].line == hold_cache.__code__.co_firstlineno + 1
    assert str(entry.stack[0]).endswith(f"test_ledger.py:{entry.stack[0].line} in {entry.stack[0].function}")


def test_report_groups_by_line_and_owner_and_leaves_out_the_baseline() -> None:
    clock = Clock()
    ledger = Ledger(enabled=True, clock=clock)
    ledger.record("warm-up", 999, "cache")
    baseline = ledger.mark()
    assert (baseline.num_outstanding, baseline.outstanding_bytes) == (1, 999)
    for number in range(3):
        ledger.record(number, 10, "leak")
        clock.now_s += 1
    ledger.record("big", 1000, "other")
    big, leak = ledger.report(baseline)
    assert (str(big.owner), big.count, big.nbytes, big.oldest_s) == ("other", 1, 1000, 0)
    assert (str(leak.owner), leak.count, leak.nbytes, leak.oldest_s) == ("leak", 3, 30, 3)
    assert len(ledger.report()) == 3


def test_recording_a_key_again_replaces_it() -> None:
    ledger = Ledger(enabled=True)
    ledger.record("k", 1, "a")
    ledger.record("k", 2, "b")
    assert [(str(entry.owner), entry.nbytes) for entry in ledger.outstanding()] == [("b", 2)]


def test_off_records_nothing_and_can_be_switched_on_later() -> None:
    ledger = Ledger(enabled=False)
    assert ledger.record("early", 1, "x") is None
    assert ledger.capture() is None
    ledger.enabled = True
    ledger.forget("early")
    ledger.record("late", 1, "x")
    ledger.forget("never seen")
    ledger.enabled = False
    assert [str(entry.owner) for entry in ledger.outstanding()] == ["x"]
    ledger.forget("late")
    assert ledger.outstanding() == []


def test_equal_stacks_are_stored_once() -> None:
    ledger = Ledger(enabled=True)
    stacks = [ledger.record(number, 1, "x") for number in range(100)]
    assert all(stack is stacks[0] for stack in stacks)


def test_a_pool_leak_is_found_with_its_line() -> None:
    """A request that ends early on an error path and forgets its scratch space."""
    ledger = Ledger(enabled=True)
    pool = MemoryPool(ledger=ledger)
    log: list[object] = []

    def handle(number: int) -> None:
        scratch = pool.allocate(1000, owner="scratch")
        if number % 5 == 0:
            log.append(scratch)
            return
        scratch.release()

    for number in range(20):
        handle(number)
    (leak,) = ledger.report()
    assert (leak.count, leak.nbytes, str(leak.owner)) == (4, 4000, "scratch")
    assert leak.stack[0].function.endswith("handle")
    assert leak.stack[0].line == handle.__code__.co_firstlineno + 1


def test_memory_pinned_by_an_array_stays_in_the_ledger() -> None:
    """The classic: every reference is released, but a log keeps an array."""
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = pool.allocate(1000, owner="logits")
    logged = block.array(np.uint8, 1000)[:3]
    block.release()
    assert [str(entry.owner) for entry in pool.ledger.outstanding()] == ["logits"]
    del logged
    pool.stats()  # settles what finalizers reported
    assert pool.ledger.outstanding() == []


def test_threads_record_without_losing_entries() -> None:
    ledger = Ledger(enabled=True)

    def work(number: int) -> None:
        for step in range(300):
            ledger.record((number, step), 1, "x")
            if step % 3:
                ledger.forget((number, step))
            if step % 50 == 0:
                ledger.report()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.outstanding()) == 4 * 100


def test_what_owners_leave_open_comes_from_the_context_in_reports() -> None:
    ledger = Ledger(enabled=True, context=Owner(model="tiny@1", worker="engine-0"))
    ledger.record("a", 1, "kv")
    ledger.record("b", 1, Owner("kv", "r-1", worker="engine-1"))
    assert [entry.owner for entry in ledger.outstanding()] == [
        Owner("kv", model="tiny@1", worker="engine-0"),
        Owner("kv", "r-1", "tiny@1", "engine-1"),
    ]


def test_a_group_is_a_line_and_a_purpose_and_names_three_requests() -> None:
    ledger = Ledger(enabled=True)
    for number in range(5):
        ledger.record(number, 10, Owner("kv", f"r-{number // 2 * 2}"), block_bytes=16)
    for number in range(5, 9):
        ledger.record(number, 10, Owner("kv", f"r-{number}"), block_bytes=16)
    later, earlier = sorted(ledger.report(), key=lambda group: group.count)
    assert (earlier.owner, earlier.count, earlier.nbytes, earlier.block_bytes) == (Owner("kv"), 5, 50, 80)
    assert earlier.requests == ("r-0", "r-2", "r-4")
    assert later.requests == ("r-5", "r-6", "r-7")


def test_a_sample_finds_every_line_of_periodic_traffic() -> None:
    """A step that allocates exactly 64 times: a plain counter would see one and the same layer for ever."""
    ledger = Ledger(enabled=True, sample_every=64)
    for step in range(1000):
        for layer in range(64):
            ledger.record((step, layer), 1, f"layer {layer}")
    per_layer = Counter(entry.owner.what for entry in ledger.outstanding())
    assert len(per_layer) == 64
    assert 900 < per_layer.total() < 1100  # 1,000 expected
    assert ledger.num_lost == 64_000 - per_layer.total()


def test_a_sample_is_the_same_in_every_run_and_what_it_leaves_out_is_forgotten_too() -> None:
    chosen = []
    for _ in range(2):
        ledger = Ledger(enabled=True, sample_every=8)
        chosen.append([number for number in range(200) if ledger.record(number, 1, "x") is not None])
        for number in range(200):
            ledger.forget(number)
        assert (ledger.num_lost, ledger.outstanding()) == (0, [])
    assert chosen[0] == chosen[1]


def test_a_sample_below_one_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="give 1 or more"):
        Ledger(enabled=True, sample_every=0)


def test_sinks_hear_what_happens_while_it_is_on() -> None:
    clock = Clock()
    ledger = Ledger(enabled=False, clock=clock)
    heard: list[MemoryEvent] = []
    ledger.sinks.append(heard.append)
    ledger.record("early", 1, "kv")
    ledger.emit(EventKind.SEGMENT_RESERVE, 0, 0, 4096, "", "")
    ledger.count_request()
    assert heard == []
    ledger.enabled = True
    stack = ledger.record("a", 10, "kv", block_bytes=16, stream="copy", address=64)
    ledger.forget("a")
    ledger.forget("a")
    ledger.emit(EventKind.SEGMENT_RETURN, 128, 0, 4096, "", "")
    ledger.count_request(2)
    kv, nobody = Owner("kv"), Owner()
    assert heard == [
        MemoryEvent(EventKind.ALLOCATE, 100.0, 64, 10, 16, "copy", kv, stack),
        MemoryEvent(EventKind.FREE, 100.0, 64, 10, 16, "copy", kv, None),
        MemoryEvent(EventKind.SEGMENT_RETURN, 100.0, 128, 0, 4096, "", nobody, None),
        *[MemoryEvent(EventKind.REQUEST, 100.0, 0, 0, 0, "", nobody, None)] * 2,
    ]
    assert ledger.num_requests == 3


def test_a_sink_that_fails_is_dropped_and_the_others_go_on() -> None:
    ledger = Ledger(enabled=True)
    heard: list[MemoryEvent] = []

    def full_disk(event: MemoryEvent) -> None:
        raise OSError("no space left")

    ledger.sinks += [full_disk, heard.append]
    assert ledger.record("a", 1, "kv") is not None
    ledger.forget("a")
    assert [event.kind for event in heard] == [EventKind.ALLOCATE, EventKind.FREE]
    assert str(ledger.sink_error) == "no space left"
    assert ledger.sinks == [heard.append]


def test_a_sink_may_use_the_ledger() -> None:
    """As a finalizer does that runs in the middle of a record."""
    ledger = Ledger(enabled=True)

    def meddle(event: MemoryEvent) -> None:
        if event.kind is EventKind.ALLOCATE and event.owner.what == "outer":
            ledger.record("inner", 1, "inner")
            ledger.forget("outer")
            ledger.count_request()

    ledger.sinks.append(meddle)
    ledger.record("outer", 1, "outer")
    assert [str(entry.owner) for entry in ledger.outstanding()] == ["inner"]
    assert (ledger.num_requests, ledger.sink_error) == (1, None)


def test_the_last_changes_of_a_count_are_kept_with_their_lines() -> None:
    ledger = Ledger(enabled=True)

    class Counted:
        def __init__(self) -> None:
            self.references = 1
            self.history = RefHistory()

        def retain(self) -> None:
            self.references += 1
            self.history.add(EventKind.RETAIN, self.references, ledger.capture())

    counted = Counted()
    ledger.record(counted, 1, "kv")
    for _ in range(10):
        counted.retain()
    (entry,) = ledger.outstanding()
    assert entry.num_references == 11
    assert [change.references for change in entry.history] == list(range(4, 12))
    line = Counted.retain.__code__.co_firstlineno + 2
    assert str(entry.history[-1]) == (
        f"retain to 11 at tests/01_tensor/test_ledger.py:{line} in {Counted.retain.__qualname__}"
    )


def test_a_sampled_pool_records_some_and_loses_none() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True, sample_every=4))
    blocks = [pool.allocate(1000, owner="kv") for _ in range(100)]
    recorded = len(pool.ledger.outstanding())
    assert 0 < recorded < 100
    assert pool.ledger.num_lost == 100 - recorded
    for block in blocks:
        block.release()
    assert (pool.ledger.outstanding(), pool.ledger.num_lost) == ([], 0)


def test_a_sample_hears_whole_lives_or_nothing() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True, sample_every=4))
    heard: Counter[EventKind] = Counter()
    pool.ledger.sinks.append(lambda event: heard.update([event.kind]))
    for _ in range(100):
        pool.allocate(1000, owner="kv").release()
    assert 0 < heard[EventKind.ALLOCATE] < 100
    assert heard[EventKind.ALLOCATE] == heard[EventKind.RELEASE] == heard[EventKind.FREE]


def test_the_error_of_a_sink_holds_nobodys_memory() -> None:
    """An error that is kept keeps its traceback, and that the locals of all frames it passed."""

    def fail(event: object) -> None:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("the disk is full") from error

    pool = MemoryPool(ledger=Ledger(enabled=True))
    pool.ledger.sinks.append(fail)

    def work() -> None:
        held = [pool.allocate(100)]
        held.append(pool.allocate(200))

    pool.allocate(50).release()  # this one loses the sink
    pool.ledger.sinks.append(fail)
    work()
    assert str(pool.ledger.sink_error) == "the disk is full"
    assert pool.stats().num_live == 0
