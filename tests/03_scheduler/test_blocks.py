"""The KV block allocator: every block has one holder, and giving back what nobody holds is an error."""

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
    allocator.free(blocks)
    assert allocator.allocate(4, "b") == blocks


@pytest.mark.parametrize(
    "blocks", [[0, 0], [1, 0], [7], [8], [-1]], ids=["twice", "stale", "free", "foreign", "negative"]
)
def test_a_bad_free_changes_nothing(blocks: list[int]) -> None:
    allocator = BlockAllocator(8)
    held = allocator.allocate(3, "a")  # 0, 1, 2
    allocator.free(held[1:2])
    with pytest.raises(BlockDoubleFreeError):
        allocator.free(blocks)
    assert allocator.num_free == 6
    assert [allocator.owner_of(block) for block in range(3)] == ["a", None, "a"]
    allocator.free([0, 2])
    assert allocator.num_free == 8


def test_observers_see_every_block_come_and_go() -> None:
    seen: list[tuple[str, str, list[int]]] = []
    allocator = BlockAllocator(
        8,
        on_allocate=lambda owner, blocks: seen.append(("allocate", owner, list(blocks))),
        on_free=lambda owner, blocks: seen.append(("free", owner, list(blocks))),
    )
    blocks = allocator.allocate(2, "a")
    allocator.free(blocks)
    allocator.free([])
    assert seen == [("allocate", "a", [0, 1]), ("free", "a", [0, 1])]
