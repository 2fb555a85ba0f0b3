"""The ledger: what is held, by which line, since when."""

import threading

import numpy as np

from aie_tensor import Ledger, MemoryPool


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
