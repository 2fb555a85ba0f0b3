"""The KV block allocator: a block is free or held by one or several, and nobody gives back what he does not hold."""

from collections.abc import Sequence

import pytest

from aie_scheduler import BlockAllocator, BlockDoubleFreeError, OutOfBlocksError


def test_blocks_are_distinct_and_owned() -> None:
    allocator = BlockAllocator(8)
    a, b = allocator.allocate(3, "a"), allocator.allocate(5, "b")
    assert sorted(a + b) == list(range(8))
    assert {allocator.owner_of(block) for block in a} == {"a"}
    assert allocator.num_free == 0


def test_asking_for_too_many_takes_none() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(2, "a")
    with pytest.raises(OutOfBlocksError, match=r"'b' asked for 3 KV blocks, but only 2 of 4 are free"):
        allocator.allocate(3, "b")
    assert allocator.num_free == 2


def test_the_block_freed_last_is_given_out_first() -> None:
    allocator = BlockAllocator(8)
    blocks = allocator.allocate(4, "a")
    allocator.free(blocks, "a")
    assert allocator.allocate(4, "b") == blocks


@pytest.mark.parametrize(
    "blocks", [[0, 0], [1, 0], [7], [8], [-1]], ids=["twice", "stale", "free", "foreign", "negative"]
)
def test_a_bad_free_changes_nothing(blocks: list[int]) -> None:
    allocator = BlockAllocator(8)
    held = allocator.allocate(3, "a")  # 0, 1, 2
    allocator.free(held[1:2], "a")
    with pytest.raises(BlockDoubleFreeError):
        allocator.free(blocks, "a")
    assert allocator.num_free == 6
    assert [allocator.owner_of(block) for block in range(3)] == ["a", None, "a"]
    allocator.free([0, 2], "a")
    assert allocator.num_free == 8


def test_observers_see_every_block_come_and_go() -> None:
    seen: list[tuple[str, str, list[int]]] = []
    allocator = BlockAllocator(
        8,
        on_allocate=lambda owner, blocks: seen.append(("allocate", owner, list(blocks))),
        on_free=lambda owner, blocks: seen.append(("free", owner, list(blocks))),
    )
    blocks = allocator.allocate(2, "a")
    allocator.free(blocks, "a")
    allocator.free([], "a")
    assert seen == [("allocate", "a", [0, 1]), ("free", "a", [1, 0])]


def test_a_shared_block_is_free_when_its_last_holder_leaves() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(2, "a")
    allocator.share(blocks, "b")
    allocator.share(blocks[:1], "c")
    assert [allocator.num_holders(block) for block in range(3)] == [3, 2, 0]
    allocator.free(blocks, "a")
    assert allocator.num_free == 2
    assert {allocator.owner_of(0), allocator.owner_of(1)} <= {"b", "c"}
    allocator.free(blocks, "b")
    assert (allocator.num_free, allocator.owner_of(0), allocator.owner_of(1)) == (3, "c", None)
    allocator.free(blocks[:1], "c")
    assert allocator.num_free == 4


@pytest.mark.parametrize("who", ["a", "nobody"])
def test_a_share_is_given_back_once_and_by_its_holder(who: str) -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(2, "a")
    allocator.share(blocks, "b")
    allocator.free(blocks, "a")
    with pytest.raises(BlockDoubleFreeError, match=f"is freed by '{who}', who does not hold it; 'b' does"):
        allocator.free(blocks, who)
    assert allocator.num_free == 2


def test_kept_blocks_are_handed_out_last_and_the_longest_unused_first() -> None:
    allocator, gone = BlockAllocator(6), []
    allocator.on_evict = gone.append
    blocks = allocator.allocate(5, "a")
    for block in blocks[:4]:
        allocator.keep(block)
    allocator.free(blocks[2:4], "a")  # tail first: 3, then 2
    allocator.free([0, 1, 4], "a")
    assert (allocator.num_free, allocator.num_cached) == (6, 4)
    assert sorted(allocator.allocate(2, "b")) == [4, 5]
    assert gone == []
    assert allocator.allocate(3, "b") == gone == [3, 2, 1]
    allocator.share([0], "c")  # taken up again
    assert (allocator.num_free, allocator.num_cached, allocator.owner_of(0)) == (0, 0, "c")


def test_a_kept_block_that_is_taken_up_again_moves_to_the_end_of_the_line() -> None:
    allocator = BlockAllocator(3)
    blocks = allocator.allocate(3, "a")
    for block in blocks:
        allocator.keep(block)
    allocator.free(blocks, "a")
    allocator.share([2], "b")
    allocator.free([2], "b")
    assert allocator.allocate(3, "c") == [1, 0, 2]


def test_discarded_content_makes_an_ordinary_block() -> None:
    allocator, gone = BlockAllocator(3), []
    allocator.on_evict = gone.append
    blocks = allocator.allocate(3, "a")
    for block in blocks:
        allocator.keep(block)
    allocator.discard(0)
    allocator.free(blocks, "a")
    allocator.discard(1)
    assert (allocator.num_free, allocator.num_cached) == (3, 1)
    assert (sorted(allocator.allocate(2, "b")), gone) == ([0, 1], [])


def test_observers_see_a_shared_block_change_hands() -> None:
    """The engine's book has one name per block: of somebody who holds it, at every moment."""
    booked: dict[int, str] = {}

    def on_allocate(owner: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert block not in booked
            booked[block] = owner

    def on_free(owner: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert booked.pop(block) == owner

    allocator = BlockAllocator(4, on_allocate=on_allocate, on_free=on_free)
    blocks = allocator.allocate(3, "a")
    allocator.keep(0)
    allocator.share(blocks, "b")
    allocator.free(blocks, "a")
    assert booked == {0: "b", 1: "b", 2: "b"}
    allocator.free(blocks, "b")
    assert booked == {}
    allocator.share([0], "c")
    assert booked == {0: "c"}
    allocator.free([0], "c")
    assert booked == {}
