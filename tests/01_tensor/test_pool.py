"""The pool: reuse, classes, budget, and each kind of misuse with both call stacks."""

import gc

import numpy as np
import pytest

from aie_tensor import (
    DoubleFreeError,
    ForeignFreeError,
    HostUpstream,
    InvalidInputError,
    Ledger,
    MemoryPool,
    OutOfMemoryError,
    Owner,
    Region,
    SimulatedStream,
    UseAfterFreeError,
)

MIB = 1 << 20


def test_a_released_block_serves_the_next_request_of_its_class() -> None:
    pool = MemoryPool()
    first = pool.allocate(3 * MIB)
    address = first.address
    first.release()
    second = pool.allocate(3 * MIB + 17)
    assert second.address == address
    stats = pool.stats()
    assert (stats.num_allocations, stats.num_reuses, stats.reserved_bytes) == (2, 1, 4 * MIB)


def test_an_empty_class_borrows_from_the_next_one_up_only() -> None:
    pool = MemoryPool()
    pool.allocate(8 * MIB).release()
    small = pool.allocate(2 * MIB)
    assert small.block_bytes == 2 * MIB
    assert pool.allocate(4 * MIB).block_bytes == 8 * MIB


@pytest.mark.parametrize("classes", [1, 2, 4, 8])
def test_rounding_is_bounded_by_the_number_of_classes(classes: int) -> None:
    pool = MemoryPool(classes_per_doubling=classes)
    for nbytes in (1025, 5000, 70_001, MIB + 1, 5 * MIB):
        with pool.allocate(nbytes) as block:
            assert nbytes <= block.block_bytes < nbytes * (1 + 1 / classes)
            assert block.address % 64 == 0
        pool.trim()


def test_beyond_the_largest_class_blocks_are_exact_and_return_to_the_system() -> None:
    pool = MemoryPool(max_block=MIB)
    block = pool.allocate(MIB + 1)
    assert block.block_bytes < MIB + 1 + 64 * 1024  # one page at most, also where pages are large
    block.release()
    assert pool.stats().reserved_bytes == 0


def test_exact_blocks_are_zero_and_page_rounded() -> None:
    pool = MemoryPool()
    slab = pool.allocate_exact(10_000)
    assert slab.address % 4096 == 0
    assert not slab.array(np.uint8, 10_000).any()
    slab.release()
    assert pool.stats().reserved_bytes == 0


def test_array_shares_the_bytes_and_must_fit() -> None:
    pool = MemoryPool()
    block = pool.allocate(64)
    block.array(np.float32, (4, 4))[...] = 7
    assert (block.array("<f4", 16) == 7).all()
    assert block.array(np.int8, 0).shape == (0,)
    for shape in (17, (-1, -3)):
        with pytest.raises(InvalidInputError):
            block.array(np.float32, shape)


def test_memory_that_the_cpu_cannot_reach_gives_no_array() -> None:
    class Device(HostUpstream):
        device = "cuda:0"

        def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
            region = super().reserve(nbytes, zeroed=zeroed)
            return Region(region.address, nbytes, region, None)

    pool = MemoryPool(upstream=Device())
    with pool.allocate(100) as block:
        with pytest.raises(InvalidInputError, match=r"cuda:0.*cupy"):
            block.array(np.uint8, 1)
        with pytest.raises(InvalidInputError, match="simulated"):
            SimulatedStream("s").write(block, 0)
    assert (pool.device, pool.state().device, pool.stats().num_live) == ("cuda:0", "cuda:0", 0)


def test_the_last_changes_of_a_count_are_remembered_while_the_ledger_is_on() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = pool.allocate(10)
    block.retain().release()
    block.release()
    assert [str(event).split(" at ")[0] for event in block.history()] == [
        "retain to 2",
        "release to 1",
        "release to 0",
    ]
    assert block.history()[0].stack[0].file == __file__
    pool.ledger.enabled = False
    with pool.allocate(10) as other:
        other.retain().release()
        assert other.history() == ()


def test_owners_say_more_than_words() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = pool.allocate(10, owner=Owner("kv", request_id="r-7"))
    assert block.owner.request_id == "r-7"
    block.release()
    with pytest.raises(DoubleFreeError, match="kv of request r-7"):
        block.release()


