"""Books of what the pool does not hand out: blocks of slabs, and memory of others."""

import gc

import pytest

from aie_tensor import DoubleFreeError, InvalidInputError, Ledger, MemoryPool, Owner


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool(ledger=Ledger(enabled=True))


def test_a_slab_knows_who_has_which_block(pool: MemoryPool) -> None:
    slab = pool.slab(8, 4096, owner="kv cache")
    slab.occupy(Owner("kv", request_id="r-1"), [3, 1])
    slab.occupy("prefix", [0])
    (state,) = pool.state().slabs
    assert (state.owner, state.num_blocks, state.block_bytes) == ("kv cache", 8, 4096)
    assert state.used == ((0, "prefix"), (1, "kv of request r-1"), (3, "kv of request r-1"))
    held = pool.ledger.outstanding()
    assert [(entry.owner.what, entry.nbytes) for entry in held] == [("kv", 4096), ("kv", 4096), ("prefix", 4096)]
    assert held[0].stack[0].file == __file__
    slab.vacate([1, 3])
    assert pool.state().slabs[0].used == ((0, "prefix"),)
    assert len(pool.ledger.outstanding()) == 1
    assert pool.stats().reserved_bytes == 0


def test_misuse_of_a_slab_changes_nothing(pool: MemoryPool) -> None:
    slab = pool.slab(4, 1, owner="kv")
    slab.occupy("a", [0, 1])
    slab.vacate([1])
    before = slab.state(), len(pool.ledger.outstanding())
    for blocks in ([2, 4], [2, -1], [2, 2], [2, 0]):
        with pytest.raises(InvalidInputError) as caught:
            slab.occupy("b", blocks)
        assert caught.value.param == "blocks"
    with pytest.raises(DoubleFreeError, match="block 1 of slab 'kv'") as double:
        slab.vacate([0, 1])
    assert double.value.freed_at[0].file == __file__
    assert (slab.state(), len(pool.ledger.outstanding())) == before


def test_two_slabs_do_not_mix_and_a_closed_one_is_gone(pool: MemoryPool) -> None:
    first, second = pool.slab(2, 1, owner="first"), pool.slab(2, 1, owner="second")
    first.occupy("a", [0])
    second.occupy("b", [0])
    first.close()
    first.close()
    assert [entry.owner.what for entry in pool.ledger.outstanding()] == ["b"]
    assert [slab.owner for slab in pool.state().slabs] == ["second"]
    with pytest.raises(InvalidInputError, match="closed"):
        first.occupy("a", [0])


def test_adopted_memory_is_listed_and_never_reserved(pool: MemoryPool) -> None:
    adopted = pool.adopt(1 << 30, owner="model file")
    stats = pool.stats()
    assert (stats.mapped_bytes, stats.reserved_bytes, stats.live_bytes) == (1 << 30, 0, 0)
    assert [entry.owner.what for entry in pool.ledger.outstanding()] == ["model file"]
    adopted.release()
    assert pool.stats().mapped_bytes == 0
    assert pool.ledger.outstanding() == []
    with pytest.raises(DoubleFreeError, match="model file") as caught:
        adopted.release()
    assert caught.value.allocated_at[0].file == caught.value.freed_at[0].file == __file__
    assert pool.stats().mapped_bytes == 0


def test_adopted_memory_that_is_dropped_is_listed_no_more(pool: MemoryPool) -> None:
    adopted = pool.adopt(100, owner="file")
    del adopted
    gc.collect()
    assert pool.stats().mapped_bytes == 0
    assert pool.ledger.outstanding() == []
    with pool.adopt(50, owner="file"):
        assert pool.stats().mapped_bytes == 50
    assert pool.stats().mapped_bytes == 0