def test_a_handle_in_garbage_that_its_neighbour_releases_is_released_once() -> None:
    """Finalizers of one collection run in any order: the handle's own may come first."""
    pool = MemoryPool()

    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.block = pool.allocate(100)

        def __del__(self) -> None:
            self.block.release()

    for _ in range(3):
        Holder()
    gc.collect()
    stats = pool.stats()
    assert (stats.num_live, stats.live_bytes, stats.num_dropped) == (0, 0, 0)


def test_retain_needs_as_many_releases() -> None:
    pool = MemoryPool()
    block = pool.allocate(100)
    assert block.retain() is block
    block.release()
    assert block.num_references == 1
    block.release()
    assert block.num_references == 0
    assert pool.stats().num_live == 0


def test_a_view_outlives_the_last_release_and_pins_its_block() -> None:
    pool = MemoryPool()
    block = pool.allocate(4096)
    part = block.array(np.uint8, 4096)[8:16]  # the whole array is gone; its slice is not
    part[...] = 1
    block.release()
    assert pool.stats().num_live == 1
    assert pool.allocate(4096).array(np.uint8, 8).ctypes.data != part.ctypes.data - 8
    assert part.tolist() == [1] * 8
    del part
    gc.collect()
    assert pool.stats().num_live == 0


def test_a_dropped_handle_gives_its_block_back_and_is_counted() -> None:
    pool = MemoryPool()
    kept = pool.allocate(100).array(np.uint8, 100)
    gc.collect()
    assert pool.stats().num_live == 1
    del kept
    gc.collect()
    stats = pool.stats()
    assert (stats.num_live, stats.num_dropped, stats.cached_bytes) == (0, 1, stats.reserved_bytes)


def test_double_free_names_both_stacks() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))

    def make_activations():  # type: ignore[no-untyped-def]
        return pool.allocate(1000, owner="activations")

    def finish_step(block) -> None:  # type: ignore[no-untyped-def]
        block.release()

    block = make_activations()
    finish_step(block)
    with pytest.raises(DoubleFreeError, match=r"double free of 1000 bytes \(owner 'activations'\)") as caught:
        block.release()
    assert caught.value.allocated_at[0].function.endswith("make_activations")
    assert caught.value.freed_at[0].function.endswith("finish_step")
    assert caught.value.freed_at[0].file == __file__
    assert "make_activations" in str(caught.value)
    assert "finish_step" in str(caught.value)
    assert pool.stats().num_live == 0


def test_use_after_free_is_caught_on_every_way_in() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = pool.allocate(1000)
    block.release()
    for touch in (
        lambda: block.address,
        lambda: block.block_bytes,
        lambda: block.array(np.uint8, 1),
        block.retain,
    ):
        with pytest.raises(UseAfterFreeError, match="use after free") as caught:
            touch()
        assert caught.value.allocated_at[0].file == caught.value.freed_at[0].file == __file__


def test_foreign_free_names_the_allocation_and_changes_nothing() -> None:
    mine, other = MemoryPool(ledger=Ledger(enabled=True)), MemoryPool(ledger=Ledger(enabled=True))
    block = mine.allocate(10, owner="logits")
    with pytest.raises(ForeignFreeError, match="logits") as caught:
        other.free(block)
    assert caught.value.allocated_at[0].file == caught.value.freed_at[0].file == __file__
    assert block.num_references == 1
    mine.free(block)
    assert mine.stats().num_live == 0


def test_without_the_ledger_misuse_says_how_to_see_the_stacks() -> None:
    block = MemoryPool().allocate(10)
    block.release()
    with pytest.raises(DoubleFreeError, match="ledger was off") as caught:
        block.release()
    assert caught.value.allocated_at == ()


def test_budget_trims_the_cache_before_it_refuses() -> None:
    pool = MemoryPool(budget_bytes=8 * MIB)
    pool.allocate(8 * MIB).release()  # all of the budget, cached
    block = pool.allocate(MIB)
    assert pool.stats().reserved_bytes == MIB
    block.release()


def test_budget_collects_garbage_before_it_refuses() -> None:
    pool = MemoryPool(budget_bytes=2 * MIB)
    cycle: list[object] = [pool.allocate(2 * MIB)]
    cycle.append(cycle)
    del cycle  # reachable by nobody, but not yet collected
    assert pool.allocate(2 * MIB).nbytes == 2 * MIB


def test_out_of_memory_carries_the_figures_and_refuses_only_that_request() -> None:
    pool = MemoryPool(budget_bytes=4 * MIB)
    held = pool.allocate(3 * MIB, owner="kv cache")
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(MIB, owner="activations")
    for figure in ("1,048,576 ", "budget 4,194,304", "live 4,194,304", "rounding", "kv cache 4,194,304"):
        assert figure in str(caught.value)
    assert caught.value.status == 503
    held.release()
    assert pool.allocate(MIB).nbytes == MIB


def test_what_the_system_refuses_is_out_of_memory_too() -> None:
    with pytest.raises(OutOfMemoryError, match="the system refused"):
        MemoryPool().allocate_exact(1 << 62)


def test_trim_returns_cached_blocks_only() -> None:
    pool = MemoryPool()
    live, spare = pool.allocate(MIB), pool.allocate(2 * MIB)
    spare.release()
    assert pool.trim() == 2 * MIB
    assert pool.stats().reserved_bytes == live.block_bytes == MIB


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"min_block": 1000}, "min_block"),
        ({"max_block": 3 * MIB}, "max_block"),
        ({"min_block": 4096, "max_block": 1024}, "max_block"),
        ({"classes_per_doubling": 3}, "classes_per_doubling"),
        ({"min_block": 128, "classes_per_doubling": 4}, "classes_per_doubling"),
        ({"min_block": True}, "min_block"),
        ({"budget_bytes": -1}, "budget_bytes"),
        ({"segment_bytes": 1.5}, "segment_bytes"),
        ({"fill": "ones"}, "fill"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        MemoryPool(**settings)  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize("nbytes", [-1, True, 4096.0, "4096", None, 1 << 63, 1 << 70, -(1 << 70)])
def test_what_is_no_size_is_refused_and_changes_nothing(nbytes: object) -> None:
    pool = MemoryPool()
    pool.allocate(10).release()
    before = pool.state()
    for ask in (
        lambda: pool.allocate(nbytes),  # type: ignore[arg-type]
        lambda: pool.allocate_exact(nbytes),  # type: ignore[arg-type]
        lambda: pool.adopt(nbytes, owner="file"),  # type: ignore[arg-type]
        lambda: pool.trim(nbytes),  # type: ignore[arg-type]
        lambda: pool.slab(nbytes, 1, owner="kv"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInputError) as caught:
            ask()
        assert caught.value.param in ("nbytes", "keep_bytes", "num_blocks")
    assert pool.state() == before


def test_zero_bytes_get_the_smallest_block_and_an_empty_array() -> None:
    pool = MemoryPool()
    for block in (pool.allocate(0), pool.allocate_exact(0)):
        assert block.nbytes == 0
        assert block.block_bytes > 0
        assert block.array(np.float32, (0, 3)).size == 0
        block.release()
    assert pool.stats().num_live == 0


def test_integers_of_numpy_are_sizes() -> None:
    with MemoryPool().allocate(np.int64(5000)) as block:  # type: ignore[arg-type]
        assert type(block.nbytes) is int


@pytest.mark.parametrize("budget_bytes", [0, 1023])
def test_a_budget_below_one_block_refuses_at_once_and_keeps_the_pool_as_it_is(budget_bytes: int) -> None:
    pool = MemoryPool(budget_bytes=budget_bytes)
    with pytest.raises(OutOfMemoryError, match="raise budget_bytes to 1,024"):
        pool.allocate(1)
    assert pool.stats().reserved_bytes == 0


def test_what_can_never_fit_does_not_cost_the_cache() -> None:
    pool = MemoryPool(budget_bytes=4 * MIB)
    pool.allocate(4 * MIB).release()
    with pytest.raises(OutOfMemoryError):
        pool.allocate(5 * MIB)
    assert pool.stats().cached_bytes == 4 * MIB
